#include "tests/support/comm_cases.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"
#include "tests/support/nccl_standin.h"

enum { IN_FLIGHT = 4, GUARD = 64, ARENA_BYTES = 16 << 20, TAGS = 3 };

/* One random operation: the same on all ranks but for `shared` and buffers. */
typedef struct test_case {
	ddp_collective c;
	unsigned int seed;
	bool in_place;
	bool vector;
	size_t counts[TEST_RANKS_MAX], recv_counts[TEST_RANKS_MAX];
	size_t pairs[TEST_RANKS_MAX][TEST_RANKS_MAX]; /* all_to_all's v-form: from, to */
	double scales[TEST_RANKS_MAX];
	unsigned char *send_block, *recv_block;       /* with guards */
	bool send_heap, recv_heap;
	size_t send_count, recv_count;
	void *send_device, *recv_device;              /* copies of the blocks; NULL: on the host */
	bool read_back;                               /* is enqueued */
	ddp_request *request;
} test_case;

/* A message to a rank some places on, and one from a rank as far behind. */
typedef struct message {
	ddp_collective c;
	unsigned char *data;
	void *device_data; /* NULL: on the host */
	ddp_request *request;
} message;

typedef struct bench {
	ddp_comm *comm;
	int rank, size;
	char *arena;
	size_t arena_used;
	unsigned int common, own; /* generators: the same on all ranks; this rank's */
	size_t most;
	int lanes; /* that operations are in */
	ddp_device *device;           /* NULL: none */
	ddp_device_queue *streams[2]; /* of the program */
	bool nccl;                    /* the stand-in runs what is on the device */
} bench;

static unsigned int roll(unsigned int *state, unsigned int sides)
{
	*state = *state * 1664525u + 1013904223u;
	return (*state >> 8) % sides;
}

/* ---- values --------------------------------------------------------------------- */

/* What a case expects is computed from what this rank alone has: nothing that the thread
   sanitizer has to watch, and for most of an element's time. */
#define UNWATCHED __attribute__((no_sanitize("thread")))

/* Element i of rank r's input: small, so that sums and products stay exact. */
UNWATCHED static double value(const test_case *t, int rank, size_t i)
{
	unsigned int x = t->seed * 2654435761u + (unsigned int)rank * 40503u + (unsigned int)i * 2246822519u;

	x ^= x >> 15;
	if (t->c.op == DDP_PROD)
		return 1 + (x >> 4) % 2;
	if (t->c.type == DDP_U8)
		return (x >> 4) % 16;
	return (int)((x >> 4) % 17) - 8;
}

UNWATCHED static double to_grid(double x, int fraction_bits, int least_exponent)
{
	if (x == 0 || !isfinite(x))
		return x;
	int exponent = ilogb(x) < least_exponent ? least_exponent : ilogb(x);
	double unit = ldexp(1, exponent - fraction_bits);

	return rint(x / unit) * unit;
}

/* The nearest value that the type holds. */
UNWATCHED static double held(ddp_type type, double x)
{
	switch (type) {
	case DDP_F32: return (float)x;
	case DDP_F16: return to_grid(x, 10, -14);
	case DDP_BF16: return to_grid(x, 7, -126);
	case DDP_I32: return (double)(int32_t)(int64_t)x;
	case DDP_U8: return (double)(uint8_t)(int64_t)x;
	default: return x;
	}
}

static uint16_t encode16(double x, int fraction_bits, int bias)
{
	if (x == 0)
		return 0;
	int exponent = ilogb(x);
	unsigned int fraction = (unsigned int)(ldexp(fabs(x), fraction_bits - exponent)) &
		((1u << fraction_bits) - 1);

	return (uint16_t)((x < 0 ? 0x8000u : 0) | (unsigned int)(exponent + bias) << fraction_bits | fraction);
}

static double decode16(uint16_t bits, int fraction_bits, int bias)
{
	int exponent = (bits & 0x7fff) >> fraction_bits;
	double fraction = bits & ((1u << fraction_bits) - 1);
	double x = exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
		: ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);

	return (bits & 0x8000) != 0 ? -x : x;
}

