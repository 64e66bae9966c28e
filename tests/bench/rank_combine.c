/*
 * What comm/ops/kernels combine, of every type and operation, in bytes of one source
 * per second, and beside that what f32 gives.
 *
 *   rank_combine [KIB [SOURCES]]
 *
 * KIB of each source; the least time of many rounds counts. In a build with
 * another compiler it is another program: `make bench-combine` in each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/api.h"
#include "comm/ops/kernels.h"

enum { SOURCES_MAX = 64, ROUNDS = 40, TYPES = DDP_U8 + 1, OPS = DDP_MAX + 1 };

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
		case DDP_U8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
		}
	}
}

/* GB/s of one source. */
static double speed(ddp_combination *f, size_t bytes)
{
	const size_t count = bytes / ddp_type_bytes(f->type);
	uint64_t least = UINT64_MAX;

	for (int s = 0; s < f->nsrc; s++)
		fill(f->type, (void *)(uintptr_t)f->src[s], count);
	for (int round = 0; round < ROUNDS; round++) {
		const uint64_t start = ddp_now_ns();
		ddp_combine(f, 0, count);
		const uint64_t taken = ddp_now_ns() - start;
		least = taken < least ? taken : least;
	}
	return (double)bytes / (double)(least > 0 ? least : 1);
}

int main(int argc, char **argv)
{
	const size_t bytes = (argc > 1 ? (size_t)atol(argv[1]) : 256) * 1024;
	const int sources = argc > 2 ? atoi(argv[2]) : 2;
	const void *src[SOURCES_MAX];
	void *dst[1];
	double f32[OPS][2] = { { 0 } };

	if (bytes == 0 || sources < 1 || sources > SOURCES_MAX) {
		fprintf(stderr, "usage: rank_combine [KIB [SOURCES]], at most %d sources\n", SOURCES_MAX);
		return 2;
	}
	/* A result in accumulator form takes up to four times as much. */
	char *memory = aligned_alloc(4096, ((size_t)sources + 4) * (bytes + 4096));
	if (memory == NULL) {
		perror("rank_combine");
		return 1;
	}
	memset(memory, 0, ((size_t)sources + 4) * (bytes + 4096));
	for (int s = 0; s < sources; s++)
		src[s] = memory + (size_t)s * (bytes + 4096);
	dst[0] = memory + (size_t)sources * (bytes + 4096);
	printf("%s, %d sources of %zu KiB: GB/s of one, and beside f32's\n", __VERSION__, sources, bytes / 1024);
	printf("%-5s %-5s %8s %6s %8s %6s\n", "type", "op", "result", "f32 =1", "partial", "f32 =1");
	for (int type = 0; type < TYPES; type++) {
		for (int op = 0; op < OPS; op++) {
			ddp_combination f = { .type = (ddp_type)type, .op = (ddp_op)op, .nsrc = sources, .src = src,
			               .ndst = 1, .dst = dst, .divisor = op == DDP_AVG ? sources : 0 };
			const double whole = speed(&f, bytes);
			f.wide_dst = true;
			const double partial = speed(&f, bytes);
			if (type == DDP_F32) {
				f32[op][0] = whole;
				f32[op][1] = partial;
			}
			printf("%-5s %-5s %8.2f %6.2f %8.2f %6.2f\n", ddp_type_name(f.type), ddp_op_name(f.op), whole,
			       whole / f32[op][0], partial, partial / f32[op][1]);
		}
	}
	free(memory);
	return 0;
}
