/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/measure.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels.h"
#include "table.h"

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- links ---- */

enum {
	TAG_WORD = 1,
	TAG_BULK = 2,
	TAG_DONE = 3,
	PINGS_LEAST = 4,         /* however long they take; */
	PINGS = 12,              /* in twice the time of the measurement; */
	PINGS_MOST = 60,         /* in a quarter of it */
	BULKS = 4,               /* of which the first one only tells how large the others are to be */
	BULK_FIRST = 64 << 10,
	BULK_MOST = 8 << 20,
};

static const double BULK_SECONDS = 3e-3;

struct preflight_lines {
	ddp_comm *comm;
	int self;
	char *out, *in; /* of BULK_MOST bytes */
};

/* By a word the leader, the node with the lower number, tells its peer what to do next; the peer answers by another. */
struct word {
	int64_t bytes;   /* to be exchanged next; 0: another word comes; below 0: the end */
	double clock;    /* of the peer */
	double waited;   /* at the end, of the peer: as in struct preflight_link */
};

/* Seconds for which the thread could run and got no processor; 0: the kernel does not tell. */
static double waited_by(const char *thread)
{
	char path[64], text[128];
	unsigned long long waited = 0;
	ssize_t got = -1;
	int file;

	snprintf(path, sizeof(path), "/proc/self/task/%.20s/schedstat", thread);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file >= 0) {
		got = read(file, text, sizeof(text) - 1);
		close(file);
	}
	text[got > 0 ? got : 0] = '\0';
	return sscanf(text, "%*u %llu", &waited) == 1 ? (double)waited * 1e-9 : 0;
}

/* All threads of the process together: a thread of libddp's may move the messages. */
static double waited(void)
{
	DIR *threads = opendir("/proc/self/task");
	struct dirent *entry;
	double sum = 0;

	while (threads != NULL && (entry = readdir(threads)) != NULL)
		if (isdigit((unsigned char)entry->d_name[0]))
			sum += waited_by(entry->d_name);
	if (threads != NULL)
		closedir(threads);
	return sum;
}

/* A measurement begins with these values of the clock and of the kernel's count. */
struct span {
	double begin, waited;
};

static struct span begin_span(void)
{
	return (struct span){ now(CLOCK_MONOTONIC), waited() };
}

static double waited_since(const struct span *span)
{
	double seconds = now(CLOCK_MONOTONIC) - span->begin;

	return seconds > 0 ? (waited() - span->waited) / seconds : 0;
}

struct preflight_lines *preflight_lines_open(ddp_comm *links)
{
	struct preflight_lines *lines = calloc(1, sizeof(*lines));

	if (lines == NULL)
		return NULL;
	lines->comm = links;
	lines->self = ddp_comm_rank(links);
	lines->out = malloc(BULK_MOST);
	lines->in = malloc(BULK_MOST);
	if (lines->out == NULL || lines->in == NULL) {
		preflight_lines_close(lines);
		return NULL;
	}
	memset(lines->out, 1, BULK_MOST);
	memset(lines->in, 0, BULK_MOST);
	return lines;
}

void preflight_lines_close(struct preflight_lines *lines)
{
	if (lines == NULL)
		return;
	free(lines->out);
	free(lines->in);
	free(lines);
}

/* Both directions at once, as ranks use a link in a collective. */
static ddp_status exchange(struct preflight_lines *lines, int peer, int64_t bytes)
{
	const ddp_operation send = { .kind = DDP_SEND, .send = lines->out, .count = (size_t)bytes, .type = DDP_U8,
		                     .root = peer, .tag = TAG_BULK };
	const ddp_operation recv = { .kind = DDP_RECV, .recv = lines->in, .count = (size_t)bytes, .type = DDP_U8, .root = peer,
		                     .tag = TAG_BULK };
	ddp_request *out, *in;
	ddp_status status, second;

	if ((status = ddp_issue(lines->comm, &recv, &in)) != DDP_OK)
		return status;
	if ((status = ddp_issue(lines->comm, &send, &out)) != DDP_OK) {
		ddp_request_free(in);
		return status;
	}
	second = ddp_wait(out);
	status = ddp_wait(in);
	return status != DDP_OK ? status : second;
}

