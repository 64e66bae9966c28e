/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/status: figures in Prometheus' format, the file that node_exporter reads, and the ranks of a node. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/status/prometheus.h"
#include "spank/status/sources.h"
#include "tests/support/test.h"

enum { TEXT_MAX = 16384 };

static struct row example(int64_t rank)
{
	struct row row = row_unknown();

	row.job = 12;
	row.slurm_step = 0;
	row.rank = rank;
	row.world_size = 4;
	row.phase_seconds = 1.5;
	row.progress_seconds = 0.25;
	row.exposed_ratio = 0.125;
	row.step = 7;
	row.stalls = 2;
	row.restarts = 1;
	strcpy(row.node, "n1");
	strcpy(row.user, "ada");
	strcpy(row.partition, "gpu");
	strcpy(row.phase, "forward");
	strcpy(row.state, "running");
	return row;
}

static void write_to(char text[TEXT_MAX], const struct row *rows, size_t count, const char *node)
{
	FILE *file = fmemopen(text, TEXT_MAX, "w");

	assert_non_null(file);
	assert_true(prometheus_write(file, rows, count, node, 1700000000.5));
	fclose(file);
}

static int times_in(const char *text, const char *line)
{
	int times = 0;

	for (; (text = strstr(text, line)) != NULL; text++)
		times++;
	return times;
}

#define HAS(text, line) do { if (times_in(text, line) != 1) fail_msg("%d times '%s' in:\n%s", times_in(text, line), line, text); } while (0)

TEST(each_figure_has_its_labels)
{
	struct row rows[2] = { example(3), example(2) };
	char text[TEXT_MAX];

	write_to(text, rows, 2, "n1");
	HAS(text, "# TYPE slurm_ddp_rank_step gauge\n"
	          "slurm_ddp_rank_step{jobid=\"12\",stepid=\"0\",rank=\"2\",node=\"n1\",user=\"ada\",partition=\"gpu\"} 7\n"
	          "slurm_ddp_rank_step{jobid=\"12\",stepid=\"0\",rank=\"3\",node=\"n1\",user=\"ada\",partition=\"gpu\"} 7\n");
	HAS(text, "rank_phase{jobid=\"12\",stepid=\"0\",rank=\"3\",node=\"n1\",user=\"ada\",partition=\"gpu\",phase=\"forward\"} 1\n");
	HAS(text, "slurm_ddp_rank_exposed_communication_ratio{jobid=\"12\",stepid=\"0\",rank=\"3\",node=\"n1\",user=\"ada\","
	          "partition=\"gpu\"} 0.125\n");
	HAS(text, "last_progress_timestamp_seconds{jobid=\"12\",stepid=\"0\",rank=\"3\",node=\"n1\",user=\"ada\","
	          "partition=\"gpu\"} 1700000000.250\n");
	/* Once for the step on this node. */
	HAS(text, "slurm_ddp_step_stalls_total{jobid=\"12\",stepid=\"0\",node=\"n1\",user=\"ada\",partition=\"gpu\"} 2\n");
	HAS(text, "slurm_ddp_step_ranks{jobid=\"12\",stepid=\"0\",node=\"n1\",user=\"ada\",partition=\"gpu\"} 4\n");
	HAS(text, "slurm_ddp_node_ranks{node=\"n1\"} 2\n");
	/* Nothing is told of what is not known. */
	assert_null(strstr(text, "loss"));
	assert_null(strstr(text, "samples_per_second"));
	assert_null(strstr(text, "requeues"));
}

TEST(nobody_forges_a_line_or_a_label)
{
	struct row row = example(0);
	char text[TEXT_MAX];

	strcpy(row.partition, "a\"} 1\nx{b=\"\\");
	strcpy(row.user, "\xc3\xa4" "da");
	strcpy(row.phase, "any\"phase");
	write_to(text, &row, 1, NULL);
	HAS(text, "slurm_ddp_rank_up{jobid=\"12\",stepid=\"0\",rank=\"0\",node=\"n1\",user=\"??da\",partition=\"a\\\"} 1?x{b=\\\"\\\\\"} 1\n");
	HAS(text, ",phase=\"unknown\"} 1\n");
	assert_null(strstr(text, "node_ranks"));
}

