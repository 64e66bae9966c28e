/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/node/supervise: pages that outlive tasks, and which tasks still live. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/node/supervise.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

static struct supervise supervise;

static void start(uint32_t tasks)
{
	struct error error = { "" };

	if (!supervise_start(&supervise, tasks, geteuid(), &error))
		fail_msg("%s", error.text);
}

/* A task that waits to be killed. */
static pid_t fork_task(void)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		pause();
		_exit(0);
	}
	return pid;
}

TEST(page_outlives_its_task)
{
	struct ddp_progress progress;
	pid_t pid;

	start(3);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char *page = mmap(NULL, DDP_PROGRESS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
		                  supervise.progress_fd, 2 * DDP_PROGRESS_BYTES);
		if (page == MAP_FAILED)
			_exit(1);
		*(struct ddp_progress *)page = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .step = 42 };
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	supervise_read(&supervise, 2, &progress);
	assert_int_equal(progress.magic, DDP_PROGRESS_MAGIC);
	assert_int_equal(progress.step, 42);
	supervise_read(&supervise, 1, &progress);
	assert_int_equal(progress.magic, 0);
	supervise_end(&supervise);
}

TEST(file_passes_exec_and_keeps_out_of_the_way)
{
	start(1);
	assert_true(supervise.progress_fd >= 40);
	assert_int_equal(fcntl(supervise.progress_fd, F_GETFD) & FD_CLOEXEC, 0);
	supervise_end(&supervise);
}

/* The descriptors that the process has room for. */
static int room_for_descriptors(void)
{
	char line[256];
	int room = -1;
	FILE *file = fopen("/proc/self/status", "re");

	assert_non_null(file);
	while (room < 0 && fgets(line, sizeof(line), file) != NULL)
		sscanf(line, "FDSize: %d", &room);
	fclose(file);
	assert_true(room > 0);
	return room;
}

/* In a process whose table has the least size: it is cut to that by fork(), if
   nothing else keeps a high number open. */