static void put(ddp_type type, void *memory, size_t i, double x)
{
	switch (type) {
	case DDP_F32: ((float *)memory)[i] = (float)x; break;
	case DDP_F64: ((double *)memory)[i] = x; break;
	case DDP_F16: ((uint16_t *)memory)[i] = encode16(x, 10, 15); break;
	case DDP_BF16: ((uint16_t *)memory)[i] = encode16(x, 7, 127); break;
	case DDP_I32: ((int32_t *)memory)[i] = (int32_t)x; break;
	case DDP_I64: ((int64_t *)memory)[i] = (int64_t)x; break;
	case DDP_U8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
	}
}

static double get(ddp_type type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_F32: return ((const float *)memory)[i];
	case DDP_F64: return ((const double *)memory)[i];
	case DDP_F16: return decode16(((const uint16_t *)memory)[i], 10, 15);
	case DDP_BF16: return decode16(((const uint16_t *)memory)[i], 7, 127);
	case DDP_I32: return ((const int32_t *)memory)[i];
	case DDP_I64: return (double)((const int64_t *)memory)[i];
	case DDP_U8: return ((const uint8_t *)memory)[i];
	}
	return 0;
}

UNWATCHED static bool is_float(ddp_type type)
{
	return type == DDP_F32 || type == DDP_F64 || type == DDP_F16 || type == DDP_BF16;
}

/* Element i of the reduction over all ranks, computed plainly. */
UNWATCHED static double reduced(const bench *b, const test_case *t, size_t i)
{
	double result = 0;

	for (int r = 0; r < b->size; r++) {
		double x = value(t, r, i) * t->scales[r];
		if (!is_float(t->c.type))
			x = trunc(x);
		switch (r == 0 ? DDP_SUM : t->c.op) {
		case DDP_SUM:
		case DDP_AVG: result = r == 0 ? x : result + x; break;
		case DDP_PROD: result *= x; break;
		case DDP_MIN: result = x < result ? x : result; break;
		case DDP_MAX: result = x > result ? x : result; break;
		}
	}
	if (t->c.op == DDP_AVG) {
		result /= b->size;
		if (!is_float(t->c.type))
			result = trunc(result);
		else if (t->c.type != DDP_F64)
			result = (float)result;
	}
	return held(t->c.type, result);
}

/* ---- making a case ----------------------------------------------------------------- */

static size_t random_count(bench *b)
{
	switch (roll(&b->common, 8)) {
	case 0: return roll(&b->common, 3);
	case 1:
	case 2: return roll(&b->common, 64);
	case 3:
	case 4: return roll(&b->common, 3000);
	case 5:
	case 6: return roll(&b->common, (unsigned int)b->most / 4 + 1);
	default: return roll(&b->common, (unsigned int)b->most + 1);
	}
}

UNWATCHED static size_t sum(const size_t *counts, int n)
{
	size_t total = 0;

	for (int i = 0; i < n; i++)
		total += counts[i];
	return total;
}

static void choose_counts(bench *b, test_case *t)
{
	ddp_collective *c = &t->c;
	bool per_rank = c->kind >= DDP_REDUCE_SCATTER && c->kind <= DDP_ALL_TO_ALL;
	size_t count = random_count(b);

	t->vector = per_rank && roll(&b->common, 3) == 0;
	if (!per_rank) {
		c->count = c->kind == DDP_BARRIER ? 0 : count;
		return;
	}
	c->count = t->vector ? 0 : count / (size_t)b->size;
	for (int i = 0; i < b->size; i++) {
		t->counts[i] = t->vector ? roll(&b->common, (unsigned int)count / (unsigned int)b->size + 1) : c->count;
		t->recv_counts[i] = t->counts[i];
	}
	if (!t->vector)
		return;
	if (c->kind == DDP_ALL_TO_ALL) {
		for (int from = 0; from < b->size; from++) {
			for (int to = 0; to < b->size; to++)
				t->pairs[from][to] = roll(&b->common, (unsigned int)count / (unsigned int)b->size + 1);
		}
		for (int i = 0; i < b->size; i++) {
			t->counts[i] = t->pairs[b->rank][i];
			t->recv_counts[i] = t->pairs[i][b->rank];
		}
		c->recv_counts = t->recv_counts;
	}
	c->counts = t->counts;
}