/* One word to the peer and one back. */
static ddp_status ping(struct preflight_lines *lines, int peer, int64_t bytes, struct preflight_link *link)
{
	struct word word = { .bytes = bytes };
	double begin = now(CLOCK_MONOTONIC), clock = now(CLOCK_REALTIME), time;
	ddp_status status = ddp_send(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);

	if (status == DDP_OK)
		status = ddp_recv(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
	time = now(CLOCK_MONOTONIC) - begin;
	if (status == DDP_OK && (link->latency <= 0 || time / 2 < link->latency)) {
		link->latency = time / 2;
		link->offset = word.clock - (clock + time / 2);
		link->doubt = time / 2;
	}
	link->waited = word.waited;
	return status;
}

static int64_t bulk_for(double seconds)
{
	int64_t bytes = BULK_FIRST;

	while (bytes < BULK_MOST && seconds < BULK_SECONDS / 2) {
		bytes *= 2;
		seconds *= 2;
	}
	return bytes;
}

static bool wants_ping(int done, double seconds, double limit)
{
	return done < PINGS_LEAST || (done < PINGS && seconds < 2 * limit) || (done < PINGS_MOST && seconds < limit / 4);
}

static ddp_status lead_pings(struct preflight_lines *lines, int peer, double limit, struct preflight_link *link)
{
	struct preflight_link unused = *link;
	double begin = now(CLOCK_MONOTONIC);
	ddp_status status = ping(lines, peer, 0, &unused); /* it may open a connection */

	for (int i = 0; status == DDP_OK && wants_ping(i, now(CLOCK_MONOTONIC) - begin, limit); i++)
		status = ping(lines, peer, 0, link);
	return status;
}

/* The first one is too short to tell: buffers on the way may take all of it. */
static ddp_status lead_bulks(struct preflight_lines *lines, int peer, double end, struct preflight_link *link)
{
	struct preflight_link unused = *link;
	int64_t bytes = BULK_FIRST;
	ddp_status status = DDP_OK;

	for (int i = 0; status == DDP_OK && i < BULKS && (i < 2 || now(CLOCK_MONOTONIC) < end); i++) {
		double time;
		char done;
		status = ping(lines, peer, bytes, &unused);
		time = now(CLOCK_MONOTONIC);
		if (status == DDP_OK)
			status = exchange(lines, peer, bytes);
		/* A send is complete before its bytes have arrived, so the peer says when it has them. */
		if (status == DDP_OK)
			status = ddp_recv(lines->comm, &done, sizeof(done), DDP_U8, peer, TAG_DONE);
		time = now(CLOCK_MONOTONIC) - time;
		if (i == 0)
			bytes = bulk_for(time);
		else if (status == DDP_OK && (double)bytes / time > link->bandwidth)
			link->bandwidth = (double)bytes / time;
	}
	return status;
}

static ddp_status lead(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	const struct span span = begin_span();
	double limit = ms * 1e-3, end = span.begin + limit, own;
	struct preflight_link last = *link;
	ddp_status status = lead_pings(lines, peer, limit, link);

	if (status == DDP_OK)
		status = lead_bulks(lines, peer, end, link);
	own = waited_since(&span);
	if (status == DDP_OK)
		status = ping(lines, peer, -1, &last);
	link->waited = own > last.waited ? own : last.waited;
	return status;
}

static ddp_status follow(struct preflight_lines *lines, int peer)
{
	const struct span span = begin_span();
	struct word word = { 0, 0, 0 };
	const char done = 1;
	ddp_status status = DDP_OK;

	while (status == DDP_OK && word.bytes >= 0) {
		status = ddp_recv(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		word.clock = now(CLOCK_REALTIME);
		if (word.bytes < 0)
			word.waited = waited_since(&span);
		if (status == DDP_OK)
			status = ddp_send(lines->comm, &word, sizeof(word), DDP_U8, peer, TAG_WORD);
		if (status == DDP_OK && word.bytes > 0)
			status = exchange(lines, peer, word.bytes < BULK_MOST ? word.bytes : BULK_MOST);
		if (status == DDP_OK && word.bytes > 0)
			status = ddp_send(lines->comm, &done, sizeof(done), DDP_U8, peer, TAG_DONE);
	}
	return status;
}

ddp_status preflight_lines_measure(struct preflight_lines *lines, int peer, int ms, struct preflight_link *link)
{
	bool leads = lines->self < peer;

	*link = (struct preflight_link){ .a = leads ? lines->self : peer, .b = leads ? peer : lines->self };
	return leads ? lead(lines, peer, ms, link) : follow(lines, peer);
}

/* ---- work ---- */

enum {
	SIDE = 256,                /* of a matrix, for one thread: 33 million operations */
	SIDE_MOST = 2048,
	SIDE_GPU = 4096,
	TRIAD = 4 << 20,           /* elements of each of three arrays, more than most caches hold for a core */
	TRIAD_SLICE = 1 << 18,     /* elements of a slice, so that a slice is shorter than a time slice of the kernel */
	BYTES_GPU = 256 << 20,
	SIDE_SMALL = 128,
	BYTES_SMALL = 1 << 20,
	LEAST_SLICES = 3,
};

struct preflight_bench {
	float *a, *b, *c;          /* matrices */
	int side;
	float *x, *y, *z;          /* arrays */
	int64_t next;              /* where the next slice of the arrays begins */
	ddp_comm *world;           /* NULL: no GPU */
	struct dk_queue *queue;
	float *gpu;                /* two matrices, or two halves to copy */
	int64_t gpu_side, gpu_bytes;
	double sink;
};

/* Also touches it, so that the memory is the node's that the rank runs on. */
static float *filled(int64_t count, float value)
{
	float *array = malloc((size_t)count * sizeof(*array));

	for (int64_t i = 0; array != NULL && i < count; i++)
		array[i] = value;
	return array;
}

static bool open_gpu(struct preflight_bench *bench, ddp_context *context, bool small)
{
	void *memory;

	bench->gpu_side = small ? SIDE_SMALL : SIDE_GPU;
	bench->gpu_bytes = small ? BYTES_SMALL : BYTES_GPU;
	if (ddp_kernels_open(context, DK_TABLE_VERSION, DK_TF32, NULL, &bench->queue) != DDP_OK ||
	    ddp_mem_alloc_on(ddp_world(context), DDP_MEMORY_DEVICE, (size_t)bench->gpu_bytes, &memory) != DDP_OK)
		return false;
	bench->world = ddp_world(context);
	bench->gpu = memory;
	return true;
}

struct preflight_bench *preflight_bench_open(ddp_context *context, int threads, bool gpu, bool small)
{
	struct preflight_bench *bench = calloc(1, sizeof(*bench));
	int64_t n;

	if (bench == NULL) {
		ddp_set_error("no memory for the measurements");
		return NULL;
	}
	bench->side = SIDE;
	/* The same time for each thread. */
	while (bench->side < SIDE_MOST &&
	       (int64_t)bench->side * bench->side * bench->side < (int64_t)threads * SIDE * SIDE * SIDE)
		bench->side += SIDE / 2;
	n = (int64_t)bench->side * bench->side;
	bench->a = filled(n, 1);
	bench->b = filled(n, 0.5f);
	bench->c = filled(n, 0);
	bench->x = filled(TRIAD, 1);
	bench->y = filled(TRIAD, 2);
	bench->z = filled(TRIAD, 3);
	if (bench->a == NULL || bench->b == NULL || bench->c == NULL || bench->x == NULL || bench->y == NULL ||
	    bench->z == NULL) {
		ddp_set_error("no memory for the measurements");
		preflight_bench_close(bench);
		return NULL;
	}
	if (gpu && !open_gpu(bench, context, small)) {
		preflight_bench_close(bench);
		return NULL;
	}
	return bench;
}

void preflight_bench_close(struct preflight_bench *bench)
{
	if (bench == NULL)
		return;
	if (bench->gpu != NULL)
		(void)ddp_mem_free(bench->world, bench->gpu);
	ddp_kernels_close(bench->queue);
	free(bench->a);
	free(bench->b);
	free(bench->c);
	free(bench->x);
	free(bench->y);
	free(bench->z);
	free(bench);
}

bool preflight_bench_has(const struct preflight_bench *bench, enum preflight_work work)
{
	return work < PREFLIGHT_GPU_PRODUCT || bench->queue != NULL;
}

static void multiply(int64_t side, const float *a, const float *b, float *c)
{
	const dk_gemm_args args = {
		.m = side, .n = side, .k = side, .a = a, .lda = side, .b = b, .ldb = side, .c = c, .ldc = side
	};

	dk_gemm(&args);
}

static void triad(void *arg, int64_t first, int64_t last)
{
	struct preflight_bench *bench = arg;
	float *restrict x = bench->x + bench->next;
	const float *restrict y = bench->y + bench->next, *restrict z = bench->z + bench->next;

	for (int64_t i = first; i < last; i++)
		x[i] = y[i] + 0.5f * z[i];
}

/* A function with a result waits for the queue's work. */
static void wait_for_queue(struct preflight_bench *bench)
{
	bench->sink += (double)dk_largest(bench->gpu, 1);
}

/* Does one slice, and returns its operations or bytes. */
static double slice(struct preflight_bench *bench, enum preflight_work work)
{
	int64_t side = work == PREFLIGHT_GPU_PRODUCT ? bench->gpu_side : bench->side;

	switch (work) {
	case PREFLIGHT_PRODUCT:
		multiply(side, bench->a, bench->b, bench->c);
		return 2.0 * (double)side * (double)side * (double)side;
	case PREFLIGHT_MEMORY:
		dk_parallel(TRIAD_SLICE, 1 << 12, triad, bench);
		bench->next = (bench->next + TRIAD_SLICE) % TRIAD;
		return 3.0 * TRIAD_SLICE * sizeof(float);
	case PREFLIGHT_GPU_PRODUCT:
		multiply(side, bench->gpu, bench->gpu, bench->gpu + side * side);
		wait_for_queue(bench);
		return 2.0 * (double)side * (double)side * (double)side;
	case PREFLIGHT_GPU_MEMORY:
		dk_copy(bench->gpu, bench->gpu + bench->gpu_bytes / 2 / (int64_t)sizeof(float), (size_t)bench->gpu_bytes / 2);
		wait_for_queue(bench);
		return (double)bench->gpu_bytes;
	case PREFLIGHT_WORKS:
		break;
	}
	return 0;
}

struct preflight_figure preflight_bench_run(struct preflight_bench *bench, enum preflight_work work, int ms)
{
	struct preflight_figure figure = { 0, 0 };
	double begin, cpu, done = 0, last;
	dk_queue *before;

	if (!preflight_bench_has(bench, work))
		return figure;
	before = dk_use(work < PREFLIGHT_GPU_PRODUCT ? NULL : bench->queue);
	if (work >= PREFLIGHT_GPU_PRODUCT)
		dk_zero(bench->gpu, bench->gpu_bytes / (int64_t)sizeof(float));
	begin = last = now(CLOCK_MONOTONIC);
	cpu = now(CLOCK_THREAD_CPUTIME_ID);
	for (int i = 0; i < LEAST_SLICES || last < begin + ms * 1e-3; i++) {
		done += slice(bench, work);
		last = now(CLOCK_MONOTONIC);
	}
	dk_use(before);
	figure.rate = done / (last - begin);
	figure.share = (now(CLOCK_THREAD_CPUTIME_ID) - cpu) / (last - begin);
	return figure;
}
