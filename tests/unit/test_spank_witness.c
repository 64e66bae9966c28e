/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/witness, and memory_*() of spank/node/supervise: what a node sees beside the ends of its tasks. */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/node/supervise.h"
#include "spank/wire/timeline.h"
#include "spank/witness/witness.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

static struct witness *shared;

/* Memory that children have, too. */
static void *share(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(memory != MAP_FAILED);
	return memory;
}

/* A task, child of this process as of slurmstepd, as fork() gives it. */
static pid_t fork_task(void)
{
	pid_t pid;

	shared = share(sizeof(*shared));
	assert_int_equal(witness_sent(shared), SENT_UNKNOWN);
	assert_false(witness_was_killed(shared));
	pid = fork();
	assert_true(pid >= 0);
	return pid;
}

static void do_nothing(int number)
{
	(void)number;
}

/* The kernel tells a process's groups before its signals. Root alone can have many. */
TEST(signals_are_read_behind_many_groups)
{
	static gid_t groups[4000];
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		for (gid_t i = 0; i < 4000; i++)
			groups[i] = 100000 + i;
		/* A container may allow no groups. */
		_exit(geteuid() == 0 && setgroups(4000, groups) != 0 ? 77
		      : signal(SIGUSR2, do_nothing) == SIG_ERR       ? 2
		      : (proc_status(getpid()).caught >> (SIGUSR2 - 1) & 1) == 0 ? 3
		      : !proc_status(getpid()).runs                  ? 4
		                                                     : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

/* One that makes the witness and ends. */
static void make_with(const struct witness_words *words)
{
	int status = -1;
	pid_t pid = fork_task();

	if (pid == 0) {
		witness_make(shared, words);
		witness_make(shared, words);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(shared->pid > 0 && shared->pid != pid);
}

static void make(bool kill_tasks)
{
	make_with(&(struct witness_words){ .address = "127.0.0.1", .text = "dead", .kill_tasks = kill_tasks });
}

/* Without pidfd_open() there is none. */
static void await_keeper(void)
{
	uint64_t deadline = ddp_now_ns() + 10000000000u;
	int process = handle_open(getpid());

	if (process < 0)
		skip();
	close(process);
	while (atomic_load(&shared->keeper) == 0 && ddp_now_ns() < deadline)
		usleep(1000);
	assert_true(shared->keeper > 0);
}

static void finish(void)
{
	witness_end(shared);
	/* It was the only child, and is reaped. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	munmap(shared, sizeof(*shared));
}

/* In the task that makes the witness and in others. */
TEST(no_program_begins_without_the_witness)
{
	const struct witness_words words = { .address = "", .text = "" };
	int status = -1;
	pid_t pid = fork_task();

	if (pid == 0) {
		uint64_t start_ns = ddp_now_ns();
		atomic_store(&shared->made, WITNESS_BEGUN);
		witness_make(shared, &words);
		_exit(ddp_now_ns() - start_ns < 50000000);
	}
	while (atomic_load(&shared->made) == WITNESS_NONE)
		usleep(1000);
	usleep(50000);
	atomic_store(&shared->made, WITNESS_DONE);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	finish();
}

TEST(short_step_has_no_keeper)
{
	uint64_t start_ns = ddp_now_ns();

	make(false);
	await_keeper();
	/* KEEPER_MS */
	assert_true(ddp_now_ns() - start_ns >= 50000000);
	finish();
}

/* While one makes the other. */
TEST(both_end_whenever_the_step_ends)
{
	for (int i = 0; i < 10; i++) {
		make(false);
		usleep(47000 + 500 * (useconds_t)i);
		finish();
	}
}

/* The user may have no more processes for a while. */
TEST(keeper_comes_as_soon_as_it_can)
{
	const struct witness_words words = { .address = "", .text = "" };
	const struct rlimit two = { 2, 2 };
	const uid_t user = 61234; /* of no other processes */
	pid_t pid;

	if (getuid() != 0)
		skip();
	pid = fork_task();
	if (pid == 0) {
		if (setrlimit(RLIMIT_NPROC, &two) == 0 && setresuid(user, user, user) == 0)
			witness_make(shared, &words);
		pause();
	}
	while (atomic_load(&shared->pid) == 0)
		usleep(1000);
	usleep(200000);
	assert_int_equal(shared->keeper, 0);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	await_keeper();
	finish();
}

/* For up to 10 s, with the witness as a process of its own; false if it never was so. */
static bool comes_to(enum slurm_sent sent)
{
	uint64_t deadline = ddp_now_ns() + 10000000000u;

	while (ddp_now_ns() < deadline) {
		if (witness_sent(shared) == sent)
			return true;
		usleep(1000);
	}
	return false;
}

TEST(witness_notes_what_the_step_is_sent)
{
	make(false);
	assert_int_equal(witness_sent(shared), SENT_NOTHING);
	kill(shared->pid, SIGWINCH);
	kill(shared->pid, SIGCONT);
	usleep(50000);
	assert_int_equal(witness_sent(shared), SENT_NOTHING);
	kill(shared->pid, SIGUSR1);
	/* At once: it counts also before the witness has run. */
	while (atomic_load(&shared->word_ns) == 0)
		assert_int_equal(witness_sent(shared), SENT_SIGNAL);
	assert_int_equal(witness_sent(shared), SENT_SIGNAL);
	/* An end that comes much later is not a consequence of the signal. */
	atomic_store(&shared->word_ns, ddp_now_ns() - SIGNAL_SECONDS * 1000000000ull);
	assert_int_equal(witness_sent(shared), SENT_NOTHING);
	kill(shared->pid, SIGRTMIN + 3);
	assert_true(comes_to(SENT_SIGNAL));
	kill(shared->pid, SIGTERM);
	/* At once: it counts also before the witness has run. */
	while (!atomic_load(&shared->asked_to_stop))
		assert_int_equal(witness_sent(shared), SENT_STOP);
	assert_int_equal(witness_sent(shared), SENT_STOP);
	kill_witness(shared);
	assert_int_equal(witness_sent(shared), SENT_STOP);
	finish();
}

/* In a process of its own, as a program of the user's. */
static void in_a_child(pid_t target, int number)
{
	int status = -1;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(kill(target, number) == 0 ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Only slurmstepd speaks for Slurm: here this process, whose children the tasks are. */
TEST(stop_of_a_program_is_not_slurms)
{
	make(false);
	for (int i = 0; i < 20; i++) {
		in_a_child(shared->pid, SIGTERM);
		in_a_child(shared->pid, SIGINT);
		in_a_child(shared->pid, SIGUSR1);
		/* Also while it waits for the witness. */
		assert_int_equal(witness_sent(shared), SENT_NOTHING);
	}
	kill(shared->pid, SIGINT);
	assert_int_equal(witness_sent(shared), SENT_STOP);
	finish();
}

/* A stopped process takes no signal: whose this is, nobody can tell. */
TEST(stop_that_nobody_has_read_counts)
{
	make(false);
	kill(shared->pid, SIGSTOP);
	assert_int_equal(waitpid(shared->pid, NULL, WUNTRACED), shared->pid);
	in_a_child(shared->pid, SIGTERM);
	assert_int_equal(witness_sent(shared), SENT_STOP);
	kill(shared->pid, SIGCONT);
	assert_true(comes_to(SENT_NOTHING));
	finish();
}

/* What a task does to its own process group is none of Slurm's doing. */
TEST(tasks_group_is_not_the_witness_s)
{
	static const int numbers[] = { SIGTERM, SIGKILL };

	for (size_t i = 0; i < COUNT(numbers); i++) {
		const struct witness_words words = { .address = "", .text = "" };
		int status = -1;
		pid_t pid = fork_task();
		if (pid == 0) {
			setpgid(0, 0);
			witness_make(shared, &words);
			while (getpgid(shared->pid) == getpgrp())
				usleep(1000);
			kill(0, numbers[i]);
			_exit(1);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, numbers[i]);
		assert_int_equal(witness_sent(shared), SENT_NOTHING);
		finish();
	}
}

/* Where the group is all that Slurm knows the step by. */
TEST(witness_stays_in_a_group_that_slurm_tracks)
{
	const struct witness_words words = { .address = "", .text = "", .stay_in_group = true };
	pid_t pid = fork_task();

	if (pid == 0) {
		setpgid(0, 0);
		witness_make(shared, &words);
		pause();
	}
	while (atomic_load(&shared->pid) == 0)
		usleep(1000);
	kill(-pid, SIGTERM);
	assert_true(comes_to(SENT_STOP));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	finish();
}

TEST(end_of_the_witness_is_told)
{
	make(false);
	kill(shared->pid, SIGUSR1);
	assert_true(comes_to(SENT_SIGNAL));
	kill_witness(shared);
	assert_int_equal(witness_sent(shared), SENT_KILL);
	/* Also once somebody else, as slurmstepd's own wait(), has reaped it. */
	assert_int_equal(waitpid(shared->pid, NULL, 0), shared->pid);
	assert_int_equal(witness_sent(shared), SENT_KILL);
	finish();
}

/* A debugger that holds the process: nobody else may reap it meanwhile. 0: this user or this kernel allows none. */
static pid_t hold(pid_t pid)
{
	int ready[2];
	char byte = 0;
	pid_t debugger;

	assert_int_equal(pipe(ready), 0);
	debugger = fork();
	assert_true(debugger >= 0);
	if (debugger == 0) {
		bool held = ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0;
		if (held && write(ready[1], &byte, 1) == 1)
			sleep(60);
		_exit(0);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1) {
		assert_int_equal(waitpid(debugger, NULL, 0), debugger);
		debugger = 0;
	}
	close(ready[0]);
	return debugger;
}

static void let_go(pid_t debugger)
{
	kill(debugger, SIGKILL);
	assert_int_equal(waitpid(debugger, NULL, 0), debugger);
}

/* slurmstepd ends for all that. */
TEST(a_witness_that_cannot_be_reaped_is_left)
{
	pid_t debugger;

	make(false);
	await_keeper();
	debugger = hold(shared->pid);
	if (debugger == 0) {
		finish();
		skip();
	}
	alarm(60);
	witness_end(shared);
	alarm(0);
	assert_true(child_runs(shared->pid) || waitpid(shared->pid, NULL, WNOHANG) == 0);
	let_go(debugger);
	assert_true(child_reap(shared->pid, 60000, NULL));
	assert_true(child_reap(shared->keeper, 0, NULL));
	munmap(shared, sizeof(*shared));
}

TEST(only_a_child_that_runs_is_signalled)
{
	int status = -1;
	pid_t debugger, child = fork();

	assert_true(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
		for (;;)
			pause();
	}
	assert_true(child_runs(child));
	assert_false(child_reap(child, 10, &status));
	assert_false(child_runs(0) || child_runs(getppid()));
	assert_false(child_signal(getppid(), 0) || child_signal(0, 0));
	debugger = hold(child);
	assert_true(child_signal(child, SIGKILL));
	if (debugger > 0) {
		/* The kernel tells of its end, and does not give it yet. */
		assert_false(child_reap(child, 50, &status));
		let_go(debugger);
	}
	while (child_runs(child))
		usleep(1000);
	assert_false(child_signal(child, SIGKILL));
	assert_true(child_reap(child, 0, &status));
	assert_int_equal(status, SIGKILL);
	assert_true(child_reap(child, 60000, &status));
	assert_int_equal(status, -1);
}

/* ---- looks ------------------------------------------------------------------------ */

static struct { atomic_int looks, begun, given_up; atomic_bool asked_to_stop; } *looked;

static void begin_again(void *about)
{
	atomic_fetch_add(&looked->begun, about == looked);
}

/* The first time, srun does not answer. */
static bool give_up(void *about)
{
	return atomic_fetch_add(&looked->given_up, about == looked) > 0;
}

static int look(void *about, bool asked_to_stop)
{
	atomic_store(&looked->asked_to_stop, asked_to_stop);
	atomic_fetch_add(&looked->looks, about == looked);
	return 5;
}

/* Whether looks come, or no more; for up to 10 s. */
static bool looks_go_on(bool wanted)
{
	uint64_t deadline = ddp_now_ns() + 10000000000u;
	int before, after;

	do {
		before = atomic_load(&looked->looks);
		usleep(50000);
		after = atomic_load(&looked->looks);
	} while ((after > before) != wanted && ddp_now_ns() < deadline);
	return (after > before) == wanted;
}

TEST(witness_looks_unless_the_step_is_suspended)
{
	struct witness_words words = { .address = "127.0.0.1", .text = "dead", .look_ms = 5, .look = look };

	looked = share(sizeof(*looked));
	words.about = looked;
	make_with(&words);
	assert_true(looks_go_on(true));
	assert_false(looked->asked_to_stop);
	kill(shared->pid, SIGTSTP);
	assert_true(looks_go_on(false));
	kill(shared->pid, SIGUSR1);
	assert_true(looks_go_on(false));
	kill(shared->pid, SIGCONT);
	assert_true(looks_go_on(true));
	kill(shared->pid, SIGTERM);
	while (!atomic_load(&looked->asked_to_stop))
		usleep(1000);
	assert_int_equal(witness_sent(shared), SENT_STOP);
	finish();
	munmap(looked, sizeof(*looked));
}

/* Somebody kills the witness; gives the one that its keeper then makes. */
static pid_t replace(void)
{
	uint64_t deadline = ddp_now_ns() + 10000000000u;
	pid_t pid = shared->pid;

	await_keeper();
	kill(pid, SIGKILL);
	while (shared->pid == pid && ddp_now_ns() < deadline) {
		/* Meanwhile the keeper is there: nothing is in doubt. */
		assert_int_equal(witness_sent(shared), SENT_NOTHING);
		usleep(1000);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_true(shared->pid != pid && shared->pid > 0);
	return shared->pid;
}

TEST(killed_witness_is_replaced)
{
	struct witness_words words = { .address = "127.0.0.1", .text = "dead", .look_ms = 5, .look = look,
		                       .begin_again = begin_again };

	looked = share(sizeof(*looked));
	words.about = looked;
	make_with(&words);
	for (int times = 1; times <= 2; times++) {
		replace();
		assert_true(looks_go_on(true));
		assert_int_equal(looked->begun, times);
		assert_int_equal(witness_sent(shared), SENT_NOTHING);
	}
	kill(shared->pid, SIGTERM);
	assert_true(comes_to(SENT_STOP));
	finish();
	munmap(looked, sizeof(*looked));
}

/* Slurm may send something while there is no witness. */
TEST(keeper_notes_what_the_step_is_sent)
{
	make(false);
	await_keeper();
	kill(shared->pid, SIGKILL);
	kill(shared->keeper, SIGUSR1);
	assert_true(comes_to(SENT_SIGNAL));
	kill(shared->keeper, SIGTERM);
	assert_true(comes_to(SENT_STOP));
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
	finish();
}

/* The witness alone still tells all. */
TEST(witness_outlives_its_keeper)
{
	make(false);
	await_keeper();
	kill(shared->keeper, SIGKILL);
	assert_int_equal(waitpid(shared->keeper, NULL, 0), shared->keeper);
	assert_int_equal(witness_sent(shared), SENT_NOTHING);
	kill(shared->pid, SIGTERM);
	assert_true(comes_to(SENT_STOP));
	finish();
}

/* -1: only root may look into it. */
static int open_files_of(pid_t pid)
{
	char path[64];
	struct dirent *entry;
	DIR *folder;
	int open_files = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	folder = opendir(path);
	if (folder == NULL)
		return -1;
	while ((entry = readdir(folder)) != NULL)
		open_files += entry->d_name[0] != '.';
	closedir(folder);
	return open_files;
}

TEST(witness_holds_nothing_open)
{
	uint64_t deadline = ddp_now_ns() + 10000000000u;
	char path[64];
	struct stat info;

	make(false);
	while (open_files_of(shared->pid) > 0 && ddp_now_ns() < deadline)
		usleep(1000);
	snprintf(path, sizeof(path), "/proc/%d", (int)shared->pid);
	assert_int_equal(stat(path, &info), 0);
	assert_true(open_files_of(shared->pid) <= 0);
	finish();
}

/* A slurmstepd of its own, with a task in a process group, that is then killed. */
TEST(tasks_go_with_a_dead_slurmstepd)
{
	pid_t *task = share(sizeof(*task));
	int ended[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ended), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		pid_t child;
		shared = share(sizeof(*shared));
		child = fork();
		if (child == 0) {
			const struct witness_words words = { .address = "", .text = "", .kill_tasks = true };
			setpgid(0, 0);
			witness_make(shared, &words);
			*task = getpid();
			pause();
		}
		while (*task == 0)
			usleep(1000);
		usleep(50000);
		kill(getpid(), SIGKILL);
	}
	close(ended[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	/* The task was the last to hold the pipe. */
	assert_int_equal(read(ended[0], &byte, 1), 0);
	close(ended[0]);
	munmap(task, sizeof(*task));
}

/* Its keeper can make no more: it tells what the witness would tell. */
TEST(keeper_without_a_witness_takes_its_place)
{
	int ended[2], status = -1;
	char byte;
	pid_t pid;

	looked = share(sizeof(*looked));
	assert_int_equal(pipe(ended), 0);
	pid = fork();
	assert_true(pid >= 0);
	/* A slurmstepd of its own. */
	if (pid == 0) {
		const struct witness_words words = { .address = "", .text = "", .kill_tasks = true, .look_ms = 1000,
			                             .look = look, .give_up = give_up, .about = looked };
		pid_t task = fork_task(), killed = 0;
		if (task == 0) {
			setpgid(0, 0);
			witness_make(shared, &words);
			/* Not to outlive a test that fails by long. */
			sleep(60);
			_exit(0);
		}
		for (int i = 0; i < 10000 && shared->keeper == 0; i++)
			usleep(1000);
		if (shared->keeper == 0) {
			kill(task, SIGKILL);
			witness_end(shared);
			_exit(1);
		}
		/* On a busy machine the keeper may not have counted one that was killed at once. */
		while (looked->given_up < 2) {
			const pid_t witness = shared->pid;
			if (witness > 0 && witness != killed) {
				kill(witness, SIGKILL);
				waitpid(witness, NULL, 0);
				killed = witness;
			}
			usleep(1000);
		}
		kill(getpid(), SIGKILL);
	}
	close(ended[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	/* The task is the last to hold the pipe. */
	alarm(10);
	assert_int_equal(read(ended[0], &byte, 1), 0);
	alarm(0);
	close(ended[0]);
	if (WIFSIGNALED(status))
		assert_int_equal(looked->given_up, 2);
	munmap(looked, sizeof(*looked));
}

TEST(memory_is_found_in_either_version)
{
	static const struct { const char *text, *path; } cases[] = {
		{ "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n",
		  "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.events" },
		{ "0::/user.slice\n", "/sys/fs/cgroup/user.slice/memory.events" },
		{ "0::/a", "/sys/fs/cgroup/a/memory.events" },
		{ "5:cpuset:/\n4:memory:/slurm/uid_0/job_7/step_0/task_1\n0::/\n",
		  "/sys/fs/cgroup/memory/slurm/uid_0/job_7/step_0/memory.oom_control" },
		{ "4:cpu,memory:/a\n0::/b\n", "/sys/fs/cgroup/memory/a/memory.oom_control" },
		{ "0::/b\n4:memory:/a\n", "/sys/fs/cgroup/memory/a/memory.oom_control" },
		{ "4:memoryless:/a\n", NULL }, { "4:memory", NULL }, { "0::", NULL }, { "", NULL },
		{ "0::relative\n", NULL }, { "\n\n", NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char path[MEMORY_PATH_MAX] = "";
		bool found = memory_find(cases[i].text, path);
		if (found != (cases[i].path != NULL) || (found && strcmp(path, cases[i].path) != 0))
			fail_msg("'%s' gave '%s'", cases[i].text, path);
	}
	char *longest = malloc(5000), path[MEMORY_PATH_MAX];
	assert_non_null(longest);
	memset(longest, 'x', 4999);
	memcpy(longest, "0::/", 4);
	longest[4999] = '\0';
	assert_false(memory_find(longest, path));
	free(longest);
	assert_int_equal(memory_kills("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), 2);
	assert_int_equal(memory_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), 5);
	assert_int_equal(memory_kills("oom 3"), 0);
	assert_int_equal(memory_kills(""), 0);
}

static void write_kills(const char *dir, const char *group, int kills)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, group);
	assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
	snprintf(path, sizeof(path), "%s/%s/memory.oom_control", dir, group);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", kills);
	assert_int_equal(fclose(file), 0);
}

/* Version 1 counts a kill in the task's own group only. */
TEST(memory_of_any_task_counts)
{
	char dir[] = "/tmp/test_spank_witness.XXXXXX", command[64];
	struct memory_watch watch = { .kills = 3 };

	assert_non_null(mkdtemp(dir));
	snprintf(watch.path, sizeof(watch.path), "%s/memory.oom_control", dir);
	write_kills(dir, ".", 1);
	write_kills(dir, "task_0", 2);
	write_kills(dir, "task_1", 0);
	write_kills(dir, "other", 9);
	assert_false(memory_ran_out(&watch));
	write_kills(dir, "task_1", 1);
	assert_true(memory_ran_out(&watch));
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

static bool write_file(const char *folder, const char *name, const char *text)
{
	char path[256];
	FILE *file;
	bool written;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	if (file == NULL)
		return false;
	written = fputs(text, file) >= 0;
	return fclose(file) == 0 && written;
}

/* A real cgroup of 16 MiB, where this machine and user allow one: in either
   version's place. */
TEST(out_of_memory_killer_is_seen)
{
	char folder[128];
	int there[2], go[2], status = -1;
	struct memory_watch watch;
	char byte = 0;
	pid_t pid;
	bool limited;

	snprintf(folder, sizeof(folder), "/sys/fs/cgroup/memory/ddp-test-%d", (int)getpid());
	limited = mkdir(folder, 0700) == 0 && write_file(folder, "memory.limit_in_bytes", "16777216");
	if (!limited) {
		snprintf(folder, sizeof(folder), "/sys/fs/cgroup/ddp-test-%d", (int)getpid());
		limited = mkdir(folder, 0700) == 0 && write_file(folder, "memory.max", "16777216");
	}
	if (!limited) {
		rmdir(folder);
		skip();
	}
	assert_int_equal(pipe(there), 0);
	assert_int_equal(pipe(go), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(go[1]);
		if (write_file(folder, "cgroup.procs", "0") && write(there[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1) {
			char *memory = malloc(256u << 20);
			if (memory != NULL)
				memset(memory, 1, 256u << 20);
			_exit(memory != NULL ? memory[12345] : 2);
		}
		_exit(3);
	}
	close(there[1]);
	(void)!read(there[0], &byte, 1); /* none from one that could not go there */
	close(there[0]);
	memory_start(&watch, pid);
	assert_false(memory_ran_out(&watch));
	assert_int_equal(write(go[1], &byte, 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(go[0]);
	close(go[1]);
	/* Where the kernel swaps instead, nobody is killed. */
	if (WIFSIGNALED(status) && watch.path[0] != '\0')
		assert_true(memory_ran_out(&watch));
	rmdir(folder);
}
