/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan asan; needs: UCX; takes: 7 */
/* A rank that comes late: what others send it meanwhile takes a bounded part of its
   memory, whatever the sizes. DDP_TEST_MIB is what a sender sends in each case; the
   buffers are the same few pages over and over. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "splitmix.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

enum {
	MIB = 1 << 20,
	PAGES_MIB = 16,  /* that a buffer repeats */
#ifdef __SANITIZE_THREAD__ /* it keeps four bytes more of each that is touched */
	TIMES = 5,
	EACH_MIB = 20, /* More than the credit is enough for races. Other builds test how much memory is taken. */
	SEEDS = 2,
#else
	TIMES = 1,
	EACH_MIB = 96,
	SEEDS = 6,
#endif
	CREDIT_MIB = TIMES * 16, /* of each sender; */
	OTHER_MIB = TIMES * 48,  /* and what else comes while a rank is late */
	LOOK_MS = 500,
	LOOKS_MAX = 60,
	TIMEOUT_MS = 300000, /* for gibibytes on a busy machine */
	PARTS = 300 * 1024
};

static const int nodes[] = { 0, 1, 2, 3 };

static size_t total_bytes(void)
{
	const char *text = getenv("DDP_TEST_MIB");

	return (size_t)(text != NULL ? atoi(text) : EACH_MIB) * MIB;
}

static size_t anonymous_mib(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long kib = 0;
	char line[128];

	CHECK(file != NULL);
	while (fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "RssAnon: %lu", &kib) == 1)
			break;
	}
	fclose(file);
	return kib / 1024;
}

/* `bytes` of memory, all of which are the same PAGES_MIB. */
static char *repeated(size_t bytes)
{
	size_t each = (size_t)PAGES_MIB * MIB, whole = (bytes + each - 1) / each * each;
	int fd = memfd_create("pages", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)each) == 0);
	char *memory = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(memory != MAP_FAILED);
	for (size_t at = 0; at < whole; at += each)
		CHECK(mmap(memory + at, each, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
	close(fd);
	return memory;
}

/* Sleeps until what all others send meanwhile takes no more memory. */
static void be_late(const ddp_comm *comm)
{
	const size_t senders = (size_t)ddp_comm_size(comm) - 1, limit = OTHER_MIB + senders * CREDIT_MIB;
	size_t before = anonymous_mib(), last = 0, now = before;

	for (int look = 0; look < LOOKS_MAX && (look < 2 || now > last); look++) {
		usleep(LOOK_MS * 1000);
		last = now;
		now = anonymous_mib();
		if (now > before + limit)
			fprintf(stderr, "# %zu MiB before, %zu MiB after %d ms\n", before, now, (look + 1) * LOOK_MS);
		CHECK(now <= before + limit);
	}
}

/* What rank 0, which comes late, and the others do. */
typedef ddp_status (*case_body)(ddp_comm *comm, char *memory, size_t bytes);

static int run_late(ddp_comm *comm, void *argument)
{
	const case_body *body = argument;
	size_t bytes = total_bytes();
	char *memory = repeated(bytes);

	memset(memory, ddp_comm_rank(comm), (size_t)PAGES_MIB * MIB);
	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0)
		be_late(comm);
	CHECK_OK((*body)(comm, memory, bytes));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

static void run_on(int count, case_body body)
{
	RUN_WORLD(.ranks = count, .node_of = nodes, .timeout_ms = TIMEOUT_MS, .body = run_late, .argument = &body);
}

static void run(case_body body)
{
	run_on(2, body);
}

/* ---- cases ------------------------------------------------------------------------------- */

static ddp_status broadcast_all(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = ddp_broadcast(comm, memory, bytes, DDP_U8, 1);

	CHECK(status != DDP_OK || (memory[0] == 1 && memory[bytes - 1] == 1));
	return status;
}

TEST_RUNS(large_broadcast_waits_for_a_late_rank, run(broadcast_all));

static ddp_status broadcast_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_broadcast(comm, memory, PARTS, DDP_U8, 1);
	CHECK(status != DDP_OK || memory[PARTS - 1] == 1);
	return status;
}

TEST_RUNS(many_broadcasts_wait_for_a_late_rank, run(broadcast_parts));

static ddp_status reduce_all(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = ddp_reduce(comm, NULL, memory, bytes / 4, DDP_F32, DDP_MAX, 0);

	CHECK(status != DDP_OK || (memory[0] == 1 && memory[bytes - 1] == 1));
	return status;
}