/* Prometheus refuses the whole text otherwise. */
TEST(no_figure_comes_twice)
{
	struct row rows[4] = { example(0), example(1), example(0), example(0) };
	char text[TEXT_MAX];

	strcpy(rows[3].user, "bob");
	write_to(text, rows, 4, NULL);
	HAS(text, "slurm_ddp_rank_step{jobid=\"12\",stepid=\"0\",rank=\"0\",node=\"n1\",user=\"ada\"");
	HAS(text, "slurm_ddp_rank_step{jobid=\"12\",stepid=\"0\",rank=\"0\",node=\"n1\",user=\"bob\"");
	HAS(text, "slurm_ddp_step_ranks{jobid=\"12\",stepid=\"0\",node=\"n1\",user=\"ada\"");
}

TEST(rank_that_is_gone_is_down)
{
	struct row rows[2] = { example(0), row_unknown() };
	char text[TEXT_MAX];

	rows[1].job = 12;
	rows[1].slurm_step = 0;
	rows[1].rank = 1;
	rows[1].world_size = 4;
	strcpy(rows[1].state, "gone");
	write_to(text, rows, 2, NULL);
	HAS(text, "slurm_ddp_rank_up{jobid=\"12\",stepid=\"0\",rank=\"1\"} 0\n");
	assert_int_equal(times_in(text, "rank=\"1\""), 1);
	assert_int_equal(times_in(text, "\nslurm_ddp_step_ranks{"), 1);
}

TEST(spares_are_no_ranks)
{
	struct row rows[3] = { example(0), row_unknown(), row_unknown() };
	char text[TEXT_MAX];

	for (int i = 1; i < 3; i++) {
		rows[i].job = 12;
		rows[i].slurm_step = 0;
		rows[i].world_size = 4;
		strcpy(rows[i].state, "spare");
		strcpy(rows[i].user, "ada");
		snprintf(rows[i].node, sizeof(rows[i].node), "n%d", 4 + i);
	}
	write_to(text, rows, 3, "n1");
	HAS(text, "# TYPE slurm_ddp_spare_up gauge\n"
	          "slurm_ddp_spare_up{jobid=\"12\",stepid=\"0\",node=\"n5\",user=\"ada\"} 1\n"
	          "slurm_ddp_spare_up{jobid=\"12\",stepid=\"0\",node=\"n6\",user=\"ada\"} 1\n");
	assert_int_equal(times_in(text, "node=\"n5\""), 1);
	HAS(text, "slurm_ddp_node_ranks{node=\"n1\"} 1\n");
	write_to(text, rows, 1, NULL);
	assert_null(strstr(text, "spare"));
}

static void read_back(const char *path, char text[64])
{
	FILE *file = fopen(path, "r");

	assert_non_null(file);
	text[fread(text, 1, 63, file)] = '\0';
	fclose(file);
}

