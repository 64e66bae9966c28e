/*
 * A rank that comes late: what others send it meanwhile takes a bounded part of its
 * memory, whatever the sizes. DDP_TEST_MIB is what each case sends in all; the
 * buffers are the same few pages over and over.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/core/comm.h"
#include "tests/support/comm_ranks.h"

enum {
	MIB = 1 << 20,
	PAGES_MIB = 16,  /* that a buffer repeats */
#ifdef __SANITIZE_THREAD__ /* it keeps four bytes more of each that is touched */
	LIMIT_MIB = 5 * 64,
#else
	LIMIT_MIB = 64,  /* a window is 16 MiB */
#endif
	LOOK_MS = 500,
	LOOKS_MAX = 60,
	TIMEOUT_MS = 300000, /* for gibibytes on a busy machine */
	PARTS = 300 * 1024
};

static const int two_nodes[] = { 0, 1 };

static size_t total_bytes(void)
{
	const char *text = getenv("DDP_TEST_MIB");

	return (size_t)(text != NULL ? atoi(text) : 96) * MIB;
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

/* Sleeps until what comes meanwhile takes no more memory. */
static void be_late(void)
{
	size_t before = anonymous_mib(), last = 0, now = before;

	for (int look = 0; look < LOOKS_MAX && (look < 2 || now > last); look++) {
		usleep(LOOK_MS * 1000);
		last = now;
		now = anonymous_mib();
		if (now > before + LIMIT_MIB)
			fprintf(stderr, "# %zu MiB before, %zu MiB after %d ms\n", before, now, (look + 1) * LOOK_MS);
		CHECK(now <= before + LIMIT_MIB);
	}
}

/* What ranks 0, which comes late, and 1 do. */
typedef ddp_status (*case_body)(ddp_comm *comm, char *memory, size_t bytes);

static int run_late(ddp_comm *comm, void *argument)
{
	const case_body *body = argument;
	size_t bytes = total_bytes();
	char *memory = repeated(bytes);

	memset(memory, ddp_comm_rank(comm), (size_t)PAGES_MIB * MIB);
	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0)
		be_late();
	CHECK_OK((*body)(comm, memory, bytes));
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

static void run(case_body body)
{
	const test_world world = { .ranks = 2, .node_of = two_nodes, .timeout_ms = TIMEOUT_MS, .body = run_late,
	                           .argument = &body };

	assert_int_equal(test_world_run(&world), 0);
}

/* ---- cases ------------------------------------------------------------------------------- */

static ddp_status broadcast_all(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = ddp_broadcast(comm, memory, bytes, DDP_U8, 1);

	CHECK(status != DDP_OK || (memory[0] == 1 && memory[bytes - 1] == 1));
	return status;
}

static void large_broadcast_waits_for_a_late_rank(void **state)
{
	(void)state;
	run(broadcast_all);
}

static ddp_status broadcast_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_broadcast(comm, memory, PARTS, DDP_U8, 1);
	CHECK(status != DDP_OK || memory[PARTS - 1] == 1);
	return status;
}

static void many_broadcasts_wait_for_a_late_rank(void **state)
{
	(void)state;
	run(broadcast_parts);
}

static ddp_status reduce_all(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = ddp_reduce(comm, NULL, memory, bytes / 4, DDP_F32, DDP_MAX, 0);

	CHECK(status != DDP_OK || (memory[0] == 1 && memory[bytes - 1] == 1));
	return status;
}

static void large_reduce_waits_for_a_late_root(void **state)
{
	(void)state;
	run(reduce_all);
}

static ddp_status gather_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_gather(comm, memory, memory + (size_t)ddp_comm_rank(comm) * PARTS, PARTS, DDP_U8, 0);
	return status;
}

static void many_gathers_wait_for_a_late_root(void **state)
{
	(void)state;
	run(gather_parts);
}

static ddp_status send_parts(ddp_comm *comm, char *memory, size_t bytes)
{
	ddp_status status = DDP_OK;

	for (size_t at = 0; at < bytes && status == DDP_OK; at += PARTS)
		status = ddp_comm_rank(comm) == 1 ? ddp_send(comm, memory, PARTS, DDP_U8, 0, 7)
		                                  : ddp_recv(comm, memory, PARTS, DDP_U8, 1, 7);
	return status;
}

static void many_sends_wait_for_a_late_receiver(void **state)
{
	(void)state;
	run(send_parts);
}

/* Large and small messages beyond the window, asked for in the reverse order. */
static ddp_status send_in_reverse(ddp_comm *comm, char *memory, size_t bytes)
{
	enum { COUNT = 200, LARGE = 256 * 1024 };
	ddp_request *requests[COUNT];
	static unsigned char data[COUNT][4];
	bool sends = ddp_comm_rank(comm) == 1;

	(void)bytes;
	for (int i = 0; i < COUNT; i++) {
		int tag = sends ? i : COUNT - 1 - i;
		bool small = tag % 3 != 0;
		void *place = small ? (void *)data[tag] : memory;
		if (sends && small)
			memset(data[tag], tag, sizeof(data[tag]));
		const ddp_collective c = { .kind = sends ? DDP_SEND : DDP_RECV, .send = place, .recv = place,
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

static void messages_beyond_the_window_come_in_any_order(void **state)
{
	(void)state;
	run(send_in_reverse);
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
		be_late();
		kill((pid_t)comm->roster->peers[*victim].pid, SIGKILL);
	}
	CHECK(ddp_broadcast(comm, memory, bytes, DDP_U8, 1) == DDP_ERR_PEER);
	snprintf(name, sizeof(name), "rank %d on n%d", *victim, two_nodes[*victim]);
	CHECK(strstr(ddp_last_error(), name) != NULL);
	return 0;
}

static void a_death_beyond_the_window_is_noticed(void **state)
{
	(void)state;
	for (int victim = 0; victim < 2; victim++) {
		const test_world world = { .ranks = 2, .node_of = two_nodes, .body = die_late,
		                           .argument = &victim, .expect_deaths = true };
		assert_int_equal(test_world_run(&world), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_broadcast_waits_for_a_late_rank),
		cmocka_unit_test(many_broadcasts_wait_for_a_late_rank),
		cmocka_unit_test(large_reduce_waits_for_a_late_root),
		cmocka_unit_test(many_gathers_wait_for_a_late_root),
		cmocka_unit_test(many_sends_wait_for_a_late_receiver),
		cmocka_unit_test(messages_beyond_the_window_come_in_any_order),
		cmocka_unit_test(a_death_beyond_the_window_is_noticed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
