/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of kernels/cuda on one GPU beside what bounds them, on the shapes of a GPT:

     those that memory bounds, beside a copy within the GPU that moves as many bytes;
     matrix products (cuBLASLt, as kernels/cuda/product.cu calls it) beside cublasGemmEx,
     and those that come with GELU beside the same without it;
     attention beside one matrix product of as many operations.

     gpu_kernels [--device cuda|cpu] [--dtypes f32,tf32,bf16] [--sizes 124M|45M|tiny] [--rounds N]

   Both take turns, round by round; the share is the bound's time over the kernel's, of the
   medians, and of the rounds that had the least and the most. cpu is to try the benchmark. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu_place.h"

enum { ROUNDS_MAX = 101, TIMES_MAX = 200, NOISE = 1 << 20 };

typedef struct sizes {
	const char *name;
	int64_t batch, length, heads, width, vocab, params;
} sizes;

static const sizes known_sizes[] = {
	{ "124M", 16, 1024, 12, 768, 50304, 124475904 },
	{ "45M", 16, 1024, 8, 512, 50304, 45194240 },
	{ "tiny", 2, 64, 2, 64, 512, 50000 },
};
enum { SIZES = sizeof(known_sizes) / sizeof(known_sizes[0]) };

static struct { const char *name; dk_type type; } types[] = {
	{ "f32", DK_F32 }, { "tf32", DK_TF32 }, { "bf16", DK_MIXED } };
enum { TYPES = sizeof(types) / sizeof(types[0]) };

/* What a case works on, of the largest that a case wants. */
static struct memory {
	const sizes *s;
	int64_t rows;
	bool mixed;
	float *small[3];              /* tensors of [rows, width] */
	float *wide[3];               /* [rows, 4 width], at least [params] of bf16 */
	float *weight, *product;      /* [vocab, width], [rows, vocab] */
	float *params[4];             /* f32: parameters, gradients, Adam's two moments */
	float *statistics[2], *gains[2], *gradients[2]; /* [rows * heads], [4 width] twice */
	double *sums;
	int32_t *targets;             /* [rows], below vocab */
	void *copies[2];
	size_t copy_bytes;            /* of each */
} memory;

static bench_place place;
static int rounds = 7;

/* ---- kernels ------------------------------------------------------------------------------- */

static void layernorm_forward(const void *unused)
{
	(void)unused;
	dk_layernorm_forward(memory.small[0], memory.statistics[0], memory.statistics[1], memory.small[1],
	                     memory.gains[0], memory.gains[1], memory.rows, memory.s->width);
}

static void layernorm_backward(const void *unused)
{
	(void)unused;
	dk_layernorm_backward(memory.small[2], memory.gradients[0], memory.gradients[1], memory.small[0],
	                      memory.small[1], memory.statistics[0], memory.statistics[1], memory.gains[0],
	                      memory.rows, memory.s->width);
}

static void gelu_forward(const void *unused)
{
	(void)unused;
	dk_gelu_forward(memory.wide[0], memory.wide[1], memory.rows * 4 * memory.s->width);
}

static void gelu_backward(const void *unused)
{
	(void)unused;
	dk_gelu_backward(memory.wide[0], memory.wide[1], memory.rows * 4 * memory.s->width);
}

static void adamw(const void *unused)
{
	const dk_update_args args = { .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,
		.weight_decay = 0.1, .step = 10, .grad_scale = 1, .rounded = memory.mixed ? (uint16_t *)memory.wide[0] : NULL };

	(void)unused;
	dk_update(memory.params[0], memory.params[1], memory.params[2], memory.params[3], memory.s->params, &args);
}

static void to_bf16(const void *unused)
{
	(void)unused;
	dk_to_bf16((uint16_t *)memory.wide[0], memory.params[0], memory.s->params);
}

static void from_bf16(const void *unused)
{
	(void)unused;
	dk_from_bf16(memory.params[1], (const uint16_t *)memory.wide[0], memory.s->params);
}

