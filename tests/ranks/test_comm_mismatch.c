/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* Ranks issue different operations: all of them get the error, in the same words, and these name the
   rank that is wrong, on one node and on several. */
#include <stdio.h>
#include <string.h>

#include "comm/ops/names.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

enum { RANKS = 6, COUNT = 100, BYTES = 1024 };

static const int one_a_node[] = { 0, 1, 2, 3, 4, 5 }, two_a_node[] = { 0, 1, 2, 0, 1, 2 };

/* What one rank issues, and what the others do. */
typedef struct mistake {
	ddp_operation odd, usual;
} mistake;

typedef struct told {
	const mistake *mistake;
	int odd;
	struct {
		ddp_status status;
		int late; /* calls that ended well before one failed */
		char text[BYTES];
	} ranks[RANKS];
} told;

static ddp_status issue(ddp_comm *comm, const ddp_operation *operation)
{
	float send[RANKS * COUNT] = { 0 }, recv[RANKS * COUNT];
	ddp_operation c = *operation;

	if (c.kind != DDP_BARRIER) {
		c.send = c.kind == DDP_BROADCAST ? NULL : send;
		c.recv = recv;
	}
	return ddp_run(comm, &c);
}

static int make_mistake(ddp_comm *comm, void *argument)
{
	told *t = argument;
	const int rank = ddp_comm_rank(comm);
	ddp_status status = ddp_barrier(comm);

	/* The failure to come may overtake what ranks meet by. */
	if (status == DDP_OK)
		status = issue(comm, rank == t->odd ? &t->mistake->odd : &t->mistake->usual);
	for (int calls = 0; status == DDP_OK && calls < 1000; calls++) {
		t->ranks[rank].late++;
		status = ddp_barrier(comm);
	}
	t->ranks[rank].status = status;
	snprintf(t->ranks[rank].text, BYTES, "%s", ddp_last_error());
	/* Each later call says so, too. */
	CHECK(ddp_barrier(comm) == status && strcmp(ddp_last_error(), t->ranks[rank].text) == 0);
	return 0;
}

static void expect_sentence(int ranks, const told *t)
{
	char odd[128], usual[128], who[64], wanted[BYTES];

	ddp_collective_describe(&t->mistake->odd, odd, sizeof(odd));
	ddp_collective_describe(&t->mistake->usual, usual, sizeof(usual));
	snprintf(who, sizeof(who), "operation #2 differs: rank %d on n", t->odd);
	snprintf(wanted, sizeof(wanted), " issued %s, but the %d others issued %s", odd, ranks - 1, usual);
	for (int r = 0; r < ranks; r++) {
		const char *text = t->ranks[r].text;
		if (t->ranks[r].status != DDP_ERR_MISMATCH || strncmp(text, who, strlen(who)) != 0 ||
		    strstr(text, wanted) == NULL)
			fail_msg("rank %d, after %d calls that ended well: %s: %s\nwanted: %s ...%s", r, t->ranks[r].late,
			         ddp_status_name(t->ranks[r].status), text, who, wanted);
		assert_string_equal(text, t->ranks[0].text);
	}
}

static void attempt(int ranks, const int *node_of, int odd, const mistake *m)
{
	told *t = test_share(sizeof(*t));
	const test_world world = { .ranks = ranks, .node_of = node_of, .body = make_mistake, .argument = t };

	t->mistake = m;
	t->odd = odd;
	assert_int_equal(test_world_run(&world), 0);
	expect_sentence(ranks, t);
	test_unshare(t, sizeof(*t));
}

static const mistake mistakes[] = {
	/* root */
	{ { .kind = DDP_BROADCAST, .count = COUNT, .root = 2 }, { .kind = DDP_BROADCAST, .count = COUNT } },
	{ { .kind = DDP_REDUCE, .count = COUNT }, { .kind = DDP_REDUCE, .count = COUNT, .root = 1 } },
	{ { .kind = DDP_GATHER, .count = 8, .root = 1 }, { .kind = DDP_GATHER, .count = 8 } },
	{ { .kind = DDP_SCATTER, .count = 8 }, { .kind = DDP_SCATTER, .count = 8, .root = 1 } },
	/* kind, and order */
	{ { .kind = DDP_BROADCAST, .count = COUNT }, { .kind = DDP_ALL_REDUCE, .count = COUNT } },
	{ { .kind = DDP_BARRIER }, { .kind = DDP_ALL_REDUCE, .count = 1 } },
	/* count */
	{ { .kind = DDP_BROADCAST }, { .kind = DDP_BROADCAST, .count = 5 } },
	{ { .kind = DDP_ALL_REDUCE, .count = COUNT - 1 }, { .kind = DDP_ALL_REDUCE, .count = COUNT } },
	{ { .kind = DDP_ALL_GATHER, .count = 8 }, { .kind = DDP_ALL_GATHER, .count = 9 } },
	/* type of the same size */
	{ { .kind = DDP_ALL_REDUCE, .count = COUNT, .type = DDP_I32 }, { .kind = DDP_ALL_REDUCE, .count = COUNT } },
	/* op */
	{ { .kind = DDP_ALL_REDUCE, .count = COUNT, .op = DDP_MAX }, { .kind = DDP_ALL_REDUCE, .count = COUNT } },
};

/* On nodes of one rank each, of several, and on one. */
static void on_nodes(int ranks, const int *node_of)
{
	for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
		if (test_takes(i))
			attempt(ranks, node_of, 0, &mistakes[i]);
		if (test_takes(i + 1))
			attempt(ranks, node_of, ranks - 1, &mistakes[i]);
	}
}

TEST_RUNS(all_ranks_of_one_node_say_who_is_wrong, on_nodes(3, NULL));

TEST(all_ranks_of_nodes_of_one_say_who_is_wrong)
{
#ifdef HAVE_UCX
	on_nodes(3, one_a_node);
	attempt(RANKS, one_a_node, 4, &mistakes[0]);
	attempt(RANKS, one_a_node, 4, &mistakes[4]);
#else
	(void)one_a_node;
	skip();
#endif
}

TEST(all_ranks_of_nodes_of_several_say_who_is_wrong)
{
#ifdef HAVE_UCX
	on_nodes(RANKS, two_a_node);
#else
	(void)two_a_node;
	skip();
#endif
}
