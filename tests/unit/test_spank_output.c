/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/witness/pump: what tasks write reaches their files and SLURM, whatever happens to the tasks and to ddp-log. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "spank/base/worker.h"
#include "spank/witness/folder.h"
#include "spank/witness/pump.h"
#include "tests/support/test.h"

enum { WAIT_MS = 60000, TEXT_MAX = 1 << 20 };

static char folder[256];
static int control;
static char text[TEXT_MAX];

static int make(void **state)
{
	const struct owner owner = { .user = geteuid(), .group = getegid() };
	struct error error = { "" };

	snprintf(folder, sizeof(folder), "%s/output.XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(folder));
	control = pump_make(&owner, 4, &error);
	assert_string_equal(error.text, "");
	return 0;
}

static int end(void **state)
{
	char command[300];

	pump_end(control, WAIT_MS);
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return system(command);
}

/* A task's stream as the test sees it. */
struct ends {
	int in;  /* what the task writes to */
	int out; /* what SLURM reads from */
	int say;
};

/* `out`: where SLURM's side is written to, which this closes. */
static struct ends hand_over_with(int file, const char *label, int out)
{
	struct pump_stream stream = { .who = "rank 3 on n1" };
	struct error error = { "" };
	int in[2], say[2];

	snprintf(stream.label, sizeof(stream.label), "%s", label);
	snprintf(stream.path, sizeof(stream.path), "logs/%d", file);
	assert_return_code(pipe2(in, O_CLOEXEC), errno);
	assert_return_code(pipe2(say, O_CLOEXEC), errno);
	const int fds[PUMP_FDS] = { [PUMP_IN] = in[0], [PUMP_OUT] = out, [PUMP_FILE] = file, [PUMP_SAY] = say[1] };
	pump_add(control, &stream, fds, &error);
	assert_string_equal(error.text, "");
	close(in[0]);
	close(out);
	close(say[1]);
	return (struct ends){ in[1], -1, say[0] };
}

static struct ends hand_over(int file, const char *label)
{
	struct ends ends;
	int out[2];

	assert_return_code(pipe2(out, O_CLOEXEC), errno);
	ends = hand_over_with(file, label, out[1]);
	ends.out = out[0];
	return ends;
}

static int open_file(const char *name)
{
	char path[512];
	int file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	assert_return_code(file, errno);
	return file;
}

/* Everything up to the end. */
static const char *read_all(int fd)
{
	size_t used = 0;
	ssize_t got = 1;

	while (got > 0 && used < sizeof(text) - 1) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };
		assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
		got = read(fd, text + used, sizeof(text) - 1 - used);
		used += got > 0 ? (size_t)got : 0;
	}
	text[used] = '\0';
	close(fd);
	return text;
}

static const char *read_file(int file)
{
	assert_int_equal(lseek(file, 0, SEEK_SET), 0);
	return read_all(file);
}

static void put(int fd, const char *bytes)
{
	assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
}

/* Waits until a text is there: ddp-log ends a stream's file before SLURM's end of it. */
static void await_text(int file, const char *wanted)
{
	char now[4096];

	for (int look = 0; look < WAIT_MS / 10; look++) {
		ssize_t got = pread(file, now, sizeof(now) - 1, 0);
		now[got > 0 ? got : 0] = '\0';
		if (strcmp(now, wanted) == 0)
			return;
		pause_ms(10);
	}
	assert_string_equal(now, wanted);
}

