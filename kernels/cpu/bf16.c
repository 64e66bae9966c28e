/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/bf16.h"

#include <pthread.h>

#include "cpu/inner.h"

#ifdef HAVE_AMX_KERNELS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* ---- the plain one ------------------------------------------------------------------ */

static void pack_plain(uint16_t *tile, const dk_side *side, int64_t row, int64_t k)
{
	for (int64_t r = 0; r < DK_STRIP; r++) {
		for (int64_t d = 0; d < DK_DEPTH; d++) {
			const bool inside = row + r < side->rows && k + d < side->depth;
			const int64_t at = side->across ? (k + d) * side->ld + row + r : (row + r) * side->ld + k + d;
			const int64_t to = side->pairs ? (d / 2 * DK_STRIP + r) * 2 + d % 2 : r * DK_DEPTH + d;
			tile[to] = inside ? side->from[at] : 0;
		}
	}
}

static void block_plain(float *c, int64_t ldc, const dk_strip_range *a, const dk_strip_range *b, int64_t depth,
                        bool adds)
{
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			dk_inner()->bf16_tile(c + i * DK_STRIP * ldc + j * DK_STRIP, ldc, a->first + i * a->next,
			                      b->first + j * b->next, depth, adds);
}

const dk_bf16_set dk_bf16_plain = {
	.name = "plain", .pack = pack_plain, .block = block_plain,
};

/* ---- which there are ---------------------------------------------------------------- */

enum { SETS_MAX = 3 };

static const dk_bf16_set *sets[SETS_MAX + 1];
static int set_count;

#ifdef HAVE_AMX_KERNELS
/* Linux lets a process use the tiles, which make its threads' state 8 KiB larger, when it
   has asked; it refuses if a thread has an alternate signal stack that is too small. */
static bool has_amx(void)
{
	enum { LEAF = 7, BF16 = 1 << 22, TILE = 1 << 24, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
	unsigned a, b, c, d;

	if (!__get_cpuid_count(LEAF, 0, &a, &b, &c, &d) || (d & BF16) == 0 || (d & TILE) == 0)
		return false;
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

static void find_sets(void)
{
	sets[set_count++] = &dk_bf16_plain;
#ifdef HAVE_AVX512_BF16_KERNELS
	if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw") ||
	    !__builtin_cpu_supports("avx512vl"))
		return;
	sets[set_count++] = &dk_bf16_avx512;
#ifdef HAVE_AMX_KERNELS
	if (has_amx())
		sets[set_count++] = &dk_bf16_amx;
#endif
#endif
}

const dk_bf16_set *dk_bf16_set_at(int index)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_sets);
	return index < set_count ? sets[index] : NULL;
}

const dk_bf16_set *dk_bf16(void)
{
	return dk_bf16_set_at(0) != NULL ? sets[set_count - 1] : NULL;
}

/* ---- packing and multiplying -------------------------------------------------------- */

void dk_pack(const dk_bf16_set *set, uint16_t *packed, const dk_side *side, int64_t first,
             int64_t last)
{
	const int64_t depth = dk_ceil_div(side->depth, DK_DEPTH);

	/* The loops follow the order in which the side lies in memory. */
	if (side->across) {
		for (int64_t d = 0; d < depth; d++)
			for (int64_t s = first; s < last; s++)
				set->pack(packed + (s * depth + d) * DK_TILE, side, s * DK_STRIP, d * DK_DEPTH);
		return;
	}
	for (int64_t s = first; s < last; s++)
		for (int64_t d = 0; d < depth; d++)
			set->pack(packed + (s * depth + d) * DK_TILE, side, s * DK_STRIP, d * DK_DEPTH);
}

void dk_multiply(const dk_bf16_set *set, float *c, int64_t ldc, dk_strip_range a, dk_strip_range b,
                 int64_t depth, bool adds)
{
	enum { DEPTH_AT_ONCE = 16 }; /* two strips of b, 32 KiB, stay in the first cache */

	for (int64_t d = 0; d < depth; d += DEPTH_AT_ONCE) {
		const int64_t tiles = depth - d < DEPTH_AT_ONCE ? depth - d : DEPTH_AT_ONCE;
		for (int64_t j = 0; j < b.count; j += 2) {
			dk_strip_range right = b, left = a;
			right.first += j * b.next + d * b.tile;
			left.first += d * a.tile;
			for (int64_t i = 0; i < a.count; i += 2, left.first += 2 * a.next)
				set->block(c + i * DK_STRIP * ldc + j * DK_STRIP, ldc, &left, &right, tiles, adds || d > 0);
		}
	}
}