TEST_RUNS(large_reduce_waits_for_a_late_root, run(reduce_all));

static ddp_status gather_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_gather(comm, memory, memory + (size_t)ddp_comm_rank(comm) * PARTS, PARTS, DDP_U8, 0);
	return status;
}

TEST(many_gathers_wait_for_a_late_root)
{
	run(gather_parts);
	run_on(4, gather_parts);
}

/* Each rank sends each other one as much as a sender does elsewhere. */
static ddp_status exchange_blocks(ddp_comm *comm, char *memory, size_t bytes)
{
	const size_t all = bytes * (size_t)ddp_comm_size(comm);

	return ddp_all_to_all(comm, repeated(all), repeated(all), bytes, DDP_U8);
}

TEST_RUNS(blocks_of_all_wait_for_a_late_rank, run_on(4, exchange_blocks));

static ddp_status send_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_comm_rank(comm) == 1 ? ddp_send(comm, memory, PARTS, DDP_U8, 0, 7)
		                                  : ddp_recv(comm, memory, PARTS, DDP_U8, 1, 7);
	return status;
}

TEST_RUNS(many_sends_wait_for_a_late_receiver, run(send_parts));

/* Large and small messages beyond the credit, asked for in the reverse order. */
static ddp_status send_in_reverse(ddp_comm *comm, char *memory, size_t bytes)
{
	enum { COUNT = 200, LARGE = 256 * 1024 };
	ddp_request *requests[COUNT];
	static unsigned char data[COUNT][4];
	bool sends = ddp_comm_rank(comm) == 1;

	for (int i = 0; i < COUNT; i++) {
		int tag = sends ? i : COUNT - 1 - i;
		bool small = tag % 3 != 0;
		void *place = small ? (void *)data[tag] : memory;
		if (sends && small)
			memset(data[tag], tag, sizeof(data[tag]));
		const ddp_operation c = { .kind = sends ? DDP_SEND : DDP_RECV, .send = place, .recv = place,
		                           .count = small ? sizeof(data[tag]) : LARGE, .type = DDP_U8,
		                           .root = sends ? 0 : 1, .tag = tag };
		if (sends)
			CHECK_OK(ddp_issue(comm, &c, &requests[i]));
		else
			CHECK_OK(ddp_run(comm, &c));
	}
	for (int i = 0; i < COUNT; i++) {
		if (sends)
			CHECK_OK(ddp_wait(requests[i]));
		CHECK(i % 3 == 0 || data[i][3] == (unsigned char)i);
	}
	return DDP_OK;
}

TEST_RUNS(messages_beyond_the_credit_come_in_any_order, run(send_in_reverse));

/* Rank 0 has asked for another message before it is late. */
static int ask_before_late(ddp_comm *comm, void *argument)
{
	size_t bytes = total_bytes();
	char *memory = repeated(bytes), other = 0;
	ddp_request *request;

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0) {
		CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_RECV, .recv = &other, .count = 1, .type = DDP_U8,
		                                            .root = 1, .tag = 9 }, &request));
		be_late(comm);
	}
	CHECK_OK(send_parts(comm, memory, bytes));
	if (ddp_comm_rank(comm) == 0)
		CHECK_OK(ddp_wait(request));
	else
		CHECK_OK(ddp_send(comm, &other, 1, DDP_U8, 0, 9));
	return 0;
}

TEST(sends_wait_beside_a_message_that_was_asked_for)
{
	const test_world world = { .ranks = 2, .timeout_ms = TIMEOUT_MS, .body = ask_before_late };
	const test_world between = { .ranks = 2, .node_of = nodes, .timeout_ms = TIMEOUT_MS, .body = ask_before_late };

	assert_int_equal(test_world_run(&between), 0);
	assert_int_equal(test_world_run(&world), 0);
}

/* ---- messages of a node ------------------------------------------------------------------ */

enum { MESSAGES = 40, TAGS = 4, LONGEST = 3 * MIB };

/* Of message i from one rank to another. */
typedef struct message {
	int tag;
	size_t bytes;
	const unsigned char *data;
} message;