TEST_WITH(each_line_gets_the_label_and_the_file_none, make, end)
{
	static const struct { const char *written, *shown; } cases[] = {
		{ "", "" },
		{ "one\ntwo\n", "[r] one\n[r] two\n" },
		{ "a last line without its end", "[r] a last line without its end\n" },
		{ "\n\n", "[r] \n[r] \n" },
		{ "dos\r\nline\r\n", "[r] dos\r\n[r] line\r\n" },
		{ "\r 10%\r 20%\r done\n", "[r] \r[r]  10%\r[r]  20%\r[r]  done\n" },
		{ "ends\r", "[r] ends\r" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int file = open_file("lines");
		struct ends ends = hand_over(file, "[r] ");
		assert_return_code(ftruncate(file, 0), errno);
		put(ends.in, cases[i].written);
		close(ends.in);
		assert_string_equal(read_all(ends.out), cases[i].shown);
		assert_string_equal(read_all(ends.say), "");
		assert_string_equal(read_file(file), cases[i].written);
	}
}

TEST_WITH(a_line_is_shown_before_the_program_ends, make, end)
{
	int file = open_file("now");
	struct ends ends = hand_over(file, "");

	put(ends.in, "one\npart");
	await_text(file, "one\n");
	put(ends.in, " of it\r");
	put(ends.in, "x");
	await_text(file, "one\npart of it\r");
	close(ends.in);
	assert_string_equal(read_all(ends.out), "one\npart of it\rx");
	close(ends.say);
	close(file);
}

/* 0 to 255 in pieces of odd sizes, with lines longer than any buffer. */
TEST_WITH(binary_output_is_unchanged, make, end)
{
	enum { BYTES = 700001 };
	unsigned char *bytes = malloc(BYTES);
	int file = open_file("binary");
	struct ends ends = hand_over(file, "");
	pid_t task;

	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (unsigned char)(i < 300000 ? i * 7 + i / 256 : 'a');
	task = fork();
	if (task == 0) {
		for (size_t done = 0, piece = 1; done < BYTES; piece = piece * 3 % 70001 + 1) {
			size_t left = BYTES - done;
			ssize_t got = write(ends.in, bytes + done, piece < left ? piece : left);
			done += got > 0 ? (size_t)got : 0;
		}
		_exit(0);
	}
	close(ends.in);
	read_all(ends.out);
	assert_memory_equal(text, bytes, BYTES);
	read_file(file);
	assert_memory_equal(text, bytes, BYTES);
	close(ends.say);
	free(bytes);
	assert_int_equal(waitpid(task, NULL, 0), task);
}

/* Two streams of one file, and pieces of lines. */
TEST_WITH(lines_stay_whole, make, end)
{
	enum { LINES = 2000 };
	int file = open_file("whole"), counts[2] = { 0 };
	struct ends ends[2] = { hand_over(file, ""), hand_over(file, "") };
	pid_t tasks[2];

	for (int i = 0; i < 2; i++) {
		tasks[i] = fork();
		for (int line = 0; tasks[i] == 0 && line < LINES; line++) {
			dprintf(ends[i].in, "stream %d ", i);
			dprintf(ends[i].in, "line ");
			dprintf(ends[i].in, "%d\n", line);
		}
		if (tasks[i] == 0)
			_exit(0);
		close(ends[i].in);
	}
	for (int i = 0; i < 2; i++) {
		read_all(ends[i].out);
		close(ends[i].say);
		assert_int_equal(waitpid(tasks[i], NULL, 0), tasks[i]);
	}
	read_file(file);
	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
		int stream = -1, number = -1;
		assert_int_equal(sscanf(line, "stream %d line %d", &stream, &number), 2);
		assert_in_range(stream, 0, 1);
		assert_int_equal(number, counts[stream]++);
	}
	assert_int_equal(counts[0], LINES);
	assert_int_equal(counts[1], LINES);
}

/* A last line without its end, and then a line of the other stream */
TEST_WITH(a_last_line_stays_whole, make, end)
{
	int file = open_file("last");
	struct ends ends[2] = { hand_over(file, "[r] "), hand_over(file, "[r] ") };

	put(ends[0].in, "out\nthe end");
	close(ends[0].in);
	pause_ms(50);
	put(ends[1].in, "err\n");
	await_text(file, "out\nerr\n");
	close(ends[1].in);
	assert_string_equal(read_all(ends[0].out), "[r] out\n[r] the end\n");
	assert_string_equal(read_all(ends[1].out), "[r] err\n");
	assert_string_equal(read_file(file), "out\nerr\nthe end");
	close(ends[0].say);
	close(ends[1].say);
}

/* Gives the parent of a process; -1: there is no such process. */
static pid_t parent_of(const char *pid)
{
	char path[300];
	int parent = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);
	file = fopen(path, "re");
	if (file == NULL)
		return -1;
	if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1)
		parent = -1;
	fclose(file);
	return parent;
}

/* This test is the subreaper of the process that waits; the child of that process does the work. */
static pid_t find_worker(void)
{
	DIR *all = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	while ((entry = readdir(all)) != NULL) {
		char parent[32];
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		snprintf(parent, sizeof(parent), "%d", parent_of(entry->d_name));
		if (parent_of(parent) == getpid())
			found = atoi(entry->d_name);
	}
	closedir(all);
	return found;
}