static void norm(const void *unused)
{
	(void)unused;
	dk_squares_at(memory.sums, &(dk_array){ memory.params[1], memory.s->params }, 1, DK_PIECE_MAX);
}

static void cross_entropy(const void *unused)
{
	(void)unused;
	dk_cross_entropy_loss(memory.sums, memory.product, memory.targets, memory.rows, memory.s->vocab);
}

static void attention_forward(const void *unused)
{
	(void)unused;
	dk_attention_forward(memory.small[0], memory.statistics[0], memory.wide[1], memory.s->batch,
	                     memory.s->length, memory.s->heads, memory.s->width);
}

static void attention_backward(const void *unused)
{
	(void)unused;
	dk_attention_backward(memory.wide[0], memory.small[1], memory.wide[1], memory.small[0],
	                      memory.statistics[0], memory.s->batch, memory.s->length, memory.s->heads,
	                      memory.s->width);
}

static void product(const void *args)
{
	dk_gemm(args);
}

static void gelu_product(const void *unused)
{
	(void)unused;
	dk_linear_gelu_forward(memory.wide[0], memory.wide[2], memory.small[0], memory.weight, memory.small[2],
	                       memory.rows, memory.s->width, 4 * memory.s->width);
}

static void gelu_slope_product(const void *unused)
{
	(void)unused;
	dk_linear_gelu_backward(memory.wide[0], memory.small[0], memory.weight, memory.wide[1], memory.rows,
	                        4 * memory.s->width, memory.s->width);
}

/* ---- what bounds them ---------------------------------------------------------------------- */

static void copy(const void *bytes)
{
	place.copy(memory.copies[0], memory.copies[1], *(const size_t *)bytes / 2); /* read, and written */
}

static void other_product(const void *args)
{
	place.product(args);
}

/* ---- measuring ----------------------------------------------------------------------------- */

typedef struct side {
	void (*work)(const void *argument);
	const void *argument;
	int times;
	double seconds[ROUNDS_MAX];
} side;

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(const double *numbers)
{
	double sorted[ROUNDS_MAX] = { 0 };

	memcpy(sorted, numbers, (size_t)rounds * sizeof(*sorted));
	qsort(sorted, (size_t)rounds, sizeof(*sorted), by_size);
	return (sorted[(rounds - 1) / 2] + sorted[rounds / 2]) / 2;
}

/* So often that events measure it: 5 ms. */
static void choose_times(side *s)
{
	(void)place.time(s->work, s->argument, 2);
	const double seconds = place.time(s->work, s->argument, 1);
	const double times = seconds > 0 ? 5e-3 / seconds : TIMES_MAX;

	s->times = times < 1 ? 1 : times > TIMES_MAX ? TIMES_MAX : (int)times;
}

static double extreme(const double *numbers, bool largest)
{
	double found = numbers[0];

	for (int i = 1; i < rounds; i++)
		if (largest ? numbers[i] > found : numbers[i] < found)
			found = numbers[i];
	return found;
}

/* `amount` is what both move, or compute. */
static void print_row(const char *name, double amount, const char *unit, const side *own, const side *bound)
{
	double shares[ROUNDS_MAX] = { 0 };
	const double seconds = median(own->seconds), best = median(bound->seconds);

	for (int i = 0; i < rounds; i++)
		shares[i] = bound->seconds[i] / own->seconds[i];
	printf("%-43s  %10.1f  %10.1f  %10.1f  %9.4g  %9.4g %-7s  %5.0f%%  %5.0f%% .. %.0f%%\n", name, seconds * 1e6,
	       extreme(own->seconds, false) * 1e6, extreme(own->seconds, true) * 1e6, amount / seconds, amount / best,
	       unit, best / seconds * 100, extreme(shares, false) * 100, extreme(shares, true) * 100);
	fflush(stdout);
}

static void measure(const char *name, double amount, const char *unit, side own, side bound)
{
	choose_times(&own);
	choose_times(&bound);
	for (int i = 0; i < rounds; i++) {
		own.seconds[i] = place.time(own.work, own.argument, own.times);
		bound.seconds[i] = place.time(bound.work, bound.argument, bound.times);
	}
	print_row(name, amount, unit, &own, &bound);
}

