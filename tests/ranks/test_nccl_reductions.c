/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Averages, and sums of scaled inputs, of each type by NCCL: the values, over its stand-in and by
   itself on a GPU; and whether types, ops and other numbers are those of its header. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/nccl/abi.h"
#include "comm/ops/names.h"
#include "tests/device/fake_gpu.h"
#include "tests/support/comm_cases.h"
#include "tests/support/device_ranks.h"
#include "tests/support/test.h"

/* ---- NCCL's own header, where it is ---------------------------------------------------------- */

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#define SAME(ours, nccls) static_assert((int)(ours) == (int)(nccls), #ours)
#define SAME_PLACE(ours, nccls) SAME(offsetof(ddp_nccl_config, ours), offsetof(ncclConfig_t, nccls))
SAME(sizeof(ddp_nccl_id), sizeof(ncclUniqueId));
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(split_share, splitShare);
SAME(DDP_NCCL_UNSET, NCCL_CONFIG_UNDEF_INT);
SAME(DDP_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(DDP_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(DDP_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(DDP_NCCL_IN_PROGRESS, ncclInProgress);
SAME(DDP_NCCL_PROD, ncclProd);
SAME(DDP_NCCL_MAX, ncclMax);
SAME(DDP_NCCL_MIN, ncclMin);
SAME(DDP_NCCL_AVG, ncclAvg);
SAME(DDP_NCCL_OPS, ncclNumOps);
SAME(DDP_NCCL_INT8, ncclInt8);
SAME(DDP_NCCL_UINT8, ncclUint8);
SAME(DDP_NCCL_INT32, ncclInt32);
SAME(DDP_NCCL_INT64, ncclInt64);
SAME(DDP_NCCL_FLOAT16, ncclFloat16);
SAME(DDP_NCCL_FLOAT32, ncclFloat32);
SAME(DDP_NCCL_FLOAT64, ncclFloat64);
SAME(DDP_NCCL_BFLOAT16, ncclBfloat16);
SAME(DDP_NCCL_SCALAR_ON_HOST, ncclScalarHostImmediate);
#endif

/* ---- values -------------------------------------------------------------------------------------- */

enum { TYPES = DDP_I8 + 1, LONGEST = 70001, RANKS_MAX = 4 };

typedef struct reduction {
	const char *name;
	ddp_op op;
	bool scaled;
} reduction;

static const reduction reductions[] = {
	{ "sum", DDP_SUM, false },
	{ "scaled sum", DDP_SUM, true },
	{ "average", DDP_AVG, false },
	{ "scaled average", DDP_AVG, true },
};
enum { REDUCTIONS = sizeof(reductions) / sizeof(reductions[0]) };

/* All types hold inputs, factors and results, for 1, 2 and 4 ranks: nothing is rounded but
   averages of integers. */
static double input(ddp_type type, int rank, size_t i)
{
	const double x = 1 + (double)((3 * i + (size_t)rank) % 4);

	return type != DDP_U8 && (i + 2 * (size_t)rank) % 3 == 0 ? -x : x;
}

static double scale_of(ddp_type type, int rank)
{
	static const double any[RANKS_MAX] = { 2, -0.5, 1.5, 4 }, whole[RANKS_MAX] = { 2, 3, 1, 5 };

	return ddp_type_is_integer(type) ? whole[rank] : any[rank];
}

static double expected(const reduction *r, ddp_type type, int ranks, size_t i)
{
	double sum = 0;

	for (int rank = 0; rank < ranks; rank++)
		sum += input(type, rank, i) * (r->scaled ? scale_of(type, rank) : 1);
	if (r->op == DDP_AVG)
		sum /= ranks;
	return ddp_type_is_integer(type) ? trunc(sum) : sum;
}

static bool is_refused(const reduction *r, ddp_type type)
{
	return r->op == DDP_AVG && (type == DDP_U8 || type == DDP_I8 || (r->scaled && ddp_type_is_integer(type)));
}

/* `memory`: the input, and behind it the result. */
static void check_values(const on_device *d, const reduction *r, ddp_type type, size_t count, char *memory)
{
	const size_t element = ddp_type_bytes(type), bytes = count * element;
	ddp_operation c = test_nccl_operation(d, DDP_ALL_REDUCE);
	char *host = malloc(bytes);

	CHECK(host != NULL);
	for (size_t i = 0; i < count; i++)
		case_put(type, host, i, input(type, d->rank, i));
	CHECK_OK(ddp_device_copy(d->device, d->stream, memory, host, bytes));
	CHECK_OK(ddp_device_fill(d->device, d->stream, memory + bytes, 0x55, bytes));
	c.send = memory;
	c.recv = memory + bytes;
	c.count = count;
	c.type = type;
	c.op = r->op;
	c.scaled = r->scaled;
	c.scale = r->scaled ? scale_of(type, d->rank) : 0;
	const ddp_status status = ddp_run(d->comm, &c);
	CHECK_OK(ddp_device_copy(d->device, d->stream, host, memory + bytes, bytes));
	CHECK_OK(ddp_device_queue_sync(d->device, d->stream));
	CHECK(status == (is_refused(r, type) ? DDP_ERR_UNSUPPORTED : DDP_OK));
	for (size_t i = 0; i < count && status == DDP_OK; i++) {
		const double have = case_get(type, host, i), want = expected(r, type, d->size, i);
		if (have == want)
			continue;
		fprintf(stderr, "# rank %d of %d: %s of %s: element %zu of %zu is %g instead of %g\n", d->rank, d->size,
		        r->name, ddp_type_name(type), i, count, have, want);
		_exit(1);
	}
	free(host);
}

/* In lengths that take NCCL's three protocols. */
static int check_table(ddp_comm *comm, void *argument)
{
	static const size_t counts[] = { 1, 1000, LONGEST };
	void *memory;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_device_alloc(d.device, 2 * (size_t)LONGEST * sizeof(double), &memory));
	for (int type = 0; type < TYPES; type++) {
		for (int r = 0; r < REDUCTIONS; r++) {
			for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
				check_values(&d, &reductions[r], (ddp_type)type, counts[i], memory);
		}
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* Ranks have true in all, in some and in no elements. */
static int check_truths(ddp_comm *comm, void *argument)
{
	static const struct { ddp_op op; bool needs_all; } ops[] = {
		{ DDP_SUM, false }, { DDP_MAX, false }, { DDP_BOR, false }, { DDP_PROD, true }, { DDP_MIN, true }, { DDP_BAND, true },
	};
	enum { TRUTHS = 1 << RANKS_MAX };
	bool host[TRUTHS];
	void *memory;
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK_OK(ddp_device_alloc(d.device, TRUTHS, &memory));
	for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
		ddp_operation c = test_nccl_operation(&d, DDP_ALL_REDUCE);
		for (int i = 0; i < TRUTHS; i++)
			host[i] = (i >> d.rank & 1) != 0;
		CHECK_OK(ddp_device_copy(d.device, d.stream, memory, host, TRUTHS));
		c.send = NULL;
		c.recv = memory;
		c.count = TRUTHS;
		c.type = DDP_BOOL;
		c.op = ops[o].op;
		CHECK_OK(ddp_run(comm, &c));
		CHECK_OK(ddp_device_copy(d.device, d.stream, host, memory, TRUTHS));
		CHECK_OK(ddp_device_queue_sync(d.device, d.stream));
		for (int i = 0; i < TRUTHS; i++) {
			const int given = i & ((1 << d.size) - 1);
			CHECK(host[i] == (ops[o].needs_all ? given == (1 << d.size) - 1 : given != 0));
		}
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS_IF(!test_on_gpu(), truths_are_combined_as_truths, test_nccl_run(2, check_truths, NULL));

TEST(sums_and_averages_of_each_type_are_right)
{
	for (int ranks = 1; ranks <= (test_on_gpu() ? 2 : RANKS_MAX); ranks *= 2)
		test_nccl_run(ranks, check_table, NULL);
}

/* ---- what NCCL cannot do -------------------------------------------------------------------------- */

static ddp_status reduce(const on_device *d, ddp_type type, ddp_op op, double scale)
{
	ddp_operation c = test_nccl_operation(d, DDP_ALL_REDUCE);

	c.type = type;
	c.op = op;
	c.scaled = scale != 1;
	c.scale = c.scaled ? scale : 0;
	return ddp_run(d->comm, &c);
}

static int ask_too_much(ddp_comm *comm, void *argument)
{
	on_device d;

	test_nccl_set_up(&d, comm);
	CHECK(reduce(&d, DDP_U8, DDP_AVG, 1) == DDP_ERR_UNSUPPORTED);
	CHECK(reduce(&d, DDP_I8, DDP_AVG, 1) == DDP_ERR_UNSUPPORTED);
	CHECK_FAILS(reduce(&d, DDP_I32, DDP_BAND, 1), DDP_ERR_UNSUPPORTED, "NCCL has no band of i32");
	CHECK(reduce(&d, DDP_BOOL, DDP_BXOR, 1) == DDP_ERR_UNSUPPORTED);
	CHECK(reduce(&d, DDP_I32, DDP_AVG, 2) == DDP_ERR_UNSUPPORTED);
	CHECK(reduce(&d, DDP_I32, DDP_SUM, 0.5) == DDP_ERR_UNSUPPORTED);
	CHECK(reduce(&d, DDP_F32, DDP_MAX, 0.5) == DDP_ERR_UNSUPPORTED);
	CHECK_FAILS(reduce(&d, DDP_BF16, DDP_SUM, 1.0 / 3), DDP_ERR_UNSUPPORTED,
	            "NCCL scales bf16 by numbers of that type only, and 0.333333 is none");
	CHECK(reduce(&d, DDP_F16, DDP_SUM, 1e-9) == DDP_ERR_UNSUPPORTED);
	CHECK_OK(reduce(&d, DDP_BF16, DDP_SUM, -0.375));
	CHECK_OK(reduce(&d, DDP_F32, DDP_SUM, 1.0 / 3));
	return 0;
}

TEST_RUNS(what_nccl_would_round_is_refused, test_nccl_run(1, ask_too_much, NULL));