static void choose_sizes(const bench *b, test_case *t)
{
	const ddp_collective *c = &t->c;
	bool root = c->root == b->rank;
	size_t mine = c->kind >= DDP_REDUCE_SCATTER && c->kind <= DDP_ALL_TO_ALL ? t->counts[b->rank] : c->count;
	size_t all = sum(t->counts, b->size);

	t->send_count = t->recv_count = mine;
	switch (c->kind) {
	case DDP_REDUCE: t->recv_count = root ? mine : 0; break;
	case DDP_BROADCAST: t->send_count = 0; break;
	case DDP_REDUCE_SCATTER: t->send_count = all; break;
	case DDP_ALL_GATHER: t->recv_count = all; break;
	case DDP_GATHER: t->recv_count = root ? all : 0; break;
	case DDP_SCATTER: t->send_count = root ? all : 0; break; /* in place: from the start */
	case DDP_ALL_TO_ALL: t->send_count = all; t->recv_count = sum(t->recv_counts, b->size); break;
	case DDP_BARRIER: t->send_count = t->recv_count = 0; break;
	default: break;
	}
}

/* A buffer in shared or private memory, between guards. */
static unsigned char *buffer(bench *b, size_t bytes, bool *heap)
{
	size_t whole = (bytes + 2 * GUARD + 63) / 64 * 64;
	unsigned char *block;

	*heap = roll(&b->own, 3) == 0 || b->arena_used + whole > ARENA_BYTES;
	/* Often all ranks use shared memory, which is another path. */
	if (roll(&b->common, 2) == 0 && b->arena_used + whole <= ARENA_BYTES)
		*heap = false;
	if (*heap) {
		block = malloc(whole);
		CHECK(block != NULL);
	} else {
		block = (unsigned char *)b->arena + b->arena_used;
		b->arena_used += whole;
	}
	memset(block, 0xa5, bytes + 2 * GUARD);
	return block;
}

static void fill(const bench *b, const test_case *t, void *memory)
{
	for (size_t i = 0; i < t->send_count; i++)
		put(t->c.type, memory, i, value(t, b->rank, i));
}

/* In place: the input lies where send NULL says. */
static void place_buffers(bench *b, test_case *t)
{
	ddp_collective *c = &t->c;
	size_t element = ddp_type_bytes(c->type);
	size_t bytes = (t->send_count > t->recv_count ? t->send_count : t->recv_count) * element;

	if (c->kind == DDP_BROADCAST) {
		t->recv_block = buffer(b, t->recv_count * element, &t->recv_heap);
		c->recv = t->recv_block + GUARD;
		t->send_count = b->rank == c->root ? c->count : 0;
		fill(b, t, c->recv);
		t->send_count = 0;
		return;
	}
	if (!t->in_place) {
		t->send_block = buffer(b, t->send_count * element, &t->send_heap);
		t->recv_block = buffer(b, t->recv_count * element, &t->recv_heap);
		c->send = t->send_block + GUARD;
		c->recv = t->recv_block + GUARD;
		fill(b, t, t->send_block + GUARD);
		return;
	}
	t->recv_block = buffer(b, bytes, &t->recv_heap);
	c->recv = t->recv_block + GUARD;
	size_t offset = 0;
	if (c->kind == DDP_ALL_GATHER || (c->kind == DDP_GATHER && c->root == b->rank))
		offset = sum(t->counts, b->rank);
	fill(b, t, t->recv_block + GUARD + offset * element);
}

static void make_case(bench *b, test_case *t)
{
	static const ddp_kind kinds[] = {
		DDP_ALL_REDUCE, DDP_REDUCE, DDP_BROADCAST, DDP_REDUCE_SCATTER, DDP_ALL_GATHER, DDP_GATHER,
		DDP_SCATTER, DDP_ALL_TO_ALL, DDP_BARRIER, DDP_ALL_REDUCE,
	};
	static const double scales[] = { 1, 2, 0.5, 3, 0 };

	memset(t, 0, sizeof(*t));
	t->seed = roll(&b->common, 1u << 20);
	t->c.kind = kinds[roll(&b->common, 10)];
	t->c.type = (ddp_type)roll(&b->common, 7);
	t->c.op = (ddp_op)roll(&b->common, 5);
	t->c.root = (int)roll(&b->common, (unsigned int)b->size);
	t->c.lane = b->lanes > 1 ? (int)roll(&b->common, (unsigned int)b->lanes) : 0;
	t->in_place = roll(&b->common, 3) == 0;
	bool scaled = roll(&b->common, 3) == 0;
	for (int r = 0; r < b->size; r++)
		t->scales[r] = scaled && t->c.op != DDP_PROD ? scales[roll(&b->common, 5)] : 1;
	t->c.scaled = scaled;
	t->c.scale = scaled ? t->scales[b->rank] : 0;
	choose_counts(b, t);
	if (t->c.kind == DDP_ALL_TO_ALL && t->vector)
		t->in_place = false; /* there is no such form */
	choose_sizes(b, t);
	place_buffers(b, t);
}

