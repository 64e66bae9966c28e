/* How often the progress thread runs while callers look after the network. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm_ranks.h"

enum { OPERATIONS = 2000, DOZE_MS = 10 };

static long switches_of(const char *thread)
{
	char path[300], line[128];
	long sum = 0, number;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread);
	FILE *file = fopen(path, "r");
	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		const char *colon = strstr(line, "voluntary_ctxt_switches:");
		if (colon != NULL && sscanf(colon, "voluntary_ctxt_switches: %ld", &number) == 1)
			sum += number;
	}
	if (file != NULL)
		fclose(file);
	return sum;
}

/* How often all threads but the calling one were put on a core. */
static long switches_of_others(void)
{
	DIR *threads = opendir("/proc/self/task");
	const struct dirent *entry;
	long sum = 0;

	CHECK(threads != NULL);
	while ((entry = readdir(threads)) != NULL) {
		if (entry->d_name[0] != '.' && atol(entry->d_name) != syscall(SYS_gettid))
			sum += switches_of(entry->d_name);
	}
	closedir(threads);
	return sum;
}

static int reduce_often(ddp_comm *comm, void *argument)
{
	float x = 1;

	(void)argument;
	for (int i = 0; i < 10; i++)
		CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_MAX));
	long before = switches_of_others();
	uint64_t start = ddp_now_ns();
	for (int i = 0; i < OPERATIONS; i++)
		CHECK_OK(ddp_all_reduce(comm, NULL, &x, 1, DDP_F32, DDP_MAX));
	long dozes = (long)(ddp_seconds_since(start) * 1000) / DOZE_MS + 1;
	long switches = switches_of_others() - before;
	if (switches > OPERATIONS / 4 + 4 * dozes)
		fprintf(stderr, "# %ld switches in %d operations, %ld dozes\n", switches, OPERATIONS, dozes);
	CHECK(switches <= OPERATIONS / 4 + 4 * dozes);
	return 0;
}

static void messages_that_a_caller_waits_for_wake_no_other_thread(void **state)
{
	static const int nodes[] = { 0, 1 };
	const test_world world = { .ranks = 2, .node_of = nodes, .body = reduce_often };

	(void)state;
	assert_int_equal(test_world_run(&world), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(messages_that_a_caller_waits_for_wake_no_other_thread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