TEST_WITH(another_process_goes_on_where_one_was_killed, make, end)
{
	int file = open_file("other");
	struct ends ends = hand_over(file, "[r] ");

	for (int i = 0; i < 3; i++) {
		pid_t worker;
		char line[32], all[128] = "";
		snprintf(line, sizeof(line), "line %d\n", i);
		put(ends.in, line);
		for (int j = 0; j <= i; j++)
			snprintf(all + strlen(all), sizeof(all) - strlen(all), "line %d\n", j);
		await_text(file, all);
		worker = find_worker();
		assert_true(worker > 0);
		assert_return_code(kill(worker, SIGKILL), errno);
	}
	put(ends.in, "end\n");
	close(ends.in);
	/* What was being written when the process was killed may be there twice. */
	assert_non_null(strstr(read_all(ends.out), "[r] end\n"));
	assert_non_null(strstr(read_file(file), "line 2\nend\n"));
	close(ends.say);
}

TEST_WITH(a_full_disk_is_told_once_and_holds_nobody_up, make, end)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	struct ends ends = hand_over(full, "");
	char told[256];

	for (int i = 0; i < 20000; i++)
		assert_int_equal(write(ends.in, "line\n", i % 2 == 0 ? 5 : 0), i % 2 == 0 ? 5 : 0);
	close(ends.in);
	assert_int_equal(strlen(read_all(ends.out)), 50000);
	snprintf(told, sizeof(told), "ddp: rank 3 on n1: what it writes does not reach its file logs/%d: No space left on device\n", full);
	assert_string_equal(read_all(ends.say), told);
	close(full);
}

/* In place of a disk that is full for a while: a pipe that is. */
TEST_WITH(the_file_says_what_is_missing, make, end)
{
	static char filling[1 << 16];
	int disk[2];
	struct ends ends;
	struct pollfd ready;

	assert_return_code(pipe2(disk, O_CLOEXEC | O_NONBLOCK), errno);
	while (write(disk[1], filling, sizeof(filling)) > 0)
		continue;
	ends = hand_over(disk[1], "");
	close(disk[1]);
	put(ends.in, "lost\n");
	ready = (struct pollfd){ .fd = ends.say, .events = POLLIN };
	assert_int_equal(poll(&ready, 1, WAIT_MS), 1);
	assert_int_equal(read(ends.out, text, sizeof(text)), 5);
	while (read(disk[0], text, sizeof(text)) > 0)
		continue;
	put(ends.in, "kept\n");
	close(ends.in);
	assert_string_equal(read_all(ends.out), "kept\n");
	assert_string_equal(read_all(disk[0]), "\nddp: 5 bytes are missing here, because the file could not be written: "
	                    "Resource temporarily unavailable\nkept\n");
	close(ends.say);
}

TEST_WITH(the_file_goes_on_without_srun, make, end)
{
	int file = open_file("alone");
	struct ends ends = hand_over(file, "[r] ");

	close(ends.out);
	put(ends.in, "one\n");
	await_text(file, "one\n");
	put(ends.in, "two\n");
	await_text(file, "one\ntwo\n");
	close(ends.in);
	assert_string_equal(read_all(ends.say), "");
	close(file);
}

/* Writes lines of 7 bytes for as long as ddp-log takes them, and returns the number of bytes. */
static size_t fill(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLOUT };
	size_t bytes = 0;

	for (; poll(&ready, 1, 300) > 0; bytes += 7)
		put(fd, "a line\n");
	return bytes;
}

static void expect_others_to_go_on(void)
{
	int file = open_file("free");
	struct ends ends = hand_over(file, "");

	assert_return_code(ftruncate(file, 0), errno);
	put(ends.in, "free\n");
	await_text(file, "free\n");
	close(ends.in);
	assert_string_equal(read_all(ends.out), "free\n");
	close(ends.say);
	close(file);
}

/* As with plain srun, a task waits for a terminal that takes nothing. Other tasks do not. */
TEST_WITH(an_output_that_takes_nothing_holds_up_its_own_task, make, end)
{
	int file = open_file("held");
	struct ends held = hand_over(file, "[r] ");
	size_t bytes = fill(held.in);

	assert_in_range(bytes, PUMP_BUFFER_BYTES, 8 * PUMP_BUFFER_BYTES);
	expect_others_to_go_on();
	close(held.in);
	assert_int_equal(strlen(read_all(held.out)), bytes / 7 * 11);
	assert_int_equal(strlen(read_file(file)), bytes);
	close(held.say);
}

/* Starts of a task write to the same output of SLURM's. When it is ready for each of them, it has room for one. `out` is
   closed. */
