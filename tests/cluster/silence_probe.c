/* SPDX-License-Identifier: Apache-2.0 */
/* silence_probe: ranks that work until a node falls silent, for tests/cluster/silence.sh.

     silence_probe WHAT MARK [LAST]

   WHAT: reduce: sums of 1 MiB, one after the other, whose bytes are checked; barrier: the ranks of the last
   node do not come to a barrier; receive: all other ranks wait for a message of the last rank; idle: a rank
   issues nothing until the file MARK.go is there; groups: sums in groups of the ranks with one local rank.
   A rank makes the file MARK.RANK when it is at work. It ends with code 0 when the file MARK.stop is there and
   all have seen it. After an error it says when that came ("error MS TEXT", by the machine's monotonic
   clock), shrinks, says how long that took ("shrunk MS RANKS"), and sums over the ranks that are left; with the
   WHAT again: until the next error, or the file MARK.stop. With LAST, the last node's ranks wait for their end
   instead of shrinking. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ddp.h>

enum { FLOATS = 1 << 18, PAUSE_US = 40000, EXIT_WRONG = 4, EXIT_LIBRARY = 3 };

static ddp_context *context;
static const char *mark;
static float *values;
static int own_rank = -1;

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void say(const char *text)
{
	printf("rank %d: %s\n", own_rank, text);
	fflush(stdout);
}

static void check(ddp_status status, const char *what)
{
	char text[1200];

	if (status == DDP_OK)
		return;
	snprintf(text, sizeof(text), "%s failed: %s: %s", what, ddp_status_name(status), ddp_last_error());
	say(text);
	exit(EXIT_LIBRARY);
}

static bool is_there(const char *end)
{
	char path[600];

	snprintf(path, sizeof(path), "%s.%s", mark, end);
	return access(path, F_OK) == 0;
}

static void at_work(void)
{
	char path[600];

	snprintf(path, sizeof(path), "%s.%d", mark, ddp_get_job(context)->rank);
	FILE *file = fopen(path, "w");
	if (file != NULL)
		fclose(file);
}

/* Sums rank + 1 + i % 64 over all ranks. *stop: all ranks have been told to stop. */
static ddp_status sum(ddp_comm *comm, bool *stop)
{
	const int size = ddp_comm_size(comm), rank = ddp_comm_rank(comm);
	const float first = is_there("stop") ? 1 : 0;
	float total = 0;

	for (int i = 0; i < FLOATS; i++)
		values[i] = (float)(rank + 1 + i % 64);
	values[0] = first;
	ddp_status status = ddp_all_reduce(comm, NULL, values, FLOATS, DDP_F32, DDP_SUM);
	if (status != DDP_OK)
		return status;
	total = (float)(size * (size + 1) / 2);
	for (int i = 1; i < FLOATS; i++) {
		if (values[i] != total + (float)(size * (i % 64))) {
			say("wrong bytes");
			exit(EXIT_WRONG);
		}
	}
	*stop = (int)values[0] == size;
	usleep(PAUSE_US); /* which other tests have the cores for */
	return DDP_OK;
}

static ddp_status work(const char *what, ddp_comm *world, const ddp_job *job)
{
	const bool last_node = job->node_rank == job->nnodes - 1;
	ddp_status status = DDP_OK;
	ddp_comm *part = NULL;
	bool stop = false;

	check(sum(world, &stop), "the first sum");
	if (strcmp(what, "groups") == 0)
		check(ddp_comm_split(world, job->local_rank, 0, &part), "split");
	at_work();
	if (strcmp(what, "reduce") == 0 || strcmp(what, "again") == 0 || part != NULL) {
		while (status == DDP_OK && !stop)
			status = sum(part != NULL ? part : world, &stop);
		return status;
	}
	while (!is_there("go") && !is_there("stop") && (last_node || strcmp(what, "idle") == 0))
		usleep(20000);
	if (strcmp(what, "receive") == 0 && job->rank != job->world_size - 1)
		return ddp_recv(world, values, 1, DDP_F32, job->world_size - 1, 7);
	for (int r = 0; strcmp(what, "receive") == 0 && r < job->world_size - 1 && status == DDP_OK; r++)
		status = ddp_send(world, values, 1, DDP_F32, r, 7);
	return status == DDP_OK && strcmp(what, "receive") != 0 ? ddp_barrier(world) : status;
}

/* The ranks that are left of `broken`, which all have summed. */
static ddp_comm *shrink(ddp_comm *broken)
{
	const double start = now_ms();
	ddp_comm *left;
	char text[100];
	bool stop;

	check(ddp_comm_shrink(broken, &left), "shrink");
	const double shrunk = now_ms();
	check(sum(left, &stop), "the sum of who is left");
	snprintf(text, sizeof(text), "shrunk %.0f %d", shrunk - start, ddp_comm_size(left));
	say(text);
	return left;
}

static void say_error(ddp_status status)
{
	char text[1200];

	snprintf(text, sizeof(text), "error %.0f %s %s", now_ms(), ddp_status_name(status), ddp_last_error());
	say(text);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	mark = argv[2];
	values = malloc(FLOATS * sizeof(*values));
	check(values != NULL ? DDP_OK : DDP_ERR_NOMEM, "malloc");
	check(ddp_init(NULL, &context), "ddp_init");
	const ddp_job *job = ddp_get_job(context);
	own_rank = job->rank;
	ddp_status status = work(argv[1], ddp_world(context), job);
	ddp_comm *comm = ddp_world(context), *left;
	for (bool stop = false; status != DDP_OK; comm = left) {
		say_error(status);
		if (argc > 3 && job->node_rank == job->nnodes - 1)
			pause();
		left = shrink(comm);
		if (comm != ddp_world(context))
			ddp_comm_free(comm);
		for (status = DDP_OK; status == DDP_OK && !stop && strcmp(argv[1], "again") == 0;)
			status = sum(left, &stop);
	}
	if (comm != ddp_world(context))
		ddp_comm_free(comm);
	check(ddp_finalize(context), "ddp_finalize");
	say("ends well");
	free(values);
	return 0;
}
