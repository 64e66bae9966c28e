/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/sources.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/launch/srun_options.h"

enum {
	LINE_BYTES = 4096,       /* srun forwards 1,024 bytes at most, */
	ROW_BYTES_MAX = 1 << 16, /* and a row can be as long as this */
	RANKS_PER_CPU = 16,      /* a launcher may start several workers to a CPU */
};

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

static bool start_command(char *const command[], uid_t user, struct child *child)
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
static bool await_command(struct child *child)
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

	if (!start_command(command, geteuid(), &child))
		return 0;
	while (fgets(line, sizeof(line), child.output) != NULL)
		if (sscanf(line, "%*s %lu", &tasks) == 1 && tasks <= ROW_WORLD_MAX - sum)
			sum += tasks;
	await_command(&child);
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
	if (!start_command(command, geteuid(), &child))
		return false;
	found = fgets(line, sizeof(line), child.output) != NULL &&
	        sscanf(line, "%32s %lu %23s %lu %32s", name, &owner, job->nodes, &cpus, state) == 5;
	if (!await_command(&child) || !found) {
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

/* ---- rows ----------------------------------------------------------------------------- */

/* The text that a node's task has written since its last row began. NULL: no row has begun. */
struct answer {
	char *text;
	size_t used;
};

struct answers {
	struct answer *of;   /* [nodes] */
	unsigned long nodes;
	size_t rows_max;     /* rows beyond what there can be are left out */
	struct row **rows;
	size_t *count;
	bool no_memory;
	size_t damaged;      /* rows, the first of which is about */
	long long rank;      /* this rank (below 0: not known) */
	unsigned long node;  /* and from this node */
	size_t older;        /* rows in the form of an older ddp-status, the first of which is from */
	unsigned long older_node; /* this node */
};

static void note_damage(struct answers *answers, unsigned long node)
{
	if (answers->damaged++ > 0)
		return;
	answers->node = node;
	if (sscanf(answers->of[node].text, "{\"job\":%*d,\"slurm_step\":%*d,\"rank\":%lld,", &answers->rank) != 1)
		answers->rank = -1;
}

static void add_row(struct answers *answers, const struct row *row)
{
	struct row *more = realloc(*answers->rows, (*answers->count + 1) * sizeof(*more));

	if (more == NULL) {
		answers->no_memory = true;
		free(row->stack);
		return;
	}
	more[(*answers->count)++] = *row;
	*answers->rows = more;
}

static void end_row(struct answers *answers, unsigned long node)
{
	struct answer *answer = &answers->of[node];
	struct row row;
	json_t *json;

	if (answer->text == NULL || *answers->count >= answers->rows_max)
		return;
	answer->text[answer->used] = '\0';
	json = json_loads(answer->text, 0, NULL);
	if (json != NULL && row_from_json(json, &row))
		add_row(answers, &row);
	else
		note_damage(answers, node);
	json_decref(json);
}

static void begin_row(struct answers *answers, unsigned long node)
{
	struct answer *answer = &answers->of[node];

	end_row(answers, node);
	if (answer->text == NULL)
		answer->text = malloc(ROW_BYTES_MAX);
	answers->no_memory |= answer->text == NULL;
	answer->used = 0;
}

/* Until another form of rows came, each line was a row, and nothing showed where one begins. */
static void note_older(struct answers *answers, unsigned long node, const char *text)
{
	if (answers->of[node].text != NULL || strncmp(text, "{\"job\":", 7) != 0)
		return;
	if (answers->older++ == 0)
		answers->older_node = node;
}

/* Each line begins with srun's label: the task's number, which is the node's here, and ": ". srun mixes the pieces of
   several tasks, and ends each with a newline. What comes before the first row is another program's, as a TaskProlog.
   */
static void take_line(struct answers *answers, const char *line)
{
	char *end;
	const unsigned long node = strtoul(line, &end, 10);

	if (end == line || strncmp(end, ": ", 2) != 0 || node >= answers->nodes)
		return;
	note_older(answers, node, end + 2);
	for (const char *at = end + 2; *at != '\0' && *at != '\n'; at++) {
		struct answer *answer = &answers->of[node];
		if (*at == ROW_BEGIN)
			begin_row(answers, node);
		else if (answer->text != NULL && answer->used < ROW_BYTES_MAX - 1)
			answer->text[answer->used++] = *at;
	}
}

static void end_answers(struct answers *answers)
{
	for (unsigned long node = 0; node < answers->nodes && answers->of != NULL; node++) {
		end_row(answers, node);
		free(answers->of[node].text);
	}
	free(answers->of);
}

static void tell_damage(const struct answers *answers, const char *job)
{
	char rank[32] = "some rank";

	if (answers->rank >= 0)
		snprintf(rank, sizeof(rank), "rank %lld", answers->rank);
	fprintf(stderr, "ddp-status: job %s: %zu row%s left out, as srun brought damaged text: first that of %s, from node "
	        "%lu of %lu; call ddp-status again\n", job, answers->damaged, answers->damaged == 1 ? " is" : "s are", rank,
	        answers->node + 1, answers->nodes);
}

static void tell_older(const struct answers *answers, const char *job)
{
	fprintf(stderr, "ddp-status: job %s: %zu row%s left out, as another version of ddp-status has written %s: first on "
	        "node %lu of %lu; install one version on all nodes\n", job, answers->older,
	        answers->older == 1 ? " is" : "s are", answers->older == 1 ? "it" : "them", answers->older_node + 1,
	        answers->nodes);
}

bool cluster_probe(const struct job *job, const char *program, const char *what, int interval_ms, bool stacks,
                   const char *dump, struct row **rows, size_t *count)
{
	char interval[32], id[48], nodes[40], line[LINE_BYTES];
	const char *const first = stacks ? "--stack" : dump, *const second = stacks ? dump : NULL;
	char *const command[] = { "srun", id, nodes, "--overlap", "--ntasks-per-node=1", "--label",
		                  "--cpus-per-task=1", "--mem=0", "--gres=none", "--mpi=none",
		                  "--input=none", "--quiet", "--kill-on-bad-exit=0", "--chdir=/",
		                  "--job-name=ddp-status", (char *)program, "--probe", "--interval",
		                  interval, (char *)what, (char *)first, (char *)second, NULL };
	struct answers answers = { .nodes = strtoul(job->nodes, NULL, 10), .rows_max = job->ranks_max, .rows = rows,
		                   .count = count };
	struct child child;
	bool fine;

	snprintf(id, sizeof(id), "--jobid=%s", job->id);
	snprintf(nodes, sizeof(nodes), "--nodes=%s", job->nodes);
	snprintf(interval, sizeof(interval), "%d.%03d", interval_ms / 1000, interval_ms % 1000);
	if (!start_command(command, job->owner, &child))
		return false;
	answers.of = calloc(answers.nodes, sizeof(*answers.of));
	answers.no_memory = answers.of == NULL;
	while (!answers.no_memory && fgets(line, sizeof(line), child.output) != NULL)
		take_line(&answers, line);
	end_answers(&answers);
	if (answers.damaged > 0)
		tell_damage(&answers, job->id);
	if (answers.older > 0)
		tell_older(&answers, job->id);
	/* The node's error is on stderr, and the other nodes' rows count. */
	fine = (await_command(&child) && answers.damaged + answers.older == 0) || *count > 0;
	if (!fine || answers.no_memory)
		fprintf(stderr, answers.no_memory ? "ddp-status: no memory for the ranks of job %s\n"
		                                  : "ddp-status: cannot look at the nodes of job %s\n", job->id);
	return fine && !answers.no_memory;
}
