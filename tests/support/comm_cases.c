/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comm_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/core/comm.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/nccl_standin.h"

enum { IN_FLIGHT = 4, TAGS = 3 };

/* A message to a rank some places on, and one from a rank as far behind. */
typedef struct message {
	ddp_operation c;
	unsigned char *data;
	void *device_data; /* NULL: on the host */
	ddp_request *request;
} message;

/* ---- on a device --------------------------------------------------------------------- */

static ddp_device_queue *any_stream(bench *b)
{
	return b->streams[case_roll(&b->own, 2)];
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
	return count * ddp_type_bytes(t->c.type) + 2 * CASE_GUARD;
}

/* The operation is to find its input on the device, where the stream brings it. */
static void move_to_device(bench *b, test_case *t)
{
	ddp_device_queue *stream = any_stream(b);

	t->c.memory = DDP_MEMORY_DEVICE;
	t->c.stream = stream;
	if (t->send_block != NULL) {
		t->send_device = copy_of(b, stream, t->send_block, block_bytes(t, true));
		t->c.send = (char *)t->send_device + CASE_GUARD;
	}
	if (t->recv_block != NULL) {
		t->recv_device = copy_of(b, stream, t->recv_block, block_bytes(t, false));
		t->c.recv = (char *)t->recv_device + CASE_GUARD;
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

	if (t->c.memory == DDP_MEMORY_HOST || case_roll(&b->own, 2) == 0)
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
	int places = (int)case_roll(&b->common, (unsigned int)b->size);
	size_t count = case_random_count(b);
	bool on_device = b->device != NULL && case_roll(&b->common, 2) == 0;

	for (int i = 0; i < 2; i++) {
		message *m = &messages[i];
		m->device_data = NULL;
		m->data = malloc(count + 1);
		CHECK(m->data != NULL);
		m->c = (ddp_operation){ .kind = i == 0 ? DDP_SEND : DDP_RECV, .count = count, .type = DDP_U8,
		                         .root = (b->rank + (i == 0 ? places : b->size - places)) % b->size,
		                         .tag = tag, .send = m->data, .recv = m->data };
		for (size_t k = 0; k < count; k++)
			m->data[k] = i == 0 ? byte_of(b->rank, tag, k) : 0;
		if (on_device)
			move_message_to_device(b, m);
	}
	/* In either order. */
	int first = (int)case_roll(&b->own, 2);
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

	switch (case_roll(&b->own, 3)) {
	case 0:
		CHECK_OK(ddp_wait(request));
		break;
	case 1:
		while (status == DDP_ERR_TIMEOUT)
			status = ddp_wait_for(request, (int)case_roll(&b->own, 3));
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
	int count = 1 + (int)case_roll(&b->common, IN_FLIGHT), talks = 0;
	bool blocking = case_roll(&b->common, 3) == 0, mixed = case_roll(&b->common, 3) == 0;

	b->arena_used = 0;
	for (int i = 0; i < count; i++)
		case_make(b, &cases[i]);
	for (int i = 0; i < count && b->device != NULL; i++) {
		if (case_roll(&b->common, 2) == 0 && case_fits_nccl(b, &cases[i]))
			move_to_device(b, &cases[i]);
	}
	for (int i = 0; i < count; i++) {
		b->given[cases[i].c.memory][cases[i].c.lane]++;
		if (case_roll(&b->common, 6) == 0 && talks < TAGS) {
			issue_messages(b, messages[talks], talks);
			talks++;
		}
		if (mixed ? case_roll(&b->own, 2) == 0 : blocking)
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
		case_check(b, &cases[i]);
		case_free(&cases[i]);
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

	CHECK_OK(ddp_mem_alloc(comm, CASE_ARENA_BYTES, &arena));
	b.arena = arena;
	for (int i = 0; i < batches; i++)
		run_batch(&b);
	CHECK_OK(ddp_mem_free(comm, arena));
}

/* A random part of the ranks, in a random order, or as many parts as colours. */
static ddp_comm *random_group(bench *b)
{
	int list[TEST_RANKS_MAX], count = 1 + (int)case_roll(&b->common, (unsigned int)b->size);
	int colours[TEST_RANKS_MAX], keys[TEST_RANKS_MAX];
	ddp_comm *part;

	for (int i = 0; i < b->size; i++) {
		int k = (int)case_roll(&b->common, (unsigned int)i + 1);
		list[i] = list[k];
		list[k] = i;
		colours[i] = (int)case_roll(&b->common, 3) - (int)case_roll(&b->common, 2);
		keys[i] = (int)case_roll(&b->common, 5);
	}
	if (case_roll(&b->common, 2) == 0)
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
	unsigned int seed = case_roll(&b->common, 1u << 20);
	test_case beside;

	b->arena_used = 0;
	case_make(b, &beside);
	b->given[DDP_MEMORY_HOST][beside.c.lane]++;
	CHECK_OK(ddp_issue(b->comm, &beside.c, &beside.request));
	if (part != NULL) {
		bench g = new_bench(part, seed, b->most);
		char *spare = malloc(CASE_ARENA_BYTES);
		CHECK(spare != NULL);
		/* The upper half of the arena, which is big enough, or plain memory. */
		g.arena = case_roll(&g.common, 4) == 0 ? spare : b->arena + CASE_ARENA_BYTES;
		run_batch(&g);
		run_batch(&g);
		free(spare);
	}
	await_request(b, beside.request);
	case_check(b, &beside);
	case_free(&beside);
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_barrier(b->comm));
}

/* It stays open: the communicator is closed behind the test. */
static void open_device(bench *b, const test_cases *cases)
{
	if (!test_on_gpu()) {
		test_fake_gpu()->seed = cases->seed + (unsigned int)b->rank;
		test_fake_gpu()->delay_us = 30;
		test_nccl_standin()->polls = cases->nccl_polls;
	}
	CHECK_OK(ddp_device_open("cuda", &b->device));
	ddp_comm_use_device(b->comm, b->device);
	b->alone = cases->alone;
	if (b->alone)
		test_nccl_hide();
	for (int i = 0; i < 2; i++)
		CHECK_OK(ddp_device_queue_create(b->device, DDP_DEVICE_NORMAL, &b->streams[i]));
}

/* Checks what ran the operations on the device's memory, if there were any. */
static void check_backend(const bench *b)
{
	const char *expected = b->device == NULL ? "" : b->alone ? "self" : "nccl";
	ddp_comm_info info;

	CHECK_OK(ddp_comm_describe(b->comm, &info));
	CHECK(strcmp(info.device_backend, expected) == 0);
}

/* What was given to a lane has run there. Lane 0 of the host's memory runs what opens others, too. */
static void check_lanes(const bench *b)
{
	for (int lane = 1; lane < b->lanes; lane++) {
		CHECK(test_lane_count(b->comm, lane) == b->given[DDP_MEMORY_HOST][lane]);
		CHECK(atomic_load(&b->comm->lanes.of[DDP_MEMORY_DEVICE][lane].open) == (b->given[DDP_MEMORY_DEVICE][lane] > 0));
	}
}

int test_run_cases(ddp_comm *comm, void *argument)
{
	const test_cases *cases = argument;
	bench b = new_bench(comm, cases->seed, cases->most);
	void *arena;

	CHECK_OK(ddp_mem_alloc(comm, 2 * (size_t)CASE_ARENA_BYTES, &arena));
	b.arena = arena;
	b.lanes = 2;
	if (cases->on_device)
		open_device(&b, cases);
	for (int i = 0; i < cases->batches; i++) {
		run_batch(&b);
		if (i % 8 == 3)
			run_group(&b);
	}
	check_backend(&b);
	check_lanes(&b);
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
