/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: asan; takes: 40 */
/* ddp_finalize() is the last thing that all ranks do together: a rank that never comes to it is
   named by the others, whichever way they found each other and whatever runs their operations. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/api.h"
#include "context.h"
#include "ddp.h"
#include "device/device.h"
#include "job/spawn.h"
#include "tests/device/nccl_standin.h"
#include "tests/support/context_ranks.h"
#include "tests/support/hung.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

enum { RANKS = 4, ODD = 2 /* of whom the others speak */, IDLE_TIMEOUT_MS = 1500 };

/* How the ranks find each other, and where they are. */
static const struct way {
	const char *name;
	const int *node_of; /* NULL: one node */
	bool by_tcp;        /* else by the sockets of ddp_spawn() */
} ways[] = {
	{ "one node", NULL, false },
	{ "one node, TCP", NULL, true },
#ifdef HAVE_UCX
	{ "two nodes", two_nodes, false },
	{ "two nodes, TCP", two_nodes, true },
#endif
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

typedef struct outcome {
	ddp_status status;
	double seconds;
	char message[1024];
} outcome;

static struct shared {
	atomic_int ready; /* how many have come to what the test wants of them */
	atomic_int told;  /* how many have noted their outcome */
	atomic_int odd;   /* the process of ODD, which does not end by itself; 0: it does */
	int nodes;
	outcome of[RANKS];
} *shared;

/* What a test's ranks do between ddp_init() and ddp_finalize(), and behind that. */
typedef struct test_part {
	ddp_options options;
	void (*all)(ddp_context *context);
	void (*odd)(ddp_context *context); /* ODD, behind that */
	void (*expect)(const struct way *way); /* of the outcomes */
	void (*after)(void);               /* all, once ddp_finalize() has returned */
} test_part;

/* Less, and a rank that a busy machine keeps waiting would not have come either. */
static int timeout_ms;

/* A timeout, what the ranks take to agree on whom they name, and what closing takes by force. */
static double longest_seconds(void)
{
	return 4e-3 * timeout_ms + 5;
}

static void note(int rank, ddp_status status, uint64_t start_ns)
{
	outcome *o = &shared->of[rank];

	o->status = status;
	o->seconds = ddp_seconds_since(start_ns);
	if (status != DDP_OK)
		snprintf(o->message, sizeof(o->message), "%s", ddp_last_error());
	atomic_fetch_add(&shared->told, 1);
}

/* Whether ODD ends without another's help. */
static bool ends_by_itself(void)
{
	return atomic_load(&shared->odd) == 0;
}

/* Rank 0 ends ODD once the others have said what they have seen. */
static void end_odd(void)
{
	while (atomic_load(&shared->told) < RANKS - 1)
		usleep(1000);
	kill(atomic_load(&shared->odd), SIGKILL);
}

static int play(const test_part *part)
{
	ddp_context *context;

	CHECK_OK(ddp_init(&part->options, &context));
	const int rank = ddp_get_job(context)->rank;
	test_be_rank(rank, NULL);
	CHECK(ddp_comm_nodes(ddp_world(context)) == shared->nodes);
	/* One that still opened would meet the failure there. */
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < RANKS)
		usleep(100);
	if (part->all != NULL)
		part->all(context);
	if (rank == ODD && part->odd != NULL)
		part->odd(context);
	const uint64_t start_ns = ddp_now_ns();
	note(rank, ddp_finalize(context), start_ns);
	if (part->after != NULL)
		part->after();
	if (rank == 0 && !ends_by_itself())
		end_odd();
	return 0;
}

static void pretend_node(const struct way *way, int rank)
{
	char node[16];

	snprintf(node, sizeof(node), "%d", way->node_of != NULL ? way->node_of[rank] : 0);
	setenv("DDP_LOCALITY", node, 1);
}

struct run {
	const struct way *way;
	const test_part *part;
};

static void set_number(const char *name, int number)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", number);
	setenv(name, text, 1);
}

static int be_rank_by_tcp(int rank, void *argument)
{
	const struct run *run = argument;
	char address[32];

	pretend_node(run->way, rank);
	set_number("RANK", rank);
	set_number("WORLD_SIZE", RANKS);
	set_number("LOCAL_RANK", rank);
	set_number("LOCAL_WORLD_SIZE", RANKS);
	snprintf(address, sizeof(address), "127.%d.%d.%d", getppid() >> 15 & 127, getppid() >> 7 & 255,
	         (getppid() & 127) + 1);
	setenv("MASTER_ADDR", address, 1);
	setenv("MASTER_PORT", "29411", 1);
	setenv("DDP_KEY", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 1);
	return play(run->part);
}

