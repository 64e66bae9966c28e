/* SPDX-License-Identifier: Apache-2.0 */
/* scaling - how a GPT's training scales: a step that reduces gradients and one that does not
   take turns, so that a machine whose speed varies slows both, and the medians of both make a
   row of a table. Run on 1, 2, 4, ... nodes, or by 1, 2, 4, ... ranks of one node, with one
   --table, it ends with all rows (slurm/batch/scaling.sh).

     srun --ddp -N2 --ntasks-per-node=2 scaling --table scaling.txt
     scaling --spawn 1,2,4 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "files.h"
#include "kernels.h"
#include "models/gpt_ddp.h"
#include "option_table.h"
#include "rank.h"
#include "threads.h"

enum { EXIT_USAGE = 2, ROUNDS_MAX = 10000, SPAWNS_MAX = 16, RANKS_MAX = 1024, LINE_MAX_BYTES = 256, BATCHES = 4 };

/* Models with the same parameters: one is trained, the other's ranks say nothing to each other.
   Each rank updates all parameters of both (DDP_SHARD_NONE): were the trained one's update split
   among ranks, its step would save what communication adds. */
enum mode { TRAINED, SILENT, MODES };

struct options {
	gpt_config config;
	int batch, rounds, threads;
	const char *spawn_list;
	int spawn[SPAWNS_MAX], spawns; /* ranks of each run on this host; none: the launcher's */
	const char *table;
};

/* A round measures a step: seconds of the slowest rank, and the mean over ranks. */
struct round {
	double seconds[MODES], ratio, exposed, communication;
};

struct bench {
	struct options options;
	ddp_context *context;
	gpt *net;
	ddp_model *models[MODES];
	int32_t *tokens;      /* [BATCHES][batch][length + 1] */
	struct round *rounds; /* [options.rounds] */
};

/* A line of the table; times in ms; ratio of step to silent, round by round. */
struct row {
	int nodes, ranks;
	double tokens_per_second, step, silent, ratio, exposed, communication;
	int shared; /* 1: the ranks of a node had fewer processors than threads */
};

#define AT(member) .at = offsetof(struct options, member)

static const option_row rows[] = {
	{OPTION_TEXT, "table", "FILE", AT(table), "add the row to those of earlier runs there, and print all; they have the "
	 "same model, batch and threads of a rank"},
	{OPTION_INT, "rounds", "N", AT(rounds), "steps of each kind", 1, ROUNDS_MAX},
	{OPTION_INT, "layers", "N", AT(config.layers), "layers", 1, 1 << 20},
	{OPTION_INT, "heads", "N", AT(config.heads), "attention heads", 1, 1 << 20},
	{OPTION_INT, "width", "N", AT(config.width), "width", 1, 1 << 20},
	{OPTION_INT, "vocab", "N", AT(config.vocab), "vocabulary", 1, 1 << 20},
	{OPTION_INT, "length", "N", AT(config.length), "tokens in a sample", 1, 1 << 20},
	{OPTION_INT, "batch", "N", AT(batch), "samples of a rank in a step, whatever the number of ranks", 1, 1 << 20},
	{OPTION_INT, "threads", "N", AT(threads), "threads per rank (OMP_NUM_THREADS, else the host's processors over its "
	 "ranks: with --spawn, over the largest of its numbers)", 1, 1 << 20},
	{OPTION_TEXT, "spawn", "N,...", AT(spawn_list), "start N ranks on this host, without a launcher; of several numbers "
	 "each in its turn, for a table of all"},
};

static const option_form form = {.program = "scaling", .usage = "[OPTION]...",
	.about = "Measures how a GPT's training step scales, and what communication adds to it. Start it\n"
	         "with srun --ddp on 1, 2, 4, ... nodes and the same --table, or on one machine with\n"
	         "--spawn 1,2,4.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]),
	.end = "The table, in ms of medians over rounds:\n"
	       "  efficiency     tokens per second and rank, beside the table's first row\n"
	       "  step           a training step, of the slowest rank\n"
	       "  silent         the same without communication: what computing takes\n"
	       "  overhead       what step is longer than silent, by rounds\n"
	       "  exposed        in which a rank waited for communication, or for slower ranks\n"
	       "  overlap        part of communication that was hidden behind backward; -: there was none\n"
	       "  *              the ranks of a node had fewer processors than threads\n"
	       "Each rank updates all parameters, with communication and without (DDP_SHARD_NONE, also\n"
	       "where ranks share memory). It needs the memory of two models.\n"
	       "\n"
	       "Exit status: 2 usage, 3 the library reports an error.\n",
	.wrong = EXIT_USAGE};

