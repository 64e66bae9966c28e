/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/nccl_standin_move.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/nccl/abi.h"
#include "tests/device/runtime.h"
#include "tests/support/halves.h"

/* ---- arithmetic, in the type itself as NCCL's kernels have it; types and ops are those of comm/nccl/abi.h ---- */

size_t nccl_bytes_of(int type)
{
	switch (type) {
	case DDP_NCCL_INT8:
	case DDP_NCCL_UINT8: return 1;
	case DDP_NCCL_FLOAT16:
	case DDP_NCCL_BFLOAT16: return 2;
	case DDP_NCCL_INT32:
	case DDP_NCCL_FLOAT32: return 4;
	default: return 8;
	}
}

static uint16_t to_f16(double x)
{
	const uint16_t sign = signbit(x) ? 0x8000 : 0;
	int exponent = x == 0 || ilogb(x) < -14 ? -14 : ilogb(x);
	int fraction = exponent > 15 ? 2048 : (int)rint(ldexp(fabs(x), 10 - exponent));

	if (fraction == 2048) {
		fraction = 1024;
		exponent++;
	}
	if (exponent > 15)
		return sign | 0x7c00;
	return (uint16_t)(sign | (fraction < 1024 ? fraction : (exponent + 15) << 10 | (fraction - 1024)));
}

static float from_bf16(uint16_t bits)
{
	const uint32_t wide = (uint32_t)bits << 16;
	float x;

	memcpy(&x, &wide, sizeof(x));
	return x;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double get(int type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_NCCL_FLOAT32: return ((const float *)memory)[i];
	case DDP_NCCL_FLOAT64: return ((const double *)memory)[i];
	case DDP_NCCL_FLOAT16: return decode_half(((const uint16_t *)memory)[i], 10, 15);
	case DDP_NCCL_BFLOAT16: return from_bf16(((const uint16_t *)memory)[i]);
	default: return 0;
	}
}

static void put(int type, void *memory, size_t i, double x)
{
	switch (type) {
	case DDP_NCCL_FLOAT32: ((float *)memory)[i] = (float)x; break;
	case DDP_NCCL_FLOAT64: ((double *)memory)[i] = x; break;
	case DDP_NCCL_FLOAT16: ((uint16_t *)memory)[i] = to_f16(x); break;
	case DDP_NCCL_BFLOAT16: ((uint16_t *)memory)[i] = to_bf16((float)x); break;
	default: break;
	}
}

static int64_t get_integer(int type, const void *memory, size_t i)
{
	switch (type) {
	case DDP_NCCL_INT8: return ((const int8_t *)memory)[i];
	case DDP_NCCL_UINT8: return ((const uint8_t *)memory)[i];
	case DDP_NCCL_INT32: return ((const int32_t *)memory)[i];
	default: return ((const int64_t *)memory)[i];
	}
}

static void put_integer(int type, void *memory, size_t i, uint64_t x)
{
	switch (type) {
	case DDP_NCCL_INT8:
	case DDP_NCCL_UINT8: ((uint8_t *)memory)[i] = (uint8_t)x; break;
	case DDP_NCCL_INT32: ((int32_t *)memory)[i] = (int32_t)x; break;
	default: ((int64_t *)memory)[i] = (int64_t)x; break;
	}
}

static bool is_integer(int type)
{
	return type == DDP_NCCL_INT8 || type == DDP_NCCL_UINT8 || type == DDP_NCCL_INT32 || type == DDP_NCCL_INT64;
}

static void combine_one(int type, int op, void *into, const void *from, size_t i)
{
	if (is_integer(type)) {
		const int64_t a = get_integer(type, into, i), b = get_integer(type, from, i);
		const uint64_t sum = (uint64_t)a + (uint64_t)b, product = (uint64_t)a * (uint64_t)b;
		put_integer(type, into, i, op == DDP_NCCL_PROD ? product : op == DDP_NCCL_MAX ? (uint64_t)(a > b ? a : b) :
		            op == DDP_NCCL_MIN ? (uint64_t)(a < b ? a : b) : sum);
		return;
	}
	const double a = get(type, into, i), b = get(type, from, i);
	put(type, into, i, op == DDP_NCCL_PROD ? a * b : op == DDP_NCCL_MAX ? fmax(a, b) :
	    op == DDP_NCCL_MIN ? fmin(a, b) : a + b);
}

/* ---- works ------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static work *queued;
static uint64_t works; /* so far */

void standin_release(standin_comm *comm)
{
	if (atomic_fetch_sub(&comm->users, 1) > 1)
		return;
	munmap(comm->shared, sizeof(region));
	free(comm);
}

static void begin(work *w)
{
	atomic_fetch_add(&w->comm->users, 1);
	pthread_mutex_lock(&lock);
	w->number = works++;
	w->next = queued;
	queued = w;
	pthread_mutex_unlock(&lock);
}