static int spawn(const struct run *run)
{
	ddp_spawn_result spawned;

	CHECK_OK(ddp_spawn(RANKS, &spawned));
	if (!spawned.is_rank)
		return spawned.exit_code == (ends_by_itself() ? 0 : 128 + SIGKILL) ? 0 : spawned.exit_code + 1000;
	/* ODD's end would have the others ended. */
	signal(SIGTERM, SIG_IGN);
	pretend_node(run->way, ddp_spawned_get()->rank);
	exit(play(run->part));
}

/* A process for each way has ranks and outcomes of its own. */
static int run_way(int w, void *argument)
{
	const struct way *way = &ways[w];
	struct run r = { way, argument };
	const test_ranks by_tcp = { .count = RANKS, .body = be_rank_by_tcp, .argument = &r, .expect_deaths = true };

	shared = test_share(sizeof(*shared));
	shared->nodes = way->node_of != NULL ? 2 : 1;
	const int code = way->by_tcp ? test_ranks_run(&by_tcp) : spawn(&r);
	if (code != 0)
		print_error("%s: %d\n", way->name, code);
	CHECK(code == 0);
	r.part->expect(way);
	test_unshare(shared, sizeof(*shared));
	return 0;
}

/* All at a time, since ranks wait for each other's timeouts most of the time. */
static void run_ways(int count, test_part *part)
{
	assert_int_equal(test_ranks_run(&(test_ranks){ .count = count, .body = run_way, .argument = part }), 0);
}

#define RUN_WAYS(count, ...) run_ways(count, &(test_part){ __VA_ARGS__ })

static bool is_told(const outcome *o, ddp_status status, const char *words)
{
	char host[256], who[300];

	gethostname(host, sizeof(host));
	snprintf(who, sizeof(who), "rank %d on %s ", ODD, host);
	if (o->status == status && (status == DDP_OK || (strstr(o->message, who) != NULL && strstr(o->message, words) != NULL)))
		return true;
	print_error("%s: %s\n", ddp_status_name(o->status), o->message);
	return false;
}

/* All but ODD have got that from ddp_finalize(), in this time. */
static void others_are_told(const struct way *way, ddp_status status, const char *words, double seconds)
{
	for (int r = 0; r < RANKS; r++) {
		if (r == ODD)
			continue;
		const bool told = is_told(&shared->of[r], status, words) && shared->of[r].seconds <= seconds;
		if (!told)
			fprintf(stderr, "# %s: rank %d after %.1f s\n", way->name, r, shared->of[r].seconds);
		CHECK(told);
	}
}

/* ---- a rank that does not come ------------------------------------------------------------ */

static void stop(ddp_context *context)
{
	atomic_store(&shared->odd, getpid());
	raise(SIGSTOP);
}

static void its_timeout_is_told(const struct way *way)
{
	others_are_told(way, DDP_ERR_TIMEOUT, "ddp_finalize()", longest_seconds());
}

TEST_RUNS(stopped_rank_is_named,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = timeout_ms }, .odd = stop,
                   .expect = its_timeout_is_told));

static void leave(ddp_context *context)
{
	_exit(0);
}

static void its_end_is_told(const struct way *way)
{
	others_are_told(way, DDP_ERR_PEER, "", 20);
}

TEST_RUNS(rank_that_has_ended_is_named,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .odd = leave,
                   .expect = its_end_is_told));

static void come_late(ddp_context *context)
{
	usleep(300000);
}

static void all_have_waited(const struct way *way)
{
	others_are_told(way, DDP_OK, "", 20);
	CHECK(shared->of[ODD].status == DDP_OK);
	for (int r = 0; r < RANKS; r++)
		CHECK(r == ODD || shared->of[r].seconds > 0.2);
}

TEST_RUNS(late_rank_is_waited_for,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .odd = come_late,
                   .expect = all_have_waited));

/* ---- errors before it ------------------------------------------------------------------------ */

static void abort_world_and_see(ddp_context *context)
{
	if (ddp_get_job(context)->rank == 0)
		CHECK_OK(ddp_comm_abort(ddp_world(context), "the test wants it"));
	while (ddp_barrier(ddp_world(context)) == DDP_OK)
		continue;
}

static void no_error_is_told(const struct way *way)
{
	for (int r = 0; r < RANKS; r++)
		CHECK(shared->of[r].status == DDP_OK);
}

TEST_RUNS(error_that_was_returned_is_not_returned_again,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .all = abort_world_and_see,
                   .expect = no_error_is_told));

/* It goes on alone, past the moment in which the others hear of it. */
static void abort_alone(ddp_context *context)
{
	CHECK_OK(ddp_comm_abort(ddp_world(context), "the test wants it"));
}

static void abort_is_told(const struct way *way)
{
	others_are_told(way, DDP_ERR_ABORTED, "the test wants it", 20);
	CHECK(shared->of[ODD].status == DDP_OK);
}

TEST_RUNS(failure_that_no_call_has_returned_is_returned,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .odd = abort_alone,
                   .expect = abort_is_told));