/* ---- checking ----------------------------------------------------------------------- */

/* Element i of what this rank must have received. */
UNWATCHED static double expected(const bench *b, const test_case *t, size_t i)
{
	const ddp_collective *c = &t->c;

	switch (c->kind) {
	case DDP_ALL_REDUCE:
	case DDP_REDUCE: return reduced(b, t, i);
	case DDP_BROADCAST: return value(t, c->root, i);
	case DDP_REDUCE_SCATTER: return reduced(b, t, sum(t->counts, b->rank) + i);
	case DDP_SCATTER: return value(t, c->root, sum(t->counts, b->rank) + i);
	default: break;
	}
	const size_t *counts = c->kind == DDP_ALL_TO_ALL ? t->recv_counts : t->counts;
	int from = 0;
	while (i >= counts[from])
		i -= counts[from++];
	if (c->kind != DDP_ALL_TO_ALL)
		return value(t, from, i);
	size_t offset = t->vector ? sum(t->pairs[from], b->rank) : c->count * (size_t)b->rank;
	return value(t, from, offset + i);
}

/* ---- what NCCL does otherwise -------------------------------------------------------- */

/* It refuses some reductions; the same answer on all ranks. */
static bool fits_nccl(const bench *b, const test_case *t)
{
	const bool power_of_2 = (b->size & (b->size - 1)) == 0, narrow = ddp_type_bytes(t->c.type) == 2;

	if (!b->nccl || !ddp_kind_reduces(t->c.kind))
		return true;
	if (t->c.op == DDP_AVG && (t->c.type == DDP_U8 || (t->c.scaled && (!is_float(t->c.type) || (narrow && !power_of_2)))))
		return false;
	if (t->c.scaled && t->c.op != DDP_SUM && t->c.op != DDP_AVG)
		return false;
	for (int r = 0; r < b->size; r++) {
		if (t->c.scaled && !is_float(t->c.type) && t->scales[r] != trunc(t->scales[r]))
			return false;
	}
	return true;
}

/* It multiplies by 1/ranks, which it rounds, before it sums for an average. */
static double slack(const bench *b, const test_case *t)
{
	const bool rounds = b->nccl && t->c.memory == DDP_MEMORY_DEVICE && ddp_kind_reduces(t->c.kind) &&
	                    t->c.op == DDP_AVG && is_float(t->c.type) && (b->size & (b->size - 1)) != 0;
	const int bits = t->c.type == DDP_BF16 ? 7 : t->c.type == DDP_F16 ? 10 : t->c.type == DDP_F32 ? 22 : 51;

	return rounds ? ldexp(24, -bits) : 0;
}

static void explain(const bench *b, const test_case *t, size_t i, double want, double have)
{
	char text[128];

	ddp_collective_describe(&t->c, text, sizeof(text));
	fprintf(stderr, "# rank %d of %d: %s%s%s, element %zu of %zu: %g instead of %g\n", b->rank,
	        b->size, text, t->in_place ? " in place" : "", t->vector ? " by counts" : "", i,
	        t->recv_count, have, want);
	_exit(1);
}

static void check_guards(const unsigned char *block, size_t bytes)
{
	for (int i = 0; i < GUARD; i++)
		CHECK(block[i] == 0xa5 && block[GUARD + bytes + (size_t)i] == 0xa5);
}

static void check_case(const bench *b, const test_case *t)
{
	size_t element = ddp_type_bytes(t->c.type);
	size_t recv = t->recv_count * element, send = t->send_count * element;

	for (size_t i = 0; i < t->recv_count; i++) {
		double want = expected(b, t, i), have = get(t->c.type, t->recv_block + GUARD, i);
		if (!(fabs(want - have) <= slack(b, t)))
			explain(b, t, i, want, have);
	}
	if (t->send_block != NULL) {
		check_guards(t->send_block, send);
		for (size_t i = 0; i < t->send_count; i++)
			CHECK(get(t->c.type, t->send_block + GUARD, i) == value(t, b->rank, i));
		check_guards(t->recv_block, recv);
	} else {
		check_guards(t->recv_block, recv > send ? recv : send);
	}
}