static void measure_memory(const char *name, void (*work)(const void *), double bytes)
{
	const size_t moved = (size_t)bytes;

	if (moved / 2 > memory.copy_bytes) {
		fprintf(stderr, "gpu_kernels: %s moves more than was thought of\n", name);
		exit(EXIT_FAILURE);
	}
	measure(name, bytes / 1e9, "GB/s", (side){ .work = work }, (side){ .work = copy, .argument = &moved });
}

/* Beside it, one product of as many operations, [rows, width] by [width, n]. */
static void measure_attention(const char *name, void (*work)(const void *), int64_t n)
{
	const dk_gemm_args same = { .m = memory.rows, .n = n, .k = memory.s->width, .a = memory.small[2],
		.lda = memory.s->width, .b = memory.weight, .ldb = n, .c = memory.product, .ldc = n };

	measure(name, 2e-12 * (double)memory.rows * (double)n * (double)memory.s->width, "TFLOP/s", (side){ .work = work },
	        (side){ .work = product, .argument = &same });
}

/* [rows, inputs] by [inputs, outputs], and the two products of its backward: in bf16 also that
   of parameters, which training has in f32, as cublasGemmEx beside it. */
static void measure_products(const char *layer, float *in, float *out, int64_t inputs, int64_t outputs)
{
	const int64_t rows = memory.rows;
	const struct { const char *way; dk_gemm_args args; } products[] = {
		{ "forward", { .m = rows, .n = outputs, .k = inputs, .a = in, .lda = inputs, .b = memory.weight,
			       .ldb = outputs, .c = out, .ldc = outputs } },
		{ memory.mixed ? "of params in bf16" : "of params", { .transpose_a = true, .m = inputs, .n = outputs, .k = rows, .a = in, .lda = inputs,
				 .b = out, .ldb = outputs, .c = memory.params[3], .ldc = outputs } },
		{ "of input", { .transpose_b = true, .m = rows, .n = inputs, .k = outputs, .a = out, .lda = outputs,
				.b = memory.weight, .ldb = outputs, .c = in, .ldc = inputs } },
	};
	char name[64];

	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "product %s, %s", layer, products[i].way);
		measure(name, 2e-12 * (double)rows * (double)inputs * (double)outputs, "TFLOP/s",
		        (side){ .work = product, .argument = &products[i].args },
		        (side){ .work = other_product, .argument = &products[i].args });
	}
}

static void measure_gelu_products(void)
{
	const int64_t width = memory.s->width, wide = 4 * width;
	const dk_gemm_args forward = { .m = memory.rows, .n = wide, .k = width, .a = memory.small[0], .lda = width,
		.b = memory.weight, .ldb = wide, .c = memory.wide[0], .ldc = wide };
	const dk_gemm_args backward = { .transpose_b = true, .m = memory.rows, .n = wide, .k = width,
		.a = memory.small[0], .lda = width, .b = memory.weight, .ldb = width, .c = memory.wide[0], .ldc = wide };
	const double amount = 2e-12 * (double)memory.rows * (double)width * (double)wide;

	measure("product with bias and GELU", amount, "TFLOP/s", (side){ .work = gelu_product },
	        (side){ .work = product, .argument = &forward });
	measure("product with GELU's slope", amount, "TFLOP/s", (side){ .work = gelu_slope_product },
	        (side){ .work = product, .argument = &backward });
}

/* ---- memory -------------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Noise: a GPU is slower where bits change. `narrow`: of bf16, else of f32. */
static void *allocate(int64_t elements, bool narrow)
{
	static float noise[NOISE];
	static uint16_t narrowed[NOISE];
	const size_t each = narrow ? sizeof(uint16_t) : sizeof(float), bytes = (size_t)elements * each;
	const size_t pass = NOISE * each;
	char *there = place.alloc(bytes);
	uint64_t state = 1;

	for (int i = 0; i < NOISE; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		noise[i] = (float)(int32_t)(state >> 32) * 0x1p-33f;
	}
	dk_queue *before = dk_use(NULL);
	dk_to_bf16(narrowed, noise, NOISE);
	dk_use(before);
	for (size_t at = 0; at < bytes; at += pass)
		dk_copy(there + at, narrow ? (const void *)narrowed : noise, bytes - at < pass ? bytes - at : pass);
	return there;
}