static message message_of(const unsigned char *source, int seed, int from, int to, int i)
{
	static const size_t sizes[] = { 0, 5, 4000, 70000, 300 * 1024, MIB, MIB + 1, LONGEST };
	const uint64_t drawn = dk_splitmix((uint64_t)(((seed * 8 + from) * 8 + to) * MESSAGES + i + 1)) >> 20;

	return (message){ .tag = (int)(drawn % TAGS), .bytes = sizes[drawn / TAGS % 8],
	                  .data = source + (from * MESSAGES + i) * 61 };
}

/* Message i is the next of its tag; tags are asked for one after the other, or in turns. */
static int next_message(const unsigned char *source, int seed, int from, int to, bool *taken, int n)
{
	for (int t = 0; t < TAGS; t++) {
		const int tag = (seed % 2 == 0 ? TAGS - 1 - t : (n * 7 + t) % TAGS);
		for (int i = 0; i < MESSAGES; i++) {
			if (!taken[i] && message_of(source, seed, from, to, i).tag == tag) {
				taken[i] = true;
				return i;
			}
		}
	}
	return -1;
}

static void receive_all(ddp_comm *comm, const unsigned char *source, int seed, int from)
{
	unsigned char *place = malloc(LONGEST);
	bool taken[MESSAGES] = { false };

	CHECK(place != NULL);
	for (int n = 0; n < MESSAGES; n++) {
		const message m = message_of(source, seed, from, ddp_comm_rank(comm),
		                             next_message(source, seed, from, ddp_comm_rank(comm), taken, n));
		memset(place, 0, m.bytes);
		CHECK_OK(ddp_recv(comm, place, m.bytes, DDP_U8, from, m.tag));
		CHECK(memcmp(place, m.data, m.bytes) == 0);
	}
	free(place);
}

static int send_at_random(ddp_comm *comm, void *argument)
{
	const int seed = *(const int *)argument, rank = ddp_comm_rank(comm), size = ddp_comm_size(comm);
	unsigned char *source = malloc(LONGEST + MIB);
	ddp_request *requests[3][MESSAGES];

	CHECK(source != NULL && size <= 3);
	for (size_t i = 0; i < LONGEST + MIB; i++)
		source[i] = (unsigned char)(i * 2654435761u >> 13);
	for (int to = 0; to < size; to++) {
		for (int i = 0; i < MESSAGES && to != rank; i++) {
			const message m = message_of(source, seed, rank, to, i);
			CHECK_OK(ddp_issue(comm, &(ddp_operation){ .kind = DDP_SEND, .send = m.data, .count = m.bytes,
			                                            .type = DDP_U8, .root = to, .tag = m.tag }, &requests[to][i]));
		}
	}
	for (int k = 1; k < size; k++)
		receive_all(comm, source, seed, (rank + k) % size);
	for (int to = 0; to < size; to++) {
		for (int i = 0; i < MESSAGES && to != rank; i++)
			CHECK_OK(ddp_wait(requests[to][i]));
	}
	CHECK_OK(ddp_barrier(comm));
	free(source);
	return 0;
}

TEST(messages_of_a_node_come_in_any_order)
{
	for (int seed = 0; seed < SEEDS; seed++)
		RUN_WORLD(.ranks = 2 + seed % 2, .timeout_ms = TIMEOUT_MS, .body = send_at_random, .argument = &seed);
}

/* ---- a rank dies meanwhile -------------------------------------------------------------- */

/* Rank 0 is late, and kills the rank that `argument` points at: itself, or the one
   that waits for it. */
static int die_late(ddp_comm *comm, void *argument)
{
	const int *victim = argument;
	size_t bytes = total_bytes();
	char *memory = repeated(bytes), name[32];

	CHECK_OK(ddp_barrier(comm));
	test_ranks_together();
	if (ddp_comm_rank(comm) == 0) {
		be_late(comm);
		kill((pid_t)comm->roster->peers[*victim].pid, SIGKILL);
	}
	CHECK(ddp_broadcast(comm, memory, bytes, DDP_U8, 1) == DDP_ERR_PEER);
	snprintf(name, sizeof(name), "rank %d on n%d", *victim, nodes[*victim]);
	CHECK_SAYS(name);
	return 0;
}

TEST(a_death_beyond_the_credit_is_noticed)
{
	for (int victim = 0; victim < 2; victim++)
		RUN_WORLD(.ranks = 2, .node_of = nodes, .body = die_late, .argument = &victim, .expect_deaths = true);
}
