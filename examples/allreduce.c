/* SPDX-License-Identifier: Apache-2.0 */
/* allreduce - the smallest job: every rank says who it is, gives a vector,
   and gets the sum of all. Checks the result, so it also tells whether a
   cluster is set up right:

     srun --ddp -N2 --ntasks-per-node=2 allreduce
     allreduce --spawn 4 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "option_table.h"
#include "rank.h"

enum { EXIT_WRONG_RESULT = 1, EXIT_USAGE = 2, SHOWN = 4 };

static const char *const type_names[] = { "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "i8", NULL };
static const size_t type_bytes[] = { 4, 8, 2, 2, 4, 8, 1, 1 };

struct options {
	int spawn, iterations, timeout; /* the last one in seconds; 0: not said */
	int64_t count;
	ddp_type type;
	bool verbose;
	ddp_options ddp;
};

#define AT(member) .at = offsetof(struct options, member)

static const option_row rows[] = {
	{OPTION_INT, "spawn", "N", AT(spawn), "fork N local ranks, without Slurm", 1, 1024},
	{OPTION_INTEGER, "count", "N", AT(count), "elements of the vector", 0, INT64_C(1) << 32},
	{OPTION_NAME, "type", "NAME", AT(type), "", .names = type_names},
	{OPTION_INT, "iterations", "N", AT(iterations), "repetitions", 1, 1 << 30},
	{OPTION_INT, "timeout", "S", AT(timeout), "seconds until a rank that does not come is an error (DDP_TIMEOUT of the "
	 "environment, else 300)", 1, 604800},
	{OPTION_TEXT, "wireup", "NAME", AT(ddp.wireup), "pmix or tcp (the best there is)"},
	{OPTION_FLAG, "verbose", NULL, AT(verbose), "show the library's messages on stderr"},
};

static const option_form form = {.program = "allreduce", .usage = "[OPTION]...",
	.about = "Each rank gives a vector; all get the sum, which is checked.\n"
	         "Start it with srun --ddp, with srun --mpi=pmix, or with --spawn.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]),
	.end = "Exit status: 0 all sums are right, 1 one is wrong, 2 usage, 3 the library\n"
	       "reports an error; with --spawn, that of the first rank that failed.\n",
	.wrong = EXIT_USAGE};

/* Elements are small whole numbers, 1 to 3, so that even the 16-bit types hold
   the sum of many ranks exactly and any difference is an error. */
static int value_of(int rank, size_t i)
{
	return 1 + (int)((i + (size_t)rank) % 3);
}