/* ---- a group that is freed later --------------------------------------------------------------- */

static ddp_comm *group;

static void make_group(ddp_context *context)
{
	CHECK_OK(ddp_comm_split(ddp_world(context), 0, 0, &group));
	CHECK_OK(ddp_barrier(group));
}

static void use_and_free_group(void)
{
	int32_t sum = 1;

	CHECK_OK(ddp_all_reduce(group, NULL, &sum, 1, DDP_I32, DDP_SUM));
	CHECK(sum == RANKS);
	CHECK_OK(ddp_comm_free(group));
}

TEST_RUNS(group_may_be_freed_later,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .all = make_group,
                   .expect = no_error_is_told, .after = use_and_free_group));

/* ---- a rank that finalizes too early ---------------------------------------------------------- */

static void go_on(ddp_context *context)
{
	if (ddp_get_job(context)->rank != ODD)
		CHECK(ddp_barrier(ddp_world(context)) == DDP_ERR_PEER);
	if (ddp_get_job(context)->rank != ODD)
		CHECK_SAYS("issued ddp_finalize()");
}

static void odd_is_told_of_itself(const struct way *way)
{
	CHECK(is_told(&shared->of[ODD], DDP_ERR_PEER, "issued ddp_finalize()"));
}

TEST_RUNS(rank_that_finalizes_early_is_named,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .all = go_on,
                   .expect = odd_is_told_of_itself));

/* On a node, a message that will never come is no matter of the timeout. */
static void receive(ddp_context *context)
{
	int32_t number;

	if (ddp_get_job(context)->rank == ODD)
		return;
	CHECK_FAILS(ddp_recv(ddp_world(context), &number, 1, DDP_I32, ODD, 0), DDP_ERR_PEER, "has closed its communicator");
}

static void odd_has_closed(const struct way *way)
{
	CHECK(is_told(&shared->of[ODD], DDP_ERR_PEER, "has closed its communicator"));
}

TEST_RUNS(message_of_a_rank_that_finalizes_is_not_waited_for,
          RUN_WAYS(1, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = 60000 }, .all = receive,
                   .expect = odd_has_closed));

/* ---- what else is open -------------------------------------------------------------------------- */

/* A sum by the stand-in for NCCL, on a lane that ddp_finalize() closes. */
static void sum_on_device(ddp_context *context)
{
	ddp_comm *world = ddp_world(context);
	ddp_comm_info info;
	void *memory;

	test_nccl_standin();
	CHECK_OK(ddp_device_alloc(context->device, sizeof(float), &memory));
	CHECK_OK(ddp_device_fill(context->device, NULL, memory, 0, sizeof(float)));
	CHECK_OK(ddp_run(world, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = memory, .count = 1,
	                                           .memory = DDP_MEMORY_DEVICE }));
	CHECK_OK(ddp_comm_describe(world, &info));
	CHECK(strcmp(info.device_backend, "nccl") == 0);
	CHECK_OK(ddp_device_free(context->device, memory));
	CHECK_OK(ddp_barrier(world));
}

TEST_RUNS(stopped_rank_is_named_where_nccl_is_open,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = timeout_ms, .device = "cuda" },
                   .all = sum_on_device, .odd = stop, .expect = its_timeout_is_told));

/* New parameters are on their way when the model is freed, which returns nothing. */
static void free_with_parameters_on_their_way(ddp_context *context)
{
	static const ddp_param params[] = { { .name = "a", .ndim = 1, .shape = { 1000 } } };
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.1,
	                                    .shard = DDP_SHARD_GRADIENTS, .late_gather = true };
	ddp_model *model;

	CHECK_OK(ddp_model_create(context, params, 1, &options, &model));
	CHECK_OK(ddp_model_broadcast_params(model));
	memset(ddp_model_param_grad(model, 0), 0, 1000 * sizeof(float));
	CHECK_OK(ddp_model_grad_ready(model, 0));
	CHECK_OK(ddp_model_reduce_grads(model, 1, 0, NULL));
	if (ddp_get_job(context)->rank == ODD)
		stop(context);
	CHECK_OK(ddp_model_update_params(model, NULL));
	ddp_model_free(model);
}

static void gather_is_told(const struct way *way)
{
	others_are_told(way, DDP_ERR_TIMEOUT, "all_gather", longest_seconds());
}

TEST_RUNS(error_of_a_model_that_is_freed_is_returned,
          RUN_WAYS(WAYS, .options = { DDP_OPTIONS_FIELDS, .timeout_ms = timeout_ms },
                   .all = free_with_parameters_on_their_way, .expect = gather_is_told));

static int choose_timeout(void **state)
{
	timeout_ms = IDLE_TIMEOUT_MS * test_slowness();
	return 0;
}

TEST_MAIN(choose_timeout, NULL)
