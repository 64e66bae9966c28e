/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comm/ops/kernels combine, of every type and operation, beside f32.
 *
 *   rank_combine [SOURCES [LEVEL]]
 *
 * A figure is the bytes that are read and written, per second; of a type and of f32 they
 * are taken in turns, so that the machine's noise hits both, and the least time counts.
 * "in" is from elements in accumulator form, "out" to such: partial results, of which one
 * side is two or four times as large as the other. LEVEL is one of ddp_kernels_use(). In a
 * build with another compiler it is another program: `make bench-combine` in each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/api.h"
#include "comm/ops/kernels.h"

enum { SOURCES_MAX = 64, TYPES = DDP_U8 + 1, OPS = DDP_MAX + 1, FORMS = 3, PLACES = 3 };

/* Where a source's bytes come from; and how often, as the first rounds find them elsewhere. */
static const struct place {
	const char *name;
	size_t bytes, total;
	int rounds;
} places[PLACES] = {
	{ "L1", 4 << 10, 0, 400 }, { "L2", 256 << 10, 0, 60 }, { "memory", 0, 192 << 20, 5 },
};
static const struct { const char *name; bool wide_src, wide_dst; } forms[FORMS] = {
	{ "", false, false }, { "in", true, false }, { "out", false, true },
};

/* Ordinary numbers: neither huge nor subnormal in any type. */
static void fill(ddp_type type, void *memory, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		const int x = 1 + (int)(i * 2654435761u >> 7 & 3);
		switch (type) {
		case DDP_F32: ((float *)memory)[i] = (float)x; break;
		case DDP_F64: ((double *)memory)[i] = x; break;
		case DDP_F16: ((uint16_t *)memory)[i] = (uint16_t)(0x3c00 + 64 * x); break;
		case DDP_BF16: ((uint16_t *)memory)[i] = (uint16_t)(0x3f80 + 8 * x); break;
		case DDP_I32: ((int32_t *)memory)[i] = x; break;
		case DDP_I64: ((int64_t *)memory)[i] = x; break;
		case DDP_U8:
		case DDP_I8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
		case DDP_BOOL: ((uint8_t *)memory)[i] = x & 1; break;
		}
	}
}

/* Nanoseconds, with the sources in a place of `bytes` each. */
static uint64_t time_of(const ddp_combination *c, size_t count)
{
	/* What is shorter than the clock's own time is done several times. */
	const int times = count < 65536 ? 16 : 1;
	const uint64_t start = ddp_now_ns();

	for (int i = 0; i < times; i++)
		ddp_combine(c, 0, count);
	return (ddp_now_ns() - start) / (uint64_t)times;
}

typedef struct bench {
	char *memory[2]; /* f32's, and the type's */
	size_t bytes;    /* of a source or a result, with what keeps them apart */
	int sources;
} bench;

static size_t prepare(const bench *b, int side, ddp_combination *c, const void **src, void **dst, size_t bytes)
{
	const ddp_type from = c->wide_src ? ddp_accumulator(c->type) : c->type;
	const ddp_type to = c->wide_dst ? ddp_accumulator(c->type) : c->type;
	const size_t larger = ddp_type_bytes(from) > ddp_type_bytes(to) ? ddp_type_bytes(from) : ddp_type_bytes(to);
	const size_t count = bytes / larger;

	for (int s = 0; s < b->sources; s++) {
		src[s] = b->memory[side] + (size_t)s * b->bytes;
		fill(from, (void *)(uintptr_t)src[s], count);
	}
	dst[0] = b->memory[side] + (size_t)b->sources * b->bytes;
	c->src = src;
	c->nsrc = b->sources;
	c->dst = dst;
	c->ndst = 1;
	c->divisor = c->op == DDP_AVG ? b->sources : 0;
	return count;
}

/* Bytes a nanosecond of the type, and beside f32's. */
static void compare(const bench *b, const ddp_combination *what, const struct place *place, double *speed,
                    double *beside)
{
	const size_t bytes = place->bytes > 0 ? place->bytes : place->total / ((size_t)b->sources + 1);
	const void *src[2][SOURCES_MAX];
	void *dst[2][1];
	ddp_combination c[2] = { { .type = DDP_F32, .op = what->op }, *what };
	size_t count[2], moved[2];
	uint64_t least[2] = { UINT64_MAX, UINT64_MAX };

	for (int side = 0; side < 2; side++) {
		count[side] = prepare(b, side, &c[side], src[side], dst[side], bytes);
		moved[side] = count[side] * ((size_t)b->sources * ddp_type_bytes(c[side].wide_src ? ddp_accumulator(c[side].type)
		                                                                                  : c[side].type) +
		                             ddp_type_bytes(c[side].wide_dst ? ddp_accumulator(c[side].type) : c[side].type));
	}
	for (int round = 0; round < place->rounds; round++) {
		for (int side = 0; side < 2; side++) {
			/* Two in a row: the other's first has taken the cache. */
			time_of(&c[side], place->bytes > 0 ? count[side] : 0);
			const uint64_t taken = time_of(&c[side], count[side]);
			least[side] = taken < least[side] ? taken : least[side];
		}
	}
	*speed = (double)moved[1] / (double)(least[1] > 0 ? least[1] : 1);
	*beside = *speed / ((double)moved[0] / (double)(least[0] > 0 ? least[0] : 1));
}

static void print_line(const bench *b, const ddp_combination *what, const char *form)
{
	printf("%-4s %-4s %-4s", ddp_type_name(what->type), ddp_op_name(what->op), form);
	for (int p = 0; p < PLACES; p++) {
		double speed, beside;
		compare(b, what, &places[p], &speed, &beside);
		printf("  %8.1f %5.2f", speed, beside);
	}
	printf("\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *level = "the best instruction set";
	bench b = { .sources = argc > 1 ? atoi(argv[1]) : 2 };

	if (argc > 3 || b.sources < 1 || b.sources > SOURCES_MAX ||
	    (argc > 2 && (level = ddp_kernels_use(atoi(argv[2]))) == NULL)) {
		fprintf(stderr, "usage: rank_combine [SOURCES [LEVEL]], at most %d sources, "
		        "and a level from 0 that this processor has\n", SOURCES_MAX);
		return 2;
	}
	b.bytes = places[PLACES - 1].total / ((size_t)b.sources + 1) + 4096 + 64;
	for (int side = 0; side < 2; side++) {
		const size_t bytes = ((size_t)b.sources + 1) * b.bytes / 4096 * 4096 + 4096;
		b.memory[side] = aligned_alloc(4096, bytes);
		if (b.memory[side] == NULL) {
			perror("rank_combine");
			return 1;
		}
		memset(b.memory[side], 0, bytes);
	}
	printf("%s, %s, %d sources: GB/s read and written, and beside f32's\n", __VERSION__, level, b.sources);
	printf("%-4s %-4s %-4s", "type", "op", "form");
	for (int p = 0; p < PLACES; p++)
		printf("  %8s %5s", places[p].name, "f32=1");
	printf("\n");
	for (int type = 0; type < TYPES; type++) {
		for (int op = 0; op < OPS; op++) {
			for (int form = 0; form < (ddp_accumulator((ddp_type)type) != (ddp_type)type ? FORMS : 1); form++) {
				const ddp_combination what = { .type = (ddp_type)type, .op = (ddp_op)op,
				                               .wide_src = forms[form].wide_src, .wide_dst = forms[form].wide_dst };
				print_line(&b, &what, forms[form].name);
			}
		}
	}
	free(b.memory[0]);
	free(b.memory[1]);
	return 0;
}