/* 1,2,4 */
static void read_spawns(struct options *o)
{
	const char *text = o->spawn_list;
	char *rest;

	for (o->spawns = 0; o->spawns < SPAWNS_MAX; text = rest + 1) {
		const long ranks = strtol(text, &rest, 10);
		if (rest == text || (*rest != '\0' && *rest != ',') || ranks < 1 || ranks > RANKS_MAX)
			options_wrong(&form, "--spawn %s: not whole numbers from 1 to %d", o->spawn_list, RANKS_MAX);
		o->spawn[o->spawns++] = (int)ranks;
		if (*rest == '\0')
			return;
	}
	options_wrong(&form, "--spawn takes %d numbers at most", SPAWNS_MAX);
}

static void parse(int argc, char **argv, struct options *o)
{
	char why[160];

	options_read(&form, argc, argv, o);
	if (o->spawn_list != NULL)
		read_spawns(o);
	if (!gpt_config_valid(&o->config, why, sizeof(why)))
		options_wrong(&form, "%s", why);
}

/* ---- steps ------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void check(ddp_status status)
{
	rank_must("scaling", status);
}

/* Exits, and so ends the other ranks. */
static void must(bool possible, const char *what)
{
	if (possible)
		return;
	fprintf(stderr, "scaling: %s\n", what);
	exit(EXIT_LIBRARY);
}

static void make_model(struct bench *b, enum mode mode)
{
	ddp_model_options options = DDP_MODEL_OPTIONS;
	options.beta2 = 0.95;
	options.weight_decay = 0.1;
	options.clip_norm = 1;
	options.shard = DDP_SHARD_NONE;

	int count;
	const ddp_param *params = gpt_params(b->net, &count);

	setenv("DDP_MEASURE", mode == SILENT ? "no-communication" : "", 1);
	check(ddp_model_create(b->context, params, count, &options, &b->models[mode]));
	must(gpt_bind_model(b->net, b->models[mode]), "out of memory");
	must(gpt_initialise(b->net, 1), "out of memory");
	check(ddp_model_broadcast_params(b->models[mode]));
}

static void allocate(struct bench *b)
{
	const struct options *o = &b->options;
	const size_t tokens = (size_t)BATCHES * (size_t)o->batch * (size_t)(o->config.length + 1);
	unsigned seed = 1 + (unsigned)ddp_get_job(b->context)->rank;

	b->net = gpt_create(&o->config, o->batch, 1);
	must(b->net != NULL, "out of memory");
	b->tokens = malloc(tokens * sizeof(*b->tokens));
	b->rounds = calloc((size_t)o->rounds, sizeof(*b->rounds));
	must(b->tokens != NULL && b->rounds != NULL, "out of memory");
	for (size_t i = 0; i < tokens; i++)
		b->tokens[i] = rand_r(&seed) % o->config.vocab;
}

static double over_ranks(struct bench *b, double value, ddp_op op)
{
	check(ddp_all_reduce(ddp_world(b->context), NULL, &value, 1, DDP_F64, op));
	return value;
}

static void one_step(struct bench *b, enum mode mode, int number, struct round *round)
{
	const struct options *o = &b->options;
	const int64_t tokens = (int64_t)o->batch * o->config.length;
	ddp_model *model = b->models[mode];
	ddp_step_stats stats;

	must(gpt_bind_model(b->net, model), "out of memory");
	check(ddp_barrier(ddp_world(b->context)));
	const double start = now();
	ddp_model_set_phase(model, DDP_PHASE_FORWARD);
	const double loss = gpt_forward(b->net, b->tokens + number % BATCHES * (tokens + o->batch), o->batch,
	                                o->config.length);
	ddp_model_set_phase(model, DDP_PHASE_BACKWARD);
	check(gpt_backward(b->net, gpt_grad_ready, gpt_grad_rows, model));
	check(ddp_model_step(model, (double)tokens, loss, &stats));
	round->seconds[mode] = over_ranks(b, now() - start, DDP_MAX);
	if (mode == SILENT)
		return;
	round->exposed = over_ranks(b, stats.exposed_seconds, DDP_AVG);
	round->communication = over_ranks(b, stats.communication_seconds, DDP_AVG);
}