static void end(work *w)
{
	work **at = &queued;

	standin_release(w->comm);
	pthread_mutex_lock(&lock);
	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	pthread_cond_broadcast(&ended);
	pthread_mutex_unlock(&lock);
	free(w);
}

/* Is one queued with a smaller number? */
static bool is_queued_before(uint64_t number)
{
	const work *w = queued;

	while (w != NULL && w->number >= number)
		w = w->next;
	return w != NULL;
}

void standin_await_works(void)
{
	pthread_mutex_lock(&lock);
	const uint64_t number = works;
	while (is_queued_before(number))
		pthread_cond_wait(&ended, &lock);
	pthread_mutex_unlock(&lock);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* What is done to a rank's input before it is combined. */
static void prepare(const standin_comm *comm, const call *c, void *values, size_t count)
{
	double factor = 1;

	if (c->op >= DDP_NCCL_OPS && is_integer(c->type)) {
		const int64_t whole = get_integer(c->type, &c->scalar.bits, 0);
		for (size_t i = 0; i < count; i++)
			put_integer(c->type, values, i, (uint64_t)get_integer(c->type, values, i) * (uint64_t)whole);
		return;
	}
	if (c->op >= DDP_NCCL_OPS) {
		factor = get(c->type, &c->scalar.bits, 0);
	} else if (c->op == DDP_NCCL_AVG && !is_integer(c->type)) {
		uint64_t rounded = 0;
		put(c->type, &rounded, 0, 1.0 / comm->ranks);
		factor = get(c->type, &rounded, 0);
	}
	for (size_t i = 0; i < count && factor != 1; i++)
		put(c->type, values, i, get(c->type, values, i) * factor);
}

/* What is done to what was combined. */
static void complete(const standin_comm *comm, const call *c, void *values, size_t count)
{
	for (size_t i = 0; i < count && c->op == DDP_NCCL_AVG && is_integer(c->type); i++)
		put_integer(c->type, values, i, (uint64_t)(get_integer(c->type, values, i) / comm->ranks));
}

/* ---- moving bytes: in a queue's thread -------------------------------------------------------------- */

/* What goes before the bytes of a message: who expects another one hangs. */
typedef struct label {
	uint64_t kind, type, count;
} label;

typedef struct transfer {
	channel *channel;
	bool sends;
	label label, got;
	char *data;
	size_t bytes, labelled, moved;
} transfer;

/* Copies between a channel and memory, as far as that goes. */
static size_t move(transfer *t, char *memory, size_t bytes)
{
	const uint64_t written = atomic_load(&t->channel->written), read = atomic_load(&t->channel->read);
	size_t room = t->sends ? CHANNEL_BYTES - (size_t)(written - read) : (size_t)(written - read);

	room = room < bytes ? room : bytes;
	for (size_t i = 0; i < room;) {
		const size_t at = (size_t)((t->sends ? written : read) + i) % CHANNEL_BYTES;
		const size_t part = room - i < CHANNEL_BYTES - at ? room - i : CHANNEL_BYTES - at;
		if (t->sends)
			memcpy(t->channel->bytes + at, memory + i, part);
		else
			memcpy(memory + i, t->channel->bytes + at, part);
		i += part;
	}
	atomic_fetch_add(t->sends ? &t->channel->written : &t->channel->read, room);
	return room;
}

static bool advance(transfer *t, bool *moved)
{
	size_t part = 0;

	if (t->labelled < sizeof(t->label)) {
		part = move(t, (t->sends ? (char *)&t->label : (char *)&t->got) + t->labelled, sizeof(t->label) - t->labelled);
		t->labelled += part;
	}
	const bool mine = t->sends || memcmp(&t->label, &t->got, sizeof(t->label)) == 0;
	if (t->labelled == sizeof(t->label) && t->moved < t->bytes && mine) {
		part = move(t, t->data + t->moved, t->bytes - t->moved);
		t->moved += part;
	}
	*moved |= part > 0;
	return t->labelled == sizeof(t->label) && t->moved == t->bytes && mine;
}

/* Until all are done; false: the communicator was aborted. */
static bool run_transfers(standin_comm *comm, transfer *transfers, int count)
{
	bool done = false;

	while (!done) {
		bool moved = false;
		done = true;
		for (int i = 0; i < count; i++)
			done = advance(&transfers[i], &moved) && done;
		if (atomic_load(&comm->aborted))
			return false;
		if (!done && !moved)
			usleep(20);
	}
	return true;
}

static transfer transfer_of(standin_comm *comm, const call *c, int peer, bool sends, void *data, size_t bytes)
{
	channel *way = sends ? &comm->shared->channels[comm->rank][peer] : &comm->shared->channels[peer][comm->rank];
	const kind name = c->kind == RECV ? SEND : c->kind;

	return (transfer){ .channel = way, .sends = sends, .data = data, .bytes = bytes,
	                   .label = { .kind = (uint64_t)name, .type = (uint64_t)c->type, .count = c->count } };
}

static void *view(const void *address, size_t bytes, bool writes)
{
	void *found = NULL;

	if (bytes == 0 || fake_gpu_view(address, bytes, writes, &found) != cudaSuccess)
		return NULL;
	return found;
}

/* Every rank sends its input, or the block of each, to those who combine it. */
static bool run_reduction(standin_comm *comm, const call *c)
{
	const bool scatter = c->kind == REDUCE_SCATTER, all = c->kind != REDUCE;
	const bool gets = all || c->peer == comm->rank;
	const size_t block = c->count * nccl_bytes_of(c->type), whole = scatter ? block * (size_t)comm->ranks : block;
	const void *input = view(c->send, whole, false);
	char *own = malloc(whole), *others = malloc(block * (size_t)comm->ranks);
	transfer transfers[2 * RANKS_MAX];
	int count = 0;
	bool done = input != NULL && own != NULL && others != NULL;

	if (done) {
		memcpy(own, input, whole);
		prepare(comm, c, own, whole / nccl_bytes_of(c->type));
	}
	for (int r = 0; r < comm->ranks && done; r++) {
		if (r != comm->rank && (all || r == c->peer))
			transfers[count++] = transfer_of(comm, c, r, true, own + (scatter ? (size_t)r * block : 0), block);
		if (r != comm->rank && gets)
			transfers[count++] = transfer_of(comm, c, r, false, others + (size_t)r * block, block);
	}
	done = done && run_transfers(comm, transfers, count);
	char *output = done && gets ? view(c->recv, block, true) : NULL;
	if (output != NULL) {
		memcpy(others + (size_t)comm->rank * block, own + (scatter ? (size_t)comm->rank * block : 0), block);
		for (int r = 1; r < comm->ranks; r++) {
			for (size_t i = 0; i < c->count; i++)
				combine_one(c->type, c->op, others, others + (size_t)r * block, i);
		}
		complete(comm, c, others, c->count);
		memcpy(output, others, block);
	}
	free(own);
	free(others);
	return done;
}

static bool run_copies(standin_comm *comm, const call *c)
{
	const size_t bytes = c->count * nccl_bytes_of(c->type);
	const bool gather = c->kind == ALL_GATHER, gives = gather || c->peer == comm->rank;
	char *input = gives ? view(c->send, bytes, false) : NULL;
	char *output = gives && !gather && c->recv == c->send ? input : view(c->recv, gather ? bytes * (size_t)comm->ranks : bytes, true);
	transfer transfers[2 * RANKS_MAX];
	int count = 0;

	if ((gives && input == NULL) || output == NULL)
		return false;
	for (int r = 0; r < comm->ranks; r++) {
		if (r != comm->rank && gives)
			transfers[count++] = transfer_of(comm, c, r, true, input, bytes);
		if (r != comm->rank && (gather || r == c->peer))
			transfers[count++] = transfer_of(comm, c, r, false, gather ? output + (size_t)r * bytes : output, bytes);
	}
	if (!run_transfers(comm, transfers, count))
		return false;
	char *own = gather ? output + (size_t)comm->rank * bytes : output;
	if (gives && own != input)
		memmove(own, input, bytes);
	return true;
}

static bool run_messages(const work *w)
{
	transfer transfers[64];
	int count = 0;

	for (int i = 0; i < w->count; i++) {
		const call *c = &w->calls[i];
		const size_t bytes = c->count * nccl_bytes_of(c->type);
		if (c->kind != SEND && c->kind != RECV)
			continue;
		void *data = view(c->kind == SEND ? c->send : c->recv, bytes, c->kind == RECV);
		if (data == NULL)
			return false;
		transfers[count++] = transfer_of(w->comm, c, c->peer, c->kind == SEND, data, bytes);
	}
	return run_transfers(w->comm, transfers, count);
}

static void run(void *argument)
{
	work *w = argument;
	bool goes_on = true;

	while (atomic_load(&nccl_standin.stuck) && !atomic_load(&w->comm->aborted))
		usleep(100);
	goes_on = !atomic_load(&w->comm->aborted);
	for (int i = 0; i < w->count && goes_on; i++) {
		const call *c = &w->calls[i];
		if (c->kind == SEND || c->kind == RECV)
			continue;
		goes_on = c->kind == BROADCAST || c->kind == ALL_GATHER ? run_copies(w->comm, c) : run_reduction(w->comm, c);
	}
	if (goes_on)
		(void)run_messages(w);
	end(w);
}

int standin_queue(work *w)
{
	begin(w);
	if (fake_gpu_launch(w->queue, run, w) == cudaSuccess)
		return DDP_NCCL_SUCCESS;
	end(w);
	return DDP_NCCL_UNHANDLED_CUDA_ERROR;
}