static void free_case(test_case *t)
{
	if (t->send_heap)
		free(t->send_block);
	if (t->recv_heap)
		free(t->recv_block);
}

/* ---- on a device --------------------------------------------------------------------- */

static ddp_device_queue *any_stream(bench *b)
{
	return b->streams[roll(&b->own, 2)];
}

/* A copy of memory of the host, which is made when the stream comes to it. */
static char *copy_of(const bench *b, ddp_device_queue *stream, const void *memory, size_t bytes)
{
	void *copy;

	CHECK_OK(ddp_device_alloc(b->device, bytes, &copy));
	CHECK_OK(ddp_device_copy(b->device, stream, copy, memory, bytes));
	return copy;
}

/* Bytes of a case's blocks, with their guards. */
static size_t block_bytes(const test_case *t, bool send)
{
	size_t count = send ? t->send_count : t->recv_count;

	if (t->send_block == NULL && t->send_count > count)
		count = t->send_count;
	return count * ddp_type_bytes(t->c.type) + 2 * GUARD;
}

/* The operation is to find its input on the device, where the stream brings it. */
static void move_to_device(bench *b, test_case *t)
{
	ddp_device_queue *stream = any_stream(b);

	t->c.memory = DDP_MEMORY_DEVICE;
	t->c.stream = stream;
	if (t->send_block != NULL) {
		t->send_device = copy_of(b, stream, t->send_block, block_bytes(t, true));
		t->c.send = (char *)t->send_device + GUARD;
	}
	if (t->recv_block != NULL) {
		t->recv_device = copy_of(b, stream, t->recv_block, block_bytes(t, false));
		t->c.recv = (char *)t->recv_device + GUARD;
	}
}

static void read_back(const bench *b, test_case *t, ddp_device_queue *stream)
{
	t->read_back = true;
	if (t->send_device != NULL)
		CHECK_OK(ddp_device_copy(b->device, stream, t->send_block, t->send_device, block_bytes(t, true)));
	if (t->recv_device != NULL)
		CHECK_OK(ddp_device_copy(b->device, stream, t->recv_block, t->recv_device, block_bytes(t, false)));
}

/* A stream may read the result without the host's waiting for it. */
static void read_back_behind(bench *b, test_case *t)
{
	ddp_device_queue *stream = any_stream(b);

	if (t->c.memory == DDP_MEMORY_HOST || roll(&b->own, 2) == 0)
		return;
	CHECK_OK(ddp_wait_on(t->request, stream));
	read_back(b, t, stream);
}

static void finish_on_device(bench *b, test_case *t)
{
	if (t->c.memory == DDP_MEMORY_HOST)
		return;
	if (!t->read_back)
		read_back(b, t, any_stream(b));
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_device_queue_sync(b->device, b->streams[i]));
	CHECK_OK(ddp_device_free(b->device, t->send_device));
	CHECK_OK(ddp_device_free(b->device, t->recv_device));
}

static void move_message_to_device(bench *b, message *m)
{
	ddp_device_queue *stream = any_stream(b);

	m->device_data = copy_of(b, stream, m->data, m->c.count + 1);
	m->c.memory = DDP_MEMORY_DEVICE;
	m->c.stream = stream;
	m->c.send = m->c.recv = m->device_data;
}

static void finish_message_on_device(bench *b, message *m)
{
	ddp_device_queue *stream = any_stream(b);

	if (m->device_data == NULL)
		return;
	CHECK_OK(ddp_device_copy(b->device, stream, m->data, m->device_data, m->c.count + 1));
	CHECK_OK(ddp_device_queue_sync(b->device, stream));
	CHECK_OK(ddp_device_free(b->device, m->device_data));
}

/* ---- messages ----------------------------------------------------------------------- */

static unsigned char byte_of(int from, int tag, size_t i)
{
	return (unsigned char)(from * 31 + tag * 7 + (int)(i % 251));
}

