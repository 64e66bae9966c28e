/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/launch/srun_environment.h"
#include "spank/status/local.h"

/* A launcher may start several workers to a CPU. */
enum { LINE_MAX_BYTES = 1 << 16, RANKS_PER_CPU = 16 };

extern char **environ;

/* The child runs the command as `user`, with its output into the pipe. */
static void run_child(char *const command[], uid_t user, int output)
{
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char **variables = srun_environment(environ, false, NULL);

	/* Another user may not be able to reach this folder. */
	if (variables == NULL || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
	    chdir("/") < 0)
		_exit(126);
	if (!local_become(user)) {
		fprintf(stderr, "ddp-status: cannot become user %u, who owns the job: %s\n", (unsigned)user, strerror(errno));
		_exit(126);
	}
	execvpe(command[0], command, variables);
	fprintf(stderr, "ddp-status: cannot run %s: %s\n", command[0], strerror(errno));
	_exit(127);
}

struct child {
	pid_t pid;
	FILE *output;
};

static bool start(char *const command[], uid_t user, struct child *child)
{
	int ends[2] = { -1, -1 }, reason;

	child->output = pipe2(ends, O_CLOEXEC) == 0 ? fdopen(ends[0], "r") : NULL;
	child->pid = child->output != NULL ? fork() : -1;
	if (child->pid == 0)
		run_child(command, user, ends[1]);
	reason = errno;
	if (ends[1] >= 0)
		close(ends[1]);
	if (child->pid > 0)
		return true;
	if (child->output != NULL)
		fclose(child->output);
	else if (ends[0] >= 0)
		close(ends[0]);
	fprintf(stderr, "ddp-status: cannot start %s: %s\n", command[0], strerror(reason));
	return false;
}

/* True if the command ended with 0. */
static bool end(struct child *child)
{
	int status = -1;

	fclose(child->output);
	while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The tasks of the job's steps together. */
static unsigned long count_tasks(const char *id)
{
	char *const command[] = { "squeue", "--noheader", "--steps", "--jobs", (char *)id,
		                  "--format=%i %A", NULL };
	unsigned long tasks, sum = 0;
	char line[512];
	struct child child;

	if (!start(command, geteuid(), &child))
		return 0;
	while (fgets(line, sizeof(line), child.output) != NULL)
		if (sscanf(line, "%*s %lu", &tasks) == 1 && tasks <= ROW_WORLD_MAX - sum)
			sum += tasks;
	end(&child);
	return sum;
}

/* The number of the job's processes is their user's word; root, who asks,
   is not to run out of memory by it. */
static size_t ranks_max(const char *id, unsigned long cpus)
{
	unsigned long ranks = count_tasks(id);

	if (cpus < ROW_WORLD_MAX / RANKS_PER_CPU)
		ranks += cpus * RANKS_PER_CPU;
	else
		ranks = ROW_WORLD_MAX;
	return ranks < ROW_WORLD_MAX ? ranks : ROW_WORLD_MAX;
}

bool cluster_find_job(const char *id, struct job *job)
{
	char *const command[] = { "squeue", "--noheader", "--jobs", (char *)id, "--states=all",
		                  "--Format=JobID:32,UserID:16,NumNodes:16,NumCPUs:16,State:32", NULL };
	char line[512] = "", name[33], state[33] = "";
	struct child child;
	unsigned long owner, cpus;
	bool found;

	memset(job, 0, sizeof(*job));
	if (!start(command, geteuid(), &child))
		return false;
	found = fgets(line, sizeof(line), child.output) != NULL &&
	        sscanf(line, "%32s %lu %23s %lu %32s", name, &owner, job->nodes, &cpus, state) == 5;
	if (!end(&child) || !found) {
		fprintf(stderr, "ddp-status: Slurm tells of no job %s\n", id);
		return false;
	}
	snprintf(job->id, sizeof(job->id), "%s", id);
	job->owner = (uid_t)owner;
	job->running = strcmp(state, "RUNNING") == 0 || strcmp(state, "SUSPENDED") == 0;
	if (!job->running)
		fprintf(stderr, "ddp-status: job %s does not run: it is %s\n", id, state);
	else
		job->ranks_max = ranks_max(id, cpus);
	return job->running;
}

/* A line that is no row is something that the node or srun says; rows beyond what
   there can be are left out. */
static bool take_line(const char *line, size_t rows_max, struct row **rows, size_t *count)
{
	json_t *json = *count < rows_max ? json_loads(line, 0, NULL) : NULL;
	struct row row, *more;
	const bool is_row = json != NULL && row_from_json(json, &row);

	json_decref(json);
	if (!is_row)
		return true;
	more = realloc(*rows, (*count + 1) * sizeof(*more));
	if (more == NULL) {
		free(row.stack);
		return false;
	}
	more[(*count)++] = row;
	*rows = more;
	return true;
}

bool cluster_probe(const struct job *job, const char *program, const char *what, int interval_ms, bool stacks,
                   const char *dump, struct row **rows, size_t *count)
{
	char interval[32], id[48], nodes[40];
	const char *const first = stacks ? "--stack" : dump, *const second = stacks ? dump : NULL;
	char *const command[] = { "srun", id, nodes, "--overlap", "--ntasks-per-node=1",
		                  "--cpus-per-task=1", "--mem=0", "--gres=none", "--mpi=none",
		                  "--input=none", "--quiet", "--kill-on-bad-exit=0", "--chdir=/",
		                  "--job-name=ddp-status", (char *)program, "--probe", "--interval",
		                  interval, (char *)what, (char *)first, (char *)second, NULL };
	char *line = malloc(LINE_MAX_BYTES);
	struct child child;
	bool fine = true;

	snprintf(id, sizeof(id), "--jobid=%s", job->id);
	snprintf(nodes, sizeof(nodes), "--nodes=%s", job->nodes);
	snprintf(interval, sizeof(interval), "%d.%03d", interval_ms / 1000, interval_ms % 1000);
	if (line == NULL || !start(command, job->owner, &child)) {
		free(line);
		return false;
	}
	while (fine && fgets(line, LINE_MAX_BYTES, child.output) != NULL)
		fine = take_line(line, job->ranks_max, rows, count);
	free(line);
	/* The node's error is on stderr, and the other nodes' rows count. */
	if ((!end(&child) && *count == 0) || !fine) {
		fprintf(stderr, fine ? "ddp-status: cannot look at the nodes of job %s\n"
		                     : "ddp-status: no memory for the ranks of job %s\n", job->id);
		return false;
	}
	return true;
}