static void allocate_targets(void)
{
	int32_t *targets = malloc((size_t)memory.rows * sizeof(*targets));

	if (targets == NULL) {
		fprintf(stderr, "gpu_kernels: out of memory\n");
		exit(EXIT_FAILURE);
	}
	for (int64_t i = 0; i < memory.rows; i++)
		targets[i] = (int32_t)(i * 7919 % memory.s->vocab);
	memory.targets = place.alloc((size_t)memory.rows * sizeof(*targets));
	dk_copy(memory.targets, targets, (size_t)memory.rows * sizeof(*targets));
	dk_largest(memory.params[0], 1); /* waits */
	free(targets);
}

static void allocate_all(const sizes *s)
{
	const int64_t tensor = s->batch * s->length * s->width;
	const size_t of_adamw = (size_t)s->params * (8 * sizeof(float) + sizeof(uint16_t));

	memory = (struct memory){ .s = s, .rows = s->batch * s->length, .mixed = place.type == DK_MIXED };
	for (int i = 0; i < 3; i++) {
		memory.small[i] = allocate(tensor, memory.mixed);
		memory.wide[i] = allocate(larger(4 * tensor, s->params), memory.mixed);
	}
	memory.weight = allocate(s->vocab * s->width, memory.mixed);
	memory.product = allocate((int64_t)dk_classifier_work(memory.rows, s->vocab), false);
	for (int i = 0; i < 4; i++)
		memory.params[i] = allocate(s->params, false);
	for (int i = 0; i < 2; i++) {
		memory.statistics[i] = allocate(memory.rows * s->heads, false);
		memory.gains[i] = allocate(s->width, memory.mixed);
		memory.gradients[i] = allocate(s->width, false);
	}
	memory.sums = allocate(2 * (s->params / DK_PIECE_MAX + 1), false);
	allocate_targets();
	memory.copy_bytes = (size_t)larger(memory.rows * s->vocab * (int64_t)sizeof(float), (int64_t)of_adamw / 2 + 1);
	for (int i = 0; i < 2; i++)
		memory.copies[i] = allocate((int64_t)(memory.copy_bytes / sizeof(float)) + 1, false);
}

static void free_all(void)
{
	for (int i = 0; i < 4; i++)
		place.free(memory.params[i]);
	for (int i = 0; i < 3; i++) {
		place.free(memory.small[i]);
		place.free(memory.wide[i]);
	}
	for (int i = 0; i < 2; i++) {
		place.free(memory.statistics[i]);
		place.free(memory.gains[i]);
		place.free(memory.gradients[i]);
		place.free(memory.copies[i]);
	}
	place.free(memory.weight);
	place.free(memory.product);
	place.free(memory.sums);
	place.free(memory.targets);
}

/* ---- all of one type ----------------------------------------------------------------------- */