static int growth_of_the_table(void)
{
	int status = -1;
	pid_t pid;

	for (int fd = 40; fd < 4096; fd++)
		close(fd);
	pid = fork();
	if (pid == 0) {
		int before = room_for_descriptors();
		start(4);
		_exit(room_for_descriptors() == before ? 0 : 1);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

/* A threaded slurmstepd waits 10 ms for a larger one: 4% of a short step. */
TEST(file_needs_no_larger_table_of_descriptors)
{
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(growth_of_the_table());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

TEST(file_is_private_and_keeps_its_size)
{
	struct stat info;

	start(2);
	assert_int_equal(ftruncate(supervise.progress_fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(supervise.progress_fd, 1 << 20), -1);
	assert_int_equal(fcntl(supervise.progress_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(fstat(supervise.progress_fd, &info), 0);
	assert_int_equal(info.st_mode & 07777, 0600);
	supervise_end(&supervise);
}

TEST(page_that_is_not_there_reads_as_zero)
{
	struct ddp_progress progress = { .magic = 1 };

	start(2);
	supervise_read(&supervise, 2, &progress);
	assert_int_equal(progress.magic, 0);
	close(supervise.progress_fd);
	supervise.progress_fd = -1;
	progress.magic = 1;
	supervise_read(&supervise, 0, &progress);
	assert_int_equal(progress.magic, 0);
	supervise_end(&supervise);
}

TEST(impossible_numbers_of_tasks_are_refused)
{
	struct error error = { "" };

	assert_false(supervise_start(&supervise, 0, geteuid(), &error));
	assert_false(supervise_start(&supervise, UINT32_MAX, geteuid(), &error));
	assert_non_null(strstr(error.text, "4294967295 tasks"));
	supervise_end(&supervise);
}

TEST(node_of_rank_zero_is_known)
{
	start(3);
	assert_false(supervise_holds_rank_zero(&supervise));
	supervise.shared->task[0].rank = 5;
	assert_false(supervise_holds_rank_zero(&supervise));
	supervise.shared->task[2].rank = 0;
	assert_true(supervise_holds_rank_zero(&supervise));
	supervise_end(&supervise);
}

TEST(one_task_of_a_node_tells)
{
	int told = 0;

	start(8);
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			_exit(supervise_tell_once(&supervise) ? 1 : 0);
	}
	for (int i = 0; i < 8; i++) {
		int status;
		assert_true(wait(&status) > 0);
		told += WEXITSTATUS(status);
	}
	assert_int_equal(told, 1);
	assert_false(supervise_tell_once(&supervise));
	supervise_end(&supervise);
}

/* srun hears first what is wrong, and then how tasks end. */
TEST(tasks_end_after_the_words)
{
	atomic_bool *said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(said != MAP_FAILED);
	start(8);
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid != 0)
			continue;
		if (supervise_tell_once(&supervise)) {
			usleep(100000);
			atomic_store(said, true);
			supervise_told(&supervise);
		}
		supervise_await_told(&supervise);
		_exit(atomic_load(said) ? 0 : 1);
	}
	for (int i = 0; i < 8; i++) {
		int status;
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	munmap(said, sizeof(*said));
	supervise_end(&supervise);
}

/* Until the task has ended, unreaped. */
static void await_end(pid_t pid)
{
	siginfo_t info;

	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

TEST(lone_death_is_told_from_a_common_one)
{
	pid_t pids[3];

	start(3);
	for (uint32_t i = 0; i < 3; i++)
		supervise_forked(&supervise, i, pids[i] = fork_task());
	assert_false(supervise_count_ends(&supervise).all_ended);
	assert_int_equal(supervise_left(&supervise), 3);
	kill(pids[0], SIGKILL);
	assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
	supervise_reaped(&supervise, 0, SIGKILL);
	assert_false(supervise_count_ends(&supervise).all_ended);
	kill(pids[1], SIGKILL);
	kill(pids[2], SIGKILL);
	await_end(pids[1]);
	await_end(pids[2]);
	assert_true(supervise_count_ends(&supervise).all_ended);
	assert_true(supervise_count_ends(&supervise).all_killed);
	assert_int_equal(supervise_left(&supervise), 2);
	/* It reaps nothing: that is slurmstepd's. */
	assert_int_equal(waitpid(pids[1], NULL, 0), pids[1]);
	assert_int_equal(waitpid(pids[2], NULL, 0), pids[2]);
	supervise_end(&supervise);
}

/* A task that ends as told. */
static pid_t fork_end(int code, int number)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		if (number != 0)
			kill(getpid(), number);
		_exit(code);
	}
	return pid;
}

TEST(failures_of_their_own_are_told_from_killed_tasks)
{
	static const struct { int code, number; bool failed, killed; } cases[] = {
		{ 0, 0, false, false }, { 1, 0, true, false }, { 137, 0, false, true },
		{ 143, 0, false, false }, { 0, SIGKILL, false, true }, { 0, SIGTERM, false, false },
		{ 0, SIGUSR1, true, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pid_t pid = fork_end(cases[i].code, cases[i].number);
		int status;
		start(2);
		supervise_forked(&supervise, 0, pid);
		await_end(pid);
		/* As it is before slurmstepd has reaped it, and after. */
		for (int reaped = 0; reaped < 2; reaped++) {
			struct supervise_ends ends = supervise_count_ends(&supervise);
			assert_true(ends.all_ended);
			assert_int_equal(ends.any_failed, cases[i].failed);
			assert_int_equal(ends.all_killed, cases[i].killed);
			if (reaped == 0) {
				assert_int_equal(waitpid(pid, &status, 0), pid);
				supervise_reaped(&supervise, 0, status);
			}
		}
		supervise_end(&supervise);
	}
}

/* With a core dump, if the system makes any: a small one, in the tests' folder. */
static void end_by(int number)
{
	const struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	int fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);

	if (chdir(test_folder) != 0 || fd < 0 || write(fd, "0", 1) != 1)
		_exit(1);
	setrlimit(RLIMIT_CORE, &all);
	signal(number, SIG_DFL);
	raise(number);
	_exit(1);
}

/* As waitpid() gives it, also after a core dump. */
TEST(status_before_slurms_is_the_same)
{
	static const int statuses[] = { W_EXITCODE(0, 0), W_EXITCODE(7, 0), SIGKILL, SIGABRT };

	start(1);
	for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
		int early = -1, late = -1;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0 && WIFEXITED(statuses[i]))
			_exit(WEXITSTATUS(statuses[i]));
		if (pid == 0)
			end_by(WTERMSIG(statuses[i]));
		supervise_forked(&supervise, 0, pid);
		await_end(pid);
		assert_int_equal(supervise_state(&supervise, 0, &early), TASK_ENDED);
		assert_int_equal(waitpid(pid, &late, 0), pid);
		assert_int_equal(early, late);
		assert_int_equal(late & 0x7f7f, statuses[i]);
	}
	supervise_end(&supervise);
}

TEST(ending_twice_does_no_harm)
{
	start(1);
	supervise_end(&supervise);
	supervise_end(&supervise);
	assert_true(supervise_count_ends(&supervise).all_ended);
	assert_true(supervise_tell_once(&supervise));
}

int main(void)
{
	return test_run(folder_make, folder_remove);
}