static int compare_numbers(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* `member` is the number's place in a round. */
static double median(const struct bench *b, size_t member)
{
	const int count = b->options.rounds;
	double *sorted = malloc((size_t)count * sizeof(*sorted));

	must(sorted != NULL, "out of memory");
	for (int i = 0; i < count; i++)
		memcpy(&sorted[i], (const char *)&b->rounds[i] + member, sizeof(sorted[i]));
	qsort(sorted, (size_t)count, sizeof(*sorted), compare_numbers);
	const double middle = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
	free(sorted);
	return middle;
}

/* Whether, on some node, the ranks together may run on fewer processors than they have threads. */
static bool shares_processors(struct bench *b)
{
	const ddp_job *job = ddp_get_job(b->context);
	ddp_comm *node;
	cpu_set_t cpus;

	must(sched_getaffinity(0, sizeof(cpus), &cpus) == 0, "cannot tell on which processors this rank may run");
	check(ddp_comm_split(ddp_world(b->context), job->node_rank, job->rank, &node));
	check(ddp_all_reduce(node, NULL, &cpus, sizeof(cpus), DDP_U8, DDP_BOR));
	check(ddp_comm_free(node));
	return over_ranks(b, CPU_COUNT(&cpus) < b->options.threads * job->local_world_size, DDP_MAX) > 0;
}

static struct row measure(struct bench *b)
{
	const struct options *o = &b->options;
	const ddp_job *job = ddp_get_job(b->context);
	struct round warm_up;

	dk_flush_denormals();
	dk_set_threads(o->threads);
	allocate(b);
	for (int mode = 0; mode < MODES; mode++)
		make_model(b, (enum mode)mode);
	for (int r = -1; r < o->rounds; r++) {
		struct round *round = r < 0 ? &warm_up : &b->rounds[r];
		for (int mode = 0; mode < MODES; mode++)
			one_step(b, (enum mode)((mode + r + 1) % MODES), r + 1, round);
		round->ratio = round->seconds[TRAINED] / round->seconds[SILENT];
	}
	struct row row = {.nodes = job->nnodes, .ranks = job->world_size,
		.step = 1e3 * median(b, offsetof(struct round, seconds[TRAINED])),
		.silent = 1e3 * median(b, offsetof(struct round, seconds[SILENT])),
		.ratio = median(b, offsetof(struct round, ratio)),
		.exposed = 1e3 * median(b, offsetof(struct round, exposed)),
		.communication = 1e3 * median(b, offsetof(struct round, communication)),
		.shared = shares_processors(b)};
	row.tokens_per_second = 1e3 * row.ranks * o->batch * o->config.length / row.step;
	return row;
}

/* ---- the table --------------------------------------------------------------------------- */

/* The table's first line: what all its rows have in common. */
static void workload(const struct options *o, char *text, size_t bytes)
{
	snprintf(text, bytes, "# GPT of %d layers, %d heads, width %d, vocabulary %d; %d samples of %d tokens a rank; "
	         "threads of a rank: %d\n", o->config.layers, o->config.heads, o->config.width, o->config.vocab,
	         o->batch, o->config.length, o->threads);
}

static void print_row(const struct row *row, const struct row *first)
{
	const double hidden = 1 - row->exposed / row->communication;

	printf("%5d %5d %10.0f %9.1f%% %9.2f %9.2f %8.1f%% %8.2f", row->nodes, row->ranks, row->tokens_per_second,
	       100 * row->tokens_per_second / row->ranks * first->ranks / first->tokens_per_second, row->step, row->silent,
	       100 * (row->ratio - 1), row->exposed);
	if (row->communication > 0)
		printf(" %6.0f%%", 100 * (hidden > 0 ? hidden : 0));
	else
		printf("       -");
	printf("%s\n", row->shared ? " *" : "");
}

/* Prints the rows of the table; the first one is what others are measured by. */
static void print_table(int table, const char *own)
{
	char line[LINE_MAX_BYTES];
	struct row row, first = {0};
	bool shared = false;
	FILE *file = fdopen(table, "r");

	must(file != NULL, "out of memory");
	rewind(file);
	printf("%snodes ranks   tokens/s efficiency      step    silent  overhead  exposed overlap\n", own);
	while (fgets(line, sizeof(line), file) != NULL) {
		if (sscanf(line, "%d %d %lf %lf %lf %lf %lf %lf %d", &row.nodes, &row.ranks, &row.tokens_per_second, &row.step,
		           &row.silent, &row.ratio, &row.exposed, &row.communication, &row.shared) != 9 || row.ranks < 1 ||
		    !(row.tokens_per_second > 0))
			continue;
		if (first.ranks == 0)
			first = row;
		shared = shared || row.shared;
		print_row(&row, &first);
	}
	if (shared)
		printf("* the ranks of a node share processors, so this is not how the training scales: give fewer ranks, or a "
		       "smaller --threads\n");
	fclose(file);
}

/* The table's descriptor, or that of a file that goes away, with its first line; -1 if it cannot be had, or
   is of another workload. */
static int open_table(const struct options *o, const char *own)
{
	FILE *file = o->table != NULL ? open_own_file("scaling", o->table, false) : tmpfile();
	const char *name = o->table != NULL ? o->table : "a temporary file";
	char line[LINE_MAX_BYTES];
	int table = -1;

	if (file == NULL && o->table == NULL)
		fprintf(stderr, "scaling: cannot open %s: %m\n", name);
	if (file == NULL)
		return -1;
	rewind(file);
	const bool begun = fgets(line, sizeof(line), file) != NULL;
	if (begun && strcmp(line, own) != 0)
		fprintf(stderr, "scaling: %s is of another workload (%.*s); give another --table\n", name,
		        (int)strcspn(line, "\n"), line);
	else if ((!begun && (fputs(own, file) < 0 || fflush(file) != 0)) || (table = dup(fileno(file))) < 0)
		fprintf(stderr, "scaling: cannot write to %s: %m\n", name);
	fclose(file);
	return table;
}

static bool add_row(int table, const struct row *row)
{
	if (lseek(table, 0, SEEK_END) >= 0 &&
	    dprintf(table, "%d %d %.1f %.4f %.4f %.4f %.4f %.4f %d\n", row->nodes, row->ranks, row->tokens_per_second,
	            row->step, row->silent, row->ratio, row->exposed, row->communication, row->shared) > 0)
		return true;
	fprintf(stderr, "scaling: cannot write to the table: %m\n");
	return false;
}

/* ---- ranks ------------------------------------------------------------------------------- */

/* Rank 0 adds the row. Returns whether it is there. A table of -1 is opened first, and printed afterwards. */
static bool run_rank(struct bench *b, int table, char *own, size_t bytes)
{
	const bool spawned = table >= 0;
	bool fine = true;

	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	check(ddp_init(NULL, &b->context));
	const ddp_job *job = ddp_get_job(b->context);
	if (!spawned) {
		b->options.threads = choose_threads(b->options.threads, job);
		workload(&b->options, own, bytes);
	}
	if (!spawned && job->rank == 0 && (table = open_table(&b->options, own)) < 0)
		exit(EXIT_LIBRARY); /* and so ends the other ranks */
	const struct row row = measure(b);
	if (job->rank == 0) {
		fine = add_row(table, &row);
		if (!spawned)
			print_table(table, own);
	}
	for (int mode = 0; mode < MODES; mode++)
		ddp_model_free(b->models[mode]);
	gpt_free(b->net);
	free(b->tokens);
	free(b->rounds);
	check(ddp_finalize(b->context));
	return fine;
}

/* All rows of a table have as many threads: those for which the run of most ranks has processors. */
static int threads_of_all(const struct options *o)
{
	const ddp_job alone = {.local_world_size = 1};
	const char *omp = getenv("OMP_NUM_THREADS");
	int most = 1;

	for (int i = 0; i < o->spawns; i++)
		most = o->spawn[i] > most ? o->spawn[i] : most;
	const bool given = o->threads > 0 || (omp != NULL && omp[0] != '\0');
	const int threads = choose_threads(o->threads, &alone) / (given ? 1 : most);
	return threads > 0 ? threads : 1;
}

/* One run after the other; this process prints the table. */
static int spawn_each(struct bench *b, char *own, size_t bytes)
{
	struct options *o = &b->options;
	ddp_spawn_result spawned;

	o->threads = threads_of_all(o);
	workload(o, own, bytes);
	const int table = open_table(o, own);
	if (table < 0)
		return EXIT_LIBRARY;
	for (int i = 0; i < o->spawns; i++) {
		check(ddp_spawn(o->spawn[i], &spawned));
		if (spawned.is_rank)
			return run_rank(b, table, own, bytes) ? EXIT_SUCCESS : EXIT_LIBRARY;
		if (spawned.exit_code != 0)
			return spawned.exit_code;
	}
	print_table(table, own);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct bench b = {.options = {.config = {.layers = 6, .heads = 8, .width = 512, .vocab = 50257, .length = 256},
		.batch = 4, .rounds = 12}};
	char own[LINE_MAX_BYTES];

	parse(argc, argv, &b.options);
	if (b.options.spawns > 0)
		return spawn_each(&b, own, sizeof(own));
	return run_rank(&b, -1, own, sizeof(own)) ? EXIT_SUCCESS : EXIT_LIBRARY;
}