static void fill_from_starts(int out, int slurm)
{
	enum { STARTS = 3, LINES = 9000 };
	struct ends starts[STARTS];
	int file = open_file("starts");
	pid_t worker;

	expect_others_to_go_on();
	worker = find_worker();
	for (int i = 0; i < STARTS; i++)
		starts[i] = hand_over_with(file, "[r] ", dup(out));
	assert_int_equal(fcntl(out, F_GETFL) & O_NONBLOCK, 0); /* other processes have that description */
	close(out);
	assert_return_code(kill(worker, SIGSTOP), errno);
	for (int line = 0; line < LINES; line++)
		for (int i = 0; i < STARTS; i++)
			put(starts[i].in, "a line\n");
	assert_return_code(kill(worker, SIGCONT), errno);
	pause_ms(300);
	expect_others_to_go_on();
	for (int i = 0; i < STARTS; i++) {
		close(starts[i].in);
		close(starts[i].say);
	}
	assert_int_equal(strlen(read_all(slurm)), STARTS * LINES * strlen("[r] a line\n"));
	assert_int_equal(strlen(read_file(file)), STARTS * LINES * strlen("a line\n"));
}

TEST_WITH(starts_with_one_pipe_hold_up_their_own_task, make, end)
{
	int out[2];

	assert_return_code(pipe2(out, O_CLOEXEC), errno);
	fill_from_starts(out[1], out[0]);
}

/* A terminal is ready as soon as it has room for one byte. */
TEST_WITH(starts_with_one_terminal_hold_up_their_own_task, make, end)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;
	struct termios raw;

	assert_return_code(unlockpt(master), errno);
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	assert_return_code(tcgetattr(slave, &raw), errno);
	cfmakeraw(&raw);
	assert_return_code(tcsetattr(slave, TCSANOW, &raw), errno);
	fill_from_starts(slave, master);
}

/* ddp-log may have fewer descriptors than a node's streams need. */
TEST_WITH(a_stream_without_descriptors_is_refused, make, end)
{
	const struct pump_stream stream = { .who = "rank 3 on n1" };
	struct rlimit limit;
	struct error error;
	pid_t worker;
	int pipes[2];

	expect_others_to_go_on();
	worker = find_worker();
	assert_return_code(prlimit(worker, RLIMIT_NOFILE, NULL, &limit), errno);
	limit.rlim_cur = 4;
	assert_return_code(prlimit(worker, RLIMIT_NOFILE, &limit, NULL), errno);
	assert_return_code(pipe2(pipes, O_CLOEXEC), errno);
	for (int i = 0; i < 20; i++) {
		assert_false(pump_add(control, &stream, (const int[PUMP_FDS]){ pipes[0], pipes[1], pipes[1], pipes[1] }, &error));
		assert_string_equal(error.text, "log=: ddp-log of this node has no descriptors left for a task's output: "
		                    "the administrator should raise slurmd's LimitNOFILE");
	}
	close(pipes[0]);
	close(pipes[1]);
	/* It has closed those that it got. */
	limit.rlim_cur = 10;
	assert_return_code(prlimit(worker, RLIMIT_NOFILE, &limit, NULL), errno);
	expect_others_to_go_on();
}

TEST_WITH(a_control_group_of_a_step_is_known, make, end)
{
	static const struct { const char *lines; bool shared; } cases[] = {
		{ "0::/system.slice/slurmstepd.scope/job_12/step_0/slurm\n", true },
		{ "0::/system.slice/n1_slurmstepd.scope/job_12/step_0/slurm\n", true },
		{ "1:name=systemd:/\n0::/system.slice/slurmstepd.scope/job_12/step_0/slurm\n", true },
		{ "0::/system.slice/slurmd.service\n", false },
		{ "0::/system.slice/slurmstepd.scope/system\n", false },
		{ "9:freezer:/slurm/uid_0/job_12/step_0\n0::/\n", false },
		{ "", false },
	};
	char path[300];

	assert_false(pump_shares_group("/proc/none"));
	snprintf(path, sizeof(path), "%s/cgroup", folder);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int file = open_file("cgroup");
		assert_return_code(ftruncate(file, 0), errno);
		put(file, cases[i].lines);
		close(file);
		assert_int_equal(pump_shares_group(path), cases[i].shared);
	}
}