static void measure_all(void)
{
	const double params = (double)memory.s->params, each = memory.mixed ? 2 : 4;
	const double tensor = (double)memory.rows * (double)memory.s->width * each;
	const int64_t width = memory.s->width;

	measure_memory("layer norm, forward", layernorm_forward, 2 * tensor);
	measure_memory("layer norm, backward", layernorm_backward, 4 * tensor);
	measure_memory("GELU, forward", gelu_forward, 8 * tensor);
	measure_memory("GELU, backward", gelu_backward, 12 * tensor);
	measure_memory("AdamW", adamw, params * (32 + (memory.mixed ? 2 : 0)));
	measure_memory("cast, f32 to bf16", to_bf16, params * 6);
	measure_memory("cast, bf16 to f32", from_bf16, params * 6);
	measure_memory("sum of squares", norm, params * 4);
	if (!memory.mixed) /* in bf16 the classifier has it inside */
		measure_memory("cross-entropy with its gradient", cross_entropy,
		               (double)memory.rows * (double)memory.s->vocab * 2 * sizeof(float));
	measure_attention("attention, forward", attention_forward, memory.s->length);
	measure_attention("attention, backward", attention_backward, memory.s->length * 5 / 2);
	measure_products("to 3 widths", memory.small[0], memory.wide[0], width, 3 * width);
	measure_products("to 4 widths", memory.small[0], memory.wide[0], width, 4 * width);
	measure_products("from 4 widths", memory.wide[0], memory.small[0], 4 * width, width);
	measure_gelu_products();
	measure_products("to the vocabulary", memory.small[0], memory.product, width, memory.s->vocab);
}

static bool open_place(dk_type type, bool on_gpu, const char **why)
{
	if (!on_gpu)
		return bench_place_open_host(type, &place, why);
#ifdef HAVE_CUDA_KERNELS
	return bench_place_open_gpu(type, &place, why);
#else
	*why = "this build has no kernels for GPUs";
	return false;
#endif
}

static bool measure_type(int type, bool on_gpu, const sizes *s)
{
	const char *why = NULL;

	if (!open_place(types[type].type, on_gpu, &why)) {
		fprintf(stderr, "gpu_kernels: %s is left out: %s\n", types[type].name, why);
		return false;
	}
	dk_queue *before = dk_use(place.queue);
	allocate_all(s);
	printf("\n%s, %s, %ld sequences of %ld, width %ld, %d rounds\n%-43s  %10s  %10s  %10s  %9s  %9s %-7s  %6s  %s\n",
	       place.name, types[type].name, (long)s->batch, (long)s->length, (long)s->width, rounds, "", "median us",
	       "min", "max", "rate", "bound", "", "share", "of rounds");
	measure_all();
	const char *failure = dk_failure();
	if (failure != NULL)
		fprintf(stderr, "gpu_kernels: %s: %s\n", types[type].name, failure);
	dk_use(before);
	free_all();
	place.close();
	return failure == NULL;
}

/* ---- options ------------------------------------------------------------------------------- */

static const sizes *find_sizes(const char *name)
{
	for (int i = 0; i < SIZES; i++)
		if (strcmp(known_sizes[i].name, name) == 0)
			return &known_sizes[i];
	return NULL;
}

static bool in_list(const char *list, const char *name)
{
	const size_t length = strlen(name);

	for (const char *at = list; at != NULL; at = strchr(at, ','), at = at != NULL ? at + 1 : NULL)
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
			return true;
	return false;
}

static int usage(void)
{
	fprintf(stderr, "usage: gpu_kernels [--device cuda|cpu] [--dtypes f32,tf32,bf16] [--sizes 124M|45M|tiny] "
	        "[--rounds N]\n");
	return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "device", required_argument, NULL, 'd' },
		{ "dtypes", required_argument, NULL, 't' }, { "sizes", required_argument, NULL, 's' },
		{ "rounds", required_argument, NULL, 'r' }, { 0 } };
	const char *device = "cuda", *dtypes = "f32,tf32,bf16";
	const sizes *s = &known_sizes[0];
	bool fine = true, any = false;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'd': device = optarg; break;
		case 't': dtypes = optarg; break;
		case 's': s = find_sizes(optarg); break;
		case 'r': rounds = atoi(optarg); break;
		default: return usage();
		}
	}
	const bool on_gpu = strcmp(device, "cuda") == 0;
	if (optind < argc || s == NULL || rounds < 1 || rounds > ROUNDS_MAX || (!on_gpu && strcmp(device, "cpu") != 0))
		return usage();
	for (int i = 0; i < TYPES; i++) {
		if (!in_list(dtypes, types[i].name))
			continue;
		fine = measure_type(i, on_gpu, s) && fine;
		any = true;
	}
	return fine && any ? EXIT_SUCCESS : EXIT_FAILURE;
}