/* The same on all ranks: each sends `places` on, and receives from behind. */
static void issue_messages(bench *b, message *messages, int tag)
{
	int places = (int)roll(&b->common, (unsigned int)b->size);
	size_t count = random_count(b);
	bool on_device = b->device != NULL && roll(&b->common, 2) == 0;

	for (int i = 0; i < 2; i++) {
		message *m = &messages[i];
		m->device_data = NULL;
		m->data = malloc(count + 1);
		CHECK(m->data != NULL);
		m->c = (ddp_collective){ .kind = i == 0 ? DDP_SEND : DDP_RECV, .count = count, .type = DDP_U8,
		                         .root = (b->rank + (i == 0 ? places : b->size - places)) % b->size,
		                         .tag = tag, .send = m->data, .recv = m->data };
		for (size_t k = 0; k < count; k++)
			m->data[k] = i == 0 ? byte_of(b->rank, tag, k) : 0;
		if (on_device)
			move_message_to_device(b, m);
	}
	/* In either order. */
	int first = (int)roll(&b->own, 2);
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_issue(b->comm, &messages[i ^ first].c, &messages[i ^ first].request));
}

static void finish_messages(bench *b, message *messages)
{
	const message *got = &messages[1];

	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_wait(messages[i].request));
	for (int i = 0; i < 2; i++)
		finish_message_on_device(b, &messages[i]);
	for (size_t k = 0; k < got->c.count; k++)
		CHECK(got->data[k] == byte_of(got->c.root, got->c.tag, k));
	for (int i = 0; i < 2; i++)
		free(messages[i].data);
}

/* ---- batches ------------------------------------------------------------------------ */

/* In each of the ways there are. */
static void await_request(bench *b, ddp_request *request)
{
	ddp_status status = DDP_ERR_TIMEOUT;
	bool done = false;

	switch (roll(&b->own, 3)) {
	case 0:
		CHECK_OK(ddp_wait(request));
		break;
	case 1:
		while (status == DDP_ERR_TIMEOUT)
			status = ddp_wait_for(request, (int)roll(&b->own, 3));
		CHECK_OK(status);
		break;
	default:
		while (!done) {
			CHECK_OK(ddp_test(request, &done));
			usleep(50);
		}
		break;
	}
}

/* Several operations, each issued or run at once as this rank likes, with
   messages among them. */
static void run_batch(bench *b)
{
	test_case cases[IN_FLIGHT];
	message messages[TAGS][2];
	int count = 1 + (int)roll(&b->common, IN_FLIGHT), talks = 0;
	bool blocking = roll(&b->common, 3) == 0, mixed = roll(&b->common, 3) == 0;

	b->arena_used = 0;
	for (int i = 0; i < count; i++)
		make_case(b, &cases[i]);
	for (int i = 0; i < count && b->device != NULL; i++) {
		if (roll(&b->common, 2) == 0 && fits_nccl(b, &cases[i]))
			move_to_device(b, &cases[i]);
	}
	for (int i = 0; i < count; i++) {
		if (roll(&b->common, 6) == 0 && talks < TAGS) {
			issue_messages(b, messages[talks], talks);
			talks++;
		}
		if (mixed ? roll(&b->own, 2) == 0 : blocking)
			CHECK_OK(ddp_run(b->comm, &cases[i].c));
		else
			CHECK_OK(ddp_issue(b->comm, &cases[i].c, &cases[i].request));
	}
	for (int i = 0; i < count; i++) {
		if (cases[i].request != NULL)
			read_back_behind(b, &cases[i]);
	}
	for (int i = 0; i < count; i++) {
		if (cases[i].request != NULL)
			await_request(b, cases[i].request);
	}
	for (int i = 0; i < talks; i++)
		finish_messages(b, messages[i]);
	for (int i = 0; i < count; i++) {
		finish_on_device(b, &cases[i]);
		check_case(b, &cases[i]);
		free_case(&cases[i]);
	}
	/* Nobody reuses the arena while others still read it. */
	CHECK_OK(ddp_barrier(b->comm));
}

static bench new_bench(ddp_comm *comm, unsigned int seed, size_t most)
{
	return (bench){ .comm = comm, .rank = ddp_comm_rank(comm), .size = ddp_comm_size(comm),
	                .common = seed, .own = seed + 77u * (unsigned int)ddp_comm_rank(comm), .most = most,
	                .lanes = 1 };
}