/* slurmstepd is the user by its effective id alone when it calls the plugin. */
TEST(the_owner_is_the_owner_for_good)
{
	const struct owner owner = { .user = 65534, .group = 65533, .group_count = 1, .groups = { 65532 } };
	int status;
	pid_t child;

	if (getuid() != 0)
		skip();
	child = fork();
	if (child == 0) {
		uid_t user[3];
		gid_t group[3], more[2] = { 0 };
		if (setegid(owner.group) != 0 || seteuid(owner.user) != 0)
			_exit(2);
		if (!owner_become(&owner) || getresuid(user, user + 1, user + 2) != 0 || getresgid(group, group + 1, group + 2) != 0)
			_exit(3);
		for (int i = 0; i < 3; i++)
			if (user[i] != owner.user || group[i] != owner.group)
				_exit(4);
		if (getgroups(2, more) != 1 || more[0] != owner.groups[0])
			_exit(5);
		_exit(seteuid(0) == 0 || setegid(0) == 0 ? 6 : owner_become(&owner) ? 0 : 7);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(status, 0);
	child = fork();
	if (child == 0)
		_exit(setresuid(65531, 65531, 65531) != 0 || owner_become(&owner) ? 1 : 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* ---- a task ------------------------------------------------------------------------------- */

static const struct identity third = { .job_id = 12, .step_id = 3, .rank = 3, .world_size = 4, .node_name = "n1" };

/* A task with pipes of SLURM's; returns what SLURM gets of both. */
static const char *run_task(const struct identity *identity, const char *dir)
{
	int out[2], status;
	struct error error = { "" };
	pid_t task;

	assert_return_code(pipe2(out, O_CLOEXEC), errno);
	task = fork();
	if (task == 0) {
		dup2(out[1], STDOUT_FILENO);
		dup2(out[1], STDERR_FILENO);
		if (chdir(folder) != 0 || !redirect_output(control, dir, identity, &error)) {
			dprintf(STDERR_FILENO, "%s", error.text);
			_exit(1);
		}
		execl("/bin/sh", "sh", "-c", "echo out; echo err >&2; ls /proc/self/fd | wc -w; exit 7", (char *)NULL);
	}
	close(out[1]);
	read_all(out[0]);
	assert_int_equal(waitpid(task, &status, 0), task);
	assert_int_equal(WEXITSTATUS(status), strstr(text, "log=") != NULL ? 1 : 7);
	return text;
}

TEST_WITH(a_start_has_a_file_of_its_own, make, end)
{
	struct identity again = third, alone = third;
	int file;

	run_task(&third, "logs");
	assert_non_null(strstr(text, "[rank 3 n1] out\n"));
	assert_non_null(strstr(text, "[rank 3 n1] err\n"));
	again.restart_count = 1;
	run_task(&again, "logs");
	alone.world_size = 1;
	alone.rank = 0;
	run_task(&alone, "logs");
	assert_null(strstr(text, "[rank"));
	/* A second start of that name. */
	run_task(&again, "logs");
	assert_int_equal(strlen(read_all(open_file("logs/12.3/rank-3.start-1.log"))), strlen("out\nerr\n4\n"));
	assert_int_equal(strlen(read_all(open_file("logs/12.3/rank-3.start-2.log"))), 2 * strlen("out\nerr\n4\n"));
	file = open_file("logs/12.3/rank-0.start-1.log");
	assert_non_null(strstr(read_all(file), "out\n"));
}

TEST_WITH(a_folder_that_cannot_be_is_refused, make, end)
{
	close(open_file("plain"));
	assert_non_null(strstr(run_task(&third, "plain"), "log=plain: cannot open the folder: Not a directory"));
	run_task(&third, "logs2");
	close(open_file("logs2/12.3/x"));
	char from[300], to[300];
	snprintf(to, sizeof(to), "%s/logs2/12.3/rank-2.start-1.log", folder);
	snprintf(from, sizeof(from), "%s/logs2/12.3/x", folder);
	assert_return_code(symlink(from, to), errno);
	struct identity second = third;
	second.rank = 2;
	assert_non_null(strstr(run_task(&second, "logs2"), "log=: cannot open logs2/12.3/rank-2.start-1.log: "));
}

/* srun -u gives tasks a terminal. */
TEST_WITH(a_terminal_is_replaced_by_one, make, end)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;
	struct error error = { "" };
	char name[64];
	pid_t task;

	assert_return_code(unlockpt(master), errno);
	assert_int_equal(ptsname_r(master, name, sizeof(name)), 0);
	task = fork();
	if (task == 0) {
		int slave = open(name, O_RDWR | O_NOCTTY), null = open("/dev/null", O_RDWR);
		dup2(null, STDIN_FILENO);
		dup2(slave, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		if (chdir(folder) != 0 || !redirect_output(control, "tty", &third, &error))
			_exit(1);
		execl("/bin/sh", "sh", "-c", "test -t 1 && echo a terminal", (char *)NULL);
	}
	assert_int_equal(waitpid(task, &status, 0), task);
	assert_int_equal(status, 0);
	int file = open_file("tty/12.3/rank-3.start-1.log");
	await_text(file, "a terminal\n");
	close(file);
	close(master);
}

int main(void)
{
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return test_run(NULL, NULL);
}