/* bfloat16 and half of a small whole number: exact, so no rounding is needed. */
static uint16_t to_bf16(double value)
{
	float single = (float)value;
	uint32_t bits;

	memcpy(&bits, &single, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static double from_bf16(uint16_t half)
{
	uint32_t bits = (uint32_t)half << 16;
	float single;

	memcpy(&single, &bits, sizeof(single));
	return single;
}

static uint16_t to_f16(double value)
{
	float single = (float)value;
	uint32_t bits;

	if (value == 0)
		return 0;
	memcpy(&bits, &single, sizeof(bits));
	return (uint16_t)(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff));
}

static double from_f16(uint16_t half)
{
	uint32_t bits = ((uint32_t)(half >> 10 & 0x1f) + 112) << 23 | (uint32_t)(half & 0x3ff) << 13;
	float single;

	if ((half & 0x7fff) == 0)
		return 0;
	memcpy(&single, &bits, sizeof(single));
	return (half & 0x8000) ? -single : single;
}

static void store(void *vector, ddp_type type, size_t i, int value)
{
	switch (type) {
	case DDP_F32: ((float *)vector)[i] = (float)value; break;
	case DDP_F64: ((double *)vector)[i] = value; break;
	case DDP_F16: ((uint16_t *)vector)[i] = to_f16(value); break;
	case DDP_BF16: ((uint16_t *)vector)[i] = to_bf16(value); break;
	case DDP_I32: ((int32_t *)vector)[i] = value; break;
	case DDP_I64: ((int64_t *)vector)[i] = value; break;
	case DDP_U8:
	case DDP_I8: ((uint8_t *)vector)[i] = (uint8_t)value; break;
	case DDP_BOOL: break; /* it has no sums of numbers */
	}
}

static double load(const void *vector, ddp_type type, size_t i)
{
	switch (type) {
	case DDP_F32: return ((const float *)vector)[i];
	case DDP_F64: return ((const double *)vector)[i];
	case DDP_F16: return from_f16(((const uint16_t *)vector)[i]);
	case DDP_BF16: return from_bf16(((const uint16_t *)vector)[i]);
	case DDP_I32: return ((const int32_t *)vector)[i];
	case DDP_I64: return (double)((const int64_t *)vector)[i];
	case DDP_U8: return ((const uint8_t *)vector)[i];
	case DDP_I8: return ((const int8_t *)vector)[i];
	case DDP_BOOL: break;
	}
	return 0;
}

/* The sum over all ranks of element i. */
static double expected(int world_size, size_t i)
{
	int whole = world_size / 3, sum = whole * 6;

	for (int r = whole * 3; r < world_size; r++)
		sum += value_of(r, i);
	return sum;
}

/* The largest whole number up to which all are exact. */
static int exact_limit(ddp_type type)
{
	return type == DDP_F16 ? 2048 : type == DDP_BF16 ? 256 : type == DDP_U8 ? 255 : type == DDP_I8 ? 127 : 1 << 24;
}

static void print_vector(const char *what, const void *vector, const struct options *options)
{
	const int64_t shown = options->count < SHOWN ? options->count : SHOWN;

	printf("%s [", what);
	for (int64_t i = 0; i < shown; i++)
		printf("%s%g", i > 0 ? " " : "", load(vector, options->type, (size_t)i));
	printf("%s] ", options->count > shown ? " ..." : "");
}

static int fail(const char *what)
{
	if (!rank_another_tells())
		fprintf(stderr, "allreduce: %s: %s\n", what, ddp_last_error());
	return EXIT_LIBRARY;
}

static bool check(const ddp_job *job, const void *vector, const struct options *options)
{
	for (int64_t i = 0; i < options->count; i++) {
		double got = load(vector, options->type, (size_t)i);
		double wanted = expected(job->world_size, (size_t)i);
		if (got != wanted) {
			fprintf(stderr, "allreduce: rank %d on %s: element %" PRId64 " is %g; %g is right\n",
			        job->rank, job->hostname, i, got, wanted);
			return false;
		}
	}
	return true;
}

static int reduce_and_check(ddp_context *context, void *vector, const struct options *options)
{
	const ddp_job *job = ddp_get_job(context);

	for (int n = 0; n < options->iterations; n++) {
		bool talks = n == options->iterations - 1;
		for (int64_t i = 0; i < options->count; i++)
			store(vector, options->type, (size_t)i, value_of(job->rank, (size_t)i));
		if (talks) {
			printf("rank %d: ", job->rank);
			print_vector("before", vector, options);
		}
		if (ddp_all_reduce(ddp_world(context), NULL, vector, (size_t)options->count, options->type,
		                   DDP_SUM) != DDP_OK) {
			printf("\n");
			return fail("all_reduce");
		}
		if (talks) {
			print_vector("after", vector, options);
			printf("\n");
		}
		if (!check(job, vector, options))
			return EXIT_WRONG_RESULT;
	}
	return 0;
}

static int run(const struct options *options)
{
	ddp_context *context;
	void *vector;
	char identity[2048];

	if (ddp_init(&options->ddp, &context) != DDP_OK)
		return fail("ddp_init");
	const ddp_job *job = ddp_get_job(context);
	if (ddp_job_json(job, identity, sizeof(identity)) != DDP_OK)
		return fail("ddp_job_json");
	printf("%s\n", identity);
	int code = EXIT_USAGE;
	if (3 * job->world_size > exact_limit(options->type)) {
		fprintf(stderr, "allreduce: %s cannot hold the sum of %d ranks exactly\n",
		        type_names[options->type], job->world_size);
	} else if (ddp_mem_alloc(ddp_world(context), (size_t)options->count * type_bytes[options->type] + 1,
	                         &vector) != DDP_OK) {
		code = fail("ddp_mem_alloc");
	} else {
		code = reduce_and_check(context, vector, options);
		if (code == 0 && ddp_mem_free(ddp_world(context), vector) != DDP_OK)
			code = fail("ddp_mem_free");
	}
	if (code == 0 && job->rank == 0)
		printf("all %" PRId64 " sums over %d ranks are right\n", options->count * options->iterations, job->world_size);
	if (ddp_finalize(context) != DDP_OK && code == 0)
		code = fail("ddp_finalize");
	return code;
}

int main(int argc, char **argv)
{
	struct options options = { .ddp = DDP_OPTIONS, .count = 1 << 20, .iterations = 1 };

	options_read(&form, argc, argv, &options);
	if (options.timeout > 0)
		options.ddp.timeout_ms = options.timeout * 1000;
	/* A line at a time, so that those of several ranks do not mix. */
	setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
	ddp_set_log(ddp_log_stderr, NULL, options.verbose ? DDP_LOG_DEBUG : DDP_LOG_WARN);
	rank_spawn(form.program, options.spawn);
	return run(&options);
}