void test_run_batches(ddp_comm *comm, unsigned int seed, int batches, size_t most)
{
	bench b = new_bench(comm, seed, most);
	void *arena;

	CHECK_OK(ddp_mem_alloc(comm, ARENA_BYTES, &arena));
	b.arena = arena;
	for (int i = 0; i < batches; i++)
		run_batch(&b);
	CHECK_OK(ddp_mem_free(comm, arena));
}

/* A random part of the ranks, in a random order, or as many parts as colours. */
static ddp_comm *random_group(bench *b)
{
	int list[TEST_RANKS_MAX], count = 1 + (int)roll(&b->common, (unsigned int)b->size);
	int colours[TEST_RANKS_MAX], keys[TEST_RANKS_MAX];
	ddp_comm *part;

	for (int i = 0; i < b->size; i++) {
		int k = (int)roll(&b->common, (unsigned int)i + 1);
		list[i] = list[k];
		list[k] = i;
		colours[i] = (int)roll(&b->common, 3) - (int)roll(&b->common, 2);
		keys[i] = (int)roll(&b->common, 5);
	}
	if (roll(&b->common, 2) == 0)
		CHECK_OK(ddp_comm_group(b->comm, list, count, &part));
	else
		CHECK_OK(ddp_comm_split(b->comm, colours[b->rank], keys[b->rank], &part));
	return part;
}

/* A group at work in the world's memory, while an operation of the world is
   under way. */
static void run_group(bench *b)
{
	ddp_comm *part = random_group(b);
	unsigned int seed = roll(&b->common, 1u << 20);
	test_case beside;

	b->arena_used = 0;
	make_case(b, &beside);
	CHECK_OK(ddp_issue(b->comm, &beside.c, &beside.request));
	if (part != NULL) {
		bench g = new_bench(part, seed, b->most);
		char *spare = malloc(ARENA_BYTES);
		CHECK(spare != NULL);
		/* The upper half of the arena, which is big enough, or plain memory. */
		g.arena = roll(&g.common, 4) == 0 ? spare : b->arena + ARENA_BYTES;
		run_batch(&g);
		run_batch(&g);
		free(spare);
	}
	await_request(b, beside.request);
	check_case(b, &beside);
	free_case(&beside);
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_barrier(b->comm));
}

/* It stays open: the communicator is closed behind the test. */
static void open_device(bench *b, const test_cases *cases)
{
	const ddp_device_options options = { .seed = cases->seed + (unsigned int)b->rank, .delay_us = 30,
	                                     .check_order = true };

	CHECK_OK(ddp_device_open(cases->device, &options, &b->device));
	ddp_comm_use_device(b->comm, b->device);
	b->nccl = cases->nccl;
	if (cases->nccl && strcmp(cases->device, "test") == 0)
		test_nccl_standin(b->device)->polls = cases->nccl_polls;
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_device_queue_create(b->device, DDP_DEVICE_NORMAL, &b->streams[i]));
}

int test_run_cases(ddp_comm *comm, void *argument)
{
	const test_cases *cases = argument;
	bench b = new_bench(comm, cases->seed, cases->most);
	void *arena;

	CHECK_OK(ddp_mem_alloc(comm, 2 * (size_t)ARENA_BYTES, &arena));
	b.arena = arena;
	b.lanes = 2;
	if (cases->device != NULL)
		open_device(&b, cases);
	for (int i = 0; i < cases->batches; i++) {
		run_batch(&b);
		if (i % 8 == 3)
			run_group(&b);
	}
	CHECK_OK(ddp_mem_free(comm, arena));
	return 0;
}

static unsigned int from_environment(const char *name, unsigned int otherwise)
{
	const char *text = getenv(name);

	return text != NULL ? (unsigned int)atoi(text) : otherwise;
}

int test_run_world(test_cases cases, int ranks, const int *node_of, int (*body)(ddp_comm *, void *))
{
	const test_world world = { .ranks = ranks, .node_of = node_of, .body = body, .argument = &cases };

	cases.seed += 1000 * from_environment("DDP_TEST_SEED", 0) + (unsigned int)ranks;
	cases.batches = (int)from_environment("DDP_TEST_BATCHES", (unsigned int)cases.batches);
	const int failures = test_world_run(&world);
	if (failures != 0)
		fprintf(stderr, "# seed %u, %d ranks\n", cases.seed, ranks);
	return failures;
}