TEST(textfile_changes_at_once_or_not)
{
	char folder[] = "/tmp/status_figures.XXXXXX", path[64], link[64], text[64];
	struct textfile textfile;
	struct stat info;

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/ddp.prom", folder);
	snprintf(link, sizeof(link), "%s/link.prom", folder);
	assert_true(textfile_begin(&textfile, path));
	fputs("one\n", textfile.file);
	assert_int_not_equal(access(path, F_OK), 0);
	assert_true(textfile_end(&textfile, true));
	read_back(path, text);
	assert_string_equal(text, "one\n");
	assert_int_equal(stat(path, &info), 0);
	assert_int_equal(info.st_mode & 07777, 0644);
	assert_true(textfile_begin(&textfile, path));
	fputs("half", textfile.file);
	assert_true(textfile_end(&textfile, false));
	read_back(path, text);
	assert_string_equal(text, "one\n");
	/* Neither a link, behind which anything may be, nor a device becomes a file. */
	assert_int_equal(symlink("/dev/null", link), 0);
	assert_false(textfile_begin(&textfile, link));
	assert_false(textfile_begin(&textfile, "/dev/null"));
	assert_false(textfile_begin(&textfile, folder));
	assert_false(textfile_begin(&textfile, "/nowhere/at/all.prom"));
	assert_int_equal(unlink(link), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
}

/* Starts a task, whose parent looks like the process of Slurm's that starts tasks. The task is `shell`, which starts the
   program, or the program itself if that is NULL. */
static pid_t start_task(uid_t user, const char *job, const char *shell)
{
	char job_variable[64];
	char *const variables[] = { job_variable, "SLURM_STEP_ID=0", "SLURM_PROCID=1", "RANK=1", "LOCAL_RANK=1",
		                    "WORLD_SIZE=2", "SLURM_JOB_PARTITION=gpu", "DDP_RESTART_COUNT=3", NULL };
	pid_t parent;

	snprintf(job_variable, sizeof(job_variable), "SLURM_JOB_ID=%s", job);
	parent = fork();
	if (parent != 0)
		return parent;
	prctl(PR_SET_NAME, "slurmstepd");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fork() == 0) {
		if (user != getuid() && (setgid((gid_t)user) != 0 || setuid(user) != 0))
			_exit(1);
		/* A change of the user would undo it. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == 1)
			_exit(1);
		if (shell != NULL)
			execle(shell, "sh", "-c", "while :; do sleep 1; done", NULL, variables);
		execle("/bin/sleep", "sleep", "600", NULL, variables);
		_exit(1);
	}
	while (wait(NULL) > 0)
		continue;
	_exit(0);
}

static size_t wait_for_rows(const struct local *local, size_t wanted, struct row **rows)
{
	uint64_t deadline_ns = ddp_now_ns() + 60000000000ull;
	size_t count = 0;

	do {
		rows_free(*rows, count);
		*rows = NULL;
		count = 0;
		assert_true(local_collect(local, rows, &count));
	} while (count < wanted && ddp_now_ns() < deadline_ns);
	return count;
}

TEST(node_is_looked_at_without_slurm)
{
	const bool root = geteuid() == 0;
	const struct local job = { 2000000001, -1, "n1", 50 }, other = { 2000000002, -1, "n1", 50 },
	                   step = { 2000000001, 7, "n1", 50 };
	pid_t tasks[2] = { start_task(root ? 65534 : geteuid(), "2000000001", NULL), start_task(geteuid(), "2000000002", NULL) };
	struct row *rows = NULL;
	char user[ROW_NAME_MAX];

	assert_int_equal(wait_for_rows(&job, 1, &rows), 1);
	local_user_name(root ? 65534 : geteuid(), user, sizeof(user));
	assert_string_equal(rows[0].user, user);
	assert_string_equal(rows[0].node, "n1");
	assert_string_equal(rows[0].partition, "gpu");
	assert_string_equal(rows[0].program, "sleep");
	assert_int_equal(rows[0].job, 2000000001);
	assert_int_equal(rows[0].rank, 1);
	assert_int_equal(rows[0].requeues, 3);
	assert_int_equal(rows[0].restarts, -1);
	rows_free(rows, 1);
	rows = NULL;
	assert_int_equal(wait_for_rows(&other, 1, &rows), 1);
	rows_free(rows, 1);
	rows = NULL;
	assert_int_equal(wait_for_rows(&step, 0, &rows), 0);
	for (int i = 0; i < 2; i++) {
		kill(tasks[i], SIGKILL);
		assert_int_equal(waitpid(tasks[i], NULL, 0), tasks[i]);
	}
}

/* The kernel gives the files in /proc of a program that its user cannot read to root. The user's programs are found all the
   same. */
TEST(user_of_an_unreadable_task_is_found)
{
	const struct local job = { 2000000003, -1, "n1", 50 };
	char folder[] = "/tmp/ddp-status-XXXXXX", shell[64], command[128];
	struct row *rows = NULL;
	pid_t task;

	if (geteuid() != 0)
		skip();
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chmod(folder, 0755), 0);
	snprintf(shell, sizeof(shell), "%s/sh", folder);
	snprintf(command, sizeof(command), "install -m 0711 /bin/sh %s", shell);
	assert_int_equal(system(command), 0);
	task = start_task(65534, "2000000003", shell);
	assert_int_equal(wait_for_rows(&job, 1, &rows), 1);
	assert_string_equal(rows[0].program, "sleep");
	rows_free(rows, 1);
	kill(task, SIGKILL);
	assert_int_equal(waitpid(task, NULL, 0), task);
	assert_int_equal(unlink(shell), 0);
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	unsetenv("SLURMD_NODENAME");
	return test_run(NULL, NULL);
}
