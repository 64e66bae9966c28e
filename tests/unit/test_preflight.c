/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit; all: tsan asan */
/* ddp-preflight: who measures when, and what is named, on numbers that are made here. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "preflight/facts.h"
#include "preflight/finding.h"
#include "preflight/judge_facts.h"
#include "preflight/judge_links.h"
#include "preflight/judge_ranks.h"
#include "preflight/report.h"
#include "preflight/schedule.h"
#include "preflight/statistics.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

/* ---- the schedule ---- */

TEST(all_pairs_meet_once)
{
	for (int nodes = 2; nodes <= PREFLIGHT_ALL_PAIRS; nodes++) {
		int met[PREFLIGHT_ALL_PAIRS][PREFLIGHT_ALL_PAIRS] = { { 0 } };
		for (int round = 0; round < preflight_rounds(nodes); round++) {
			int busy = 0;
			for (int node = 0; node < nodes; node++) {
				int peer = preflight_peer(nodes, round, node);
				if (peer < 0)
					continue;
				assert_int_not_equal(peer, node);
				assert_int_equal(preflight_peer(nodes, round, peer), node);
				met[node][peer]++;
				busy++;
			}
			assert_int_equal(busy, nodes - nodes % 2);
		}
		for (int a = 0; a < nodes; a++)
			for (int b = 0; b < nodes; b++)
				assert_int_equal(met[a][b], a != b);
	}
}

/* Each node reaches each other one over links that are measured, and has at least two of them. */
TEST(many_nodes_are_connected)
{
	static const int sizes[] = { 65, 66, 100, 127, 128, 129, 1000, 4096 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int nodes = sizes[i], reached = 1;
		int *queue = calloc((size_t)nodes, sizeof(int));
		bool *seen = calloc((size_t)nodes, sizeof(bool));
		seen[0] = true;
		for (int at = 0; at < reached; at++) {
			int links = 0;
			for (int round = 0; round < preflight_rounds(nodes); round++) {
				int peer = preflight_peer(nodes, round, queue[at]);
				if (peer < 0)
					continue;
				links++;
				assert_int_equal(preflight_peer(nodes, round, peer), queue[at]);
				if (!seen[peer])
					queue[reached++] = peer;
				seen[peer] = true;
			}
			assert_true(links >= 2);
		}
		assert_int_equal(reached, nodes);
		assert_true(preflight_rounds(nodes) <= 14);
		free(queue);
		free(seen);
	}
}

TEST(no_round_is_beyond_the_schedule)
{
	assert_int_equal(preflight_rounds(0), 0);
	assert_int_equal(preflight_rounds(1), 0);
	assert_int_equal(preflight_peer(1, 0, 0), -1);
	assert_int_equal(preflight_peer(8, 7, 0), -1);
	assert_int_equal(preflight_peer(8, -1, 0), -1);
	assert_int_equal(preflight_peer(8, 0, 8), -1);
}

/* One node that is late again and again leaves, and few that were late once stay; where many are late, all stay. */
TEST(late_nodes_are_left_out)
{
	unsigned char late[8] = { 0, 1, PREFLIGHT_LATE_ROUNDS, PREFLIGHT_LATE_ROUNDS - 1 };
	bool out[8] = { false };

	assert_true(preflight_leave_out(late, out, 8));
	for (int n = 0; n < 8; n++)
		assert_int_equal(out[n], n == 2);
	late[2] = 0;
	assert_false(preflight_leave_out(late, out, 8));
	assert_true(out[2]);
	late[5] = PREFLIGHT_LATE_ROUNDS + 1;
	assert_true(preflight_leave_out(late, out, 8));
	assert_true(out[5]);
	late[6] = PREFLIGHT_LATE_ROUNDS;
	assert_false(preflight_leave_out(late, out, 8));
	assert_false(out[6]);
}

/* Milliseconds that are not in the schedule: connections, memory, and what is read of each node; and a barrier of all
   ranks between two measurements, on an idle network. */
enum { WORKS = 2, START_MS = 700, BARRIER_MS = 2, LINK_MS = PREFLIGHT_LINK_MS + BARRIER_MS };

static int plan_ms(int nodes, int ranks_per_machine)
{
	int alone = ranks_per_machine * (preflight_alone_ms(ranks_per_machine) + BARRIER_MS);

	return START_MS + WORKS * (PREFLIGHT_WINDOW_MS + alone) + preflight_rounds(nodes) * LINK_MS;
}

/* How much longer, if a rank looks odd, or a link: its controls may have a node in common with it. */
enum {
	RANK_AGAIN_MS = WORKS * PREFLIGHT_REPEATS * (PREFLIGHT_WINDOW_MS + BARRIER_MS),
	LINK_AGAIN_MS = 3 * PREFLIGHT_REPEATS * LINK_MS
};

/* The bar: 64 nodes take at most 5 s, also if one rank or one link is measured again. */
TEST(sixty_four_nodes_take_five_seconds)
{
	for (int ranks = 1; ranks <= 128; ranks *= 2) {
		print_message("64 nodes of %d ranks: %d ms, and %d ms if a rank looks odd, %d ms if a link does\n", ranks,
		              plan_ms(64, ranks), plan_ms(64, ranks) + RANK_AGAIN_MS, plan_ms(64, ranks) + LINK_AGAIN_MS);
		assert_true(plan_ms(64, ranks) <= 5000);
	}
	assert_true(plan_ms(64, 8) + RANK_AGAIN_MS + LINK_AGAIN_MS <= 5000);
	assert_true(plan_ms(4096, 8) + RANK_AGAIN_MS + LINK_AGAIN_MS <= 5000);
}

TEST(turns_leave_machines_alone)
{
	for (unsigned seed = 0; seed < 200; seed++) {
		struct preflight_item items[12];
		int turns, orders = 0;
		for (int i = 0; i < 12; i++)
			items[i] = (struct preflight_item){ .a = i, .b = -1, .machine_a = (int)(seed + (unsigned)i * 7) % 5,
				                            .machine_b = i % 2 == 0 ? -1 : i % 4 };
		turns = preflight_take_turns(items, 12, seed);
		for (int i = 0; i < 12; i++) {
			assert_true(items[i].turn >= 0 && items[i].turn < turns);
			orders += items[i].a != i;
			for (int j = 0; j < i; j++) {
				bool same = items[i].machine_a == items[j].machine_a || items[i].machine_a == items[j].machine_b ||
				            (items[i].machine_b >= 0 && (items[i].machine_b == items[j].machine_a ||
				                                         items[i].machine_b == items[j].machine_b));
				assert_false(same && items[i].turn == items[j].turn);
			}
		}
		assert_true(orders > 0);
	}
}

/* ---- statistics ---- */

TEST(statistics_are_robust)
{
	const double two[] = { 1, 3 }, many[] = { 5, 0, 100, 4, 6, 5, -1 }, none[] = { 0, 0 },
	             eight[] = { 5, 5, 4, 6, 6, 5, 100, 4 };

	assert_true(preflight_median(two, 2) == 3);
	assert_true(preflight_median(many, 7) == 5);
	assert_true(preflight_best(many, 7) == 100);
	assert_true(fabs(preflight_spread(eight, 8) - 1.4826) < 1e-9);
	assert_true(preflight_spread(many, 7) == 0);
	assert_true(preflight_median(none, 2) == 0 && preflight_median(NULL, 0) == 0);
	assert_true(preflight_is_suspect(50, 100, 1, 0.8));
	assert_false(preflight_is_suspect(50, 100, 40, 0.8));
	assert_true(preflight_is_suspect(30, 100, 40, 0.8));
	assert_false(preflight_is_suspect(90, 100, 0, 0.8));
	assert_false(preflight_is_suspect(0, 100, 0, 0.8));
}

TEST(one_good_measurement_is_enough)
{
	const double bad[] = { 10, 20, 30, 25, 15 }, once[] = { 10, 20, 90, 25, 15 }, usual[] = { 100, 99, 40, 101, 98 };

	assert_true(preflight_is_odd(bad, usual, 5, 0.7));
	assert_false(preflight_is_odd(once, usual, 5, 0.7));
	assert_false(preflight_is_odd(bad, bad, 5, 0.7));
}

/* ---- numbers as a machine gives them ---- */

static uint64_t seed_of = 1;

static double uniform(void)
{
	seed_of = seed_of * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed_of >> 11) / 9007199254740992.0;
}

/* What a disturbance leaves: nothing worse than `noise` of the time is lost. */
static double disturbed(double noise)
{
	return 1 - noise * uniform();
}

enum { RANKS = 8, NODES = 4, MORE = PREFLIGHT_REPEATS_BUSY - PREFLIGHT_REPEATS };
static const int node_of[RANKS] = { 0, 0, 1, 1, 2, 2, 3, 3 };
static const int kind_of[RANKS] = { 0 };
static const char *const names[NODES] = { "n0", "n1", "n2", "n3" };
static const struct preflight_people people = { RANKS, node_of, node_of, kind_of, names };
static struct preflight_findings findings;

static void begin_findings(void)
{
	findings.count = findings.odd = 0;
}

/* Ranks on processors that others use for up to `noise` of the time, always or so `often` only; one has `speed` of the
   others' speed. */
struct scene {
	double noise, often;
	int odd;
	double speed;
	bool stopped;  /* it does not get its processor; otherwise it is slow itself */
	bool only_at_once;
	bool later;    /* others come after the first measurement */
	int lasts;     /* the rank is odd in so many repeats; 0: in all */
};

static struct preflight_figure figure(const struct scene *scene, int rank, int way, double full)
{
	bool odd = rank == scene->odd && (way == PREFLIGHT_AT_ONCE || !scene->only_at_once);
	double noise = scene->often == 0 || uniform() < scene->often ? scene->noise : 0;
	double share = disturbed(noise) * (odd && scene->stopped ? scene->speed : 1);
	double speed = odd && !scene->stopped ? scene->speed : 1;

	return (struct preflight_figure){ full * speed * share, share };
}

static void measure(const struct scene *scene, struct preflight_figures *figures, int rank)
{
	for (int way = 0; way < PREFLIGHT_WAYS; way++) {
		figures->of[way][PREFLIGHT_PRODUCT] = figure(scene, rank, way, 50e9);
		figures->of[way][PREFLIGHT_MEMORY] = figure(scene, rank, way, 10e9);
	}
}

/* One run: findings has what it names. Suspects are measured again twice where survey.c does so. */
static void run(const struct scene *scene)
{
	static struct preflight_figures figures[RANKS], repeated[PREFLIGHT_REPEATS_BUSY * RANKS];
	struct preflight_ranks_again again;
	bool unfit[NODES] = { false }, busy, chancy;

	memset(figures, 0, sizeof(figures));
	struct scene first = *scene;
	if (scene->later)
		first.noise = 0;
	for (int r = 0; r < RANKS; r++)
		measure(&first, &figures[r], r);
	busy = preflight_is_busy(&people, figures);
	preflight_ranks_doubt(&again, &people, figures);
	struct scene now = *scene;
	for (int i = 0; again.count > 0 && i < PREFLIGHT_REPEATS_BUSY * RANKS; i++) {
		if (scene->lasts > 0 && i / RANKS >= scene->lasts)
			now.odd = -1;
		measure(&now, &repeated[i], i % RANKS);
	}
	for (int repeats = PREFLIGHT_REPEATS; repeats <= PREFLIGHT_REPEATS_BUSY; repeats += MORE) {
		begin_findings();
		chancy = preflight_ranks_judge(&findings, &people, &again, repeated, repeats, busy, unfit);
		if (!(busy || chancy) || findings.odd == 0)
			break;
	}
	for (int i = 0; i < findings.count && findings.item[i].rank >= 0; i++)
		if (strcmp(findings.item[i].about, "cpu") == 0)
			assert_true(unfit[node_of[findings.item[i].rank]]);
}

static void is_named(const struct scene *scene, const char *about)
{
	bool named = false;

	for (int i = 0; i < findings.count; i++) {
		assert_int_equal(findings.item[i].rank, scene->odd);
		assert_int_equal(findings.item[i].node, node_of[scene->odd]);
		named |= strcmp(findings.item[i].about, about) == 0;
	}
	if (!named)
		print_message("noise %g, speed %g: %d findings, %s\n", scene->noise, scene->speed, findings.count, findings.item[0].text);
	assert_true(named);
}

static void is_nobody_named(const struct scene *scene, uint64_t seed)
{
	run(scene);
	if (findings.odd > 0)
		print_message("seed %d, noise %g, often %g: %s\n", (int)seed, scene->noise, scene->often, findings.item[0].text);
	assert_int_equal(findings.odd, 0);
}

/* DDP_TEST_SEEDS says with how many seeds. With the first of them, chance once took a processor five times. */
TEST(no_innocent_rank_is_named)
{
	const char *text = getenv("DDP_TEST_SEEDS");
	const uint64_t first = 18, seeds = text != NULL ? strtoull(text, NULL, 10) : 3;

	for (uint64_t seed = first; seed < first + seeds; seed++) {
		seed_of = seed;
		for (int i = 0; i < 4000; i++) {
			is_nobody_named(&(struct scene){ .noise = i % 10 * 0.1, .odd = -1 }, seed);
			is_nobody_named(&(struct scene){ .noise = 0.8, .often = i % 5 * 0.05 + 0.01, .odd = -1 }, seed);
		}
	}
}

/* Chance may take a rank's processor in each of the first repeats, and leave all others alone. */
TEST(a_rank_that_lacked_its_processor_for_a_while_is_not_named)
{
	for (int odd = 0; odd < RANKS; odd++)
		is_nobody_named(&(struct scene){ .odd = odd, .speed = 0.5, .stopped = true, .lasts = PREFLIGHT_REPEATS }, 0);
}

TEST(a_slow_rank_is_named)
{
	for (int i = 0; i < 5000; i++) {
		struct scene scene = { .noise = i % 2 * 0.1, .odd = i % RANKS, .speed = 0.55 };
		run(&scene);
		is_named(&scene, "product");
		scene.stopped = true;
		scene.speed = 0.5;
		run(&scene);
		is_named(&scene, "cpu");
	}
}

/* Where others use the processors, large differences still count. */
TEST(a_very_slow_rank_is_named_on_a_busy_machine)
{
	for (int i = 0; i < 5000; i++) {
		struct scene scene = { .noise = 0.8, .odd = i % RANKS, .speed = 0.06, .stopped = true };
		run(&scene);
		is_named(&scene, "cpu");
	}
}

/* Where others are disturbed now and then, too. */
TEST(a_rank_beside_a_neighbour_is_named)
{
	for (int i = 0; i < 5000; i++) {
		struct scene scene = { .noise = 0.4, .often = 0.45, .odd = i % RANKS, .speed = 0.5, .stopped = true, .later = true };
		run(&scene);
		is_named(&scene, "cpu");
	}
}

TEST(a_rank_is_named_that_is_slow_beside_others)
{
	struct scene scene = { .noise = 0.05, .odd = 3, .speed = 0.5, .only_at_once = true };

	run(&scene);
	is_named(&scene, "product");
	assert_non_null(strstr(findings.item[0].text, "beside the other ranks"));
}

/* Half of them, at most, can be suspects: the others are the controls. */
TEST(of_two_ranks_the_slower_one_is_suspect)
{
	static const int two_nodes[] = { 0, 1 }, one_kind[] = { 0, 0 }, two_kinds[] = { 0, 1 };
	struct preflight_people two = { 2, two_nodes, two_nodes, one_kind, names };
	struct preflight_figures figures[2];
	struct preflight_ranks_again again;

	memset(figures, 0, sizeof(figures));
	figures[0].of[PREFLIGHT_ALONE][PREFLIGHT_PRODUCT] = (struct preflight_figure){ 100, 1 };
	figures[1].of[PREFLIGHT_ALONE][PREFLIGHT_PRODUCT] = (struct preflight_figure){ 50, 1 };
	figures[0].of[PREFLIGHT_ALONE][PREFLIGHT_MEMORY] = (struct preflight_figure){ 70, 1 };
	figures[1].of[PREFLIGHT_ALONE][PREFLIGHT_MEMORY] = (struct preflight_figure){ 100, 1 };
	preflight_ranks_doubt(&again, &two, figures);
	assert_int_equal(again.count, 2);
	assert_true(again.rank[0] == 1 && !again.control[0] && again.rank[1] == 0 && again.control[1]);
	two.kind = two_kinds;
	preflight_ranks_doubt(&again, &two, figures);
	assert_int_equal(again.count, 0);
}

/* ---- links ---- */

enum { MANY = 16 };

struct net {
	int nodes;
	double noise;
	int a, b;     /* the slow link; b < 0: all of a's are; a < 0: none */
	double speed;
	double waited; /* the slow link's ends wait for their processors for so much of the time */
	double often;  /* above 0: other processes take the ends' processors now and then, which the kernel counts */
};

static struct preflight_link link_of(const struct net *net, int a, int b)
{
	bool slow = net->b < 0 ? a == net->a || b == net->a : a == net->a && b == net->b;
	double speed = slow ? net->speed : 1, noise = net->often > 0 && uniform() >= net->often ? 0 : net->noise;
	double left = disturbed(noise), waited = net->often > 0 ? 1 - left : slow ? net->waited : 0.01;

	return (struct preflight_link){ .a = a, .b = b, .bandwidth = 1e9 * speed * left, .latency = 10e-6 / disturbed(noise),
		                        .waited = waited };
}

static void run_net(const struct net *net, bool busy, const bool *unfit)
{
	static const char *const many[MANY] = { "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7",
		                                "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15" };
	static struct preflight_link links[MANY * MANY], again_link[PREFLIGHT_REPEATS_BUSY * PREFLIGHT_LINKS_AGAIN];
	struct preflight_links_again again;
	int machine[MANY], count = 0;

	for (int a = 0; a < net->nodes; a++) {
		machine[a] = a;
		for (int b = a + 1; b < net->nodes; b++)
			links[count++] = link_of(net, a, b);
	}
	preflight_links_doubt(&again, links, count, net->nodes, machine);
	for (int k = 0; k < PREFLIGHT_REPEATS_BUSY; k++)
		for (int i = 0; i < again.count; i++)
			again_link[k * again.count + i] = link_of(net, again.item[i].a, again.item[i].b);
	for (int repeats = PREFLIGHT_REPEATS; repeats <= PREFLIGHT_REPEATS_BUSY; repeats += MORE) {
		begin_findings();
		preflight_links_judge(&findings, &again, again_link, repeats, busy, unfit, many);
		if (findings.odd == 0 || !(busy || preflight_links_wait(&again, again_link, repeats)))
			break;
	}
}

static const bool all_fit[MANY] = { false };

TEST(no_innocent_link_is_named)
{
	for (int i = 0; i < 10000; i++) {
		run_net(&(struct net){ .nodes = 2 + i % (MANY - 1), .noise = i % 10 * 0.09, .a = -1, .b = 0 }, i % 10 > 4, all_fit);
		assert_int_equal(findings.odd, 0);
		const struct net at_times = { .nodes = 2 + i % (MANY - 1), .noise = 0.8, .often = i % 5 * 0.05 + 0.01, .a = -1 };
		run_net(&at_times, false, all_fit);
		assert_int_equal(findings.odd, 0);
	}
}

TEST(a_slow_link_is_named)
{
	for (int i = 0; i < 5000; i++) {
		int nodes = 3 + i % (MANY - 2), b = 1 + i % (nodes - 1);
		bool busy = i % 3 == 2;
		struct net net = { .nodes = nodes, .noise = busy ? 0.6 : 0.1, .a = i % b, .b = b, .speed = busy ? 0.1 : 0.5 };
		run_net(&net, busy, all_fit);
		if (findings.odd != 1)
			print_message("%d nodes, link %d - %d, noise %g: %d findings\n", nodes, net.a, b, net.noise, findings.odd);
		assert_int_equal(findings.odd, 1);
		assert_int_equal(findings.item[0].node, net.a);
		assert_int_equal(findings.item[0].peer, b);
		assert_string_equal(findings.item[0].about, "bandwidth");
	}
}

/* Other processes may use the processors of two nodes alone, so that the ranks' own measurements do not show it. */
TEST(a_link_is_not_named_whose_ends_wait_for_their_processors)
{
	for (int i = 0; i < 2000; i++) {
		struct net net = { .nodes = 4, .noise = 0.1, .a = 1, .b = 2, .speed = 0.45, .waited = 0.3 };
		run_net(&net, false, all_fit);
		assert_int_equal(findings.odd, 0);
		net.b = -1; /* all links of n1 */
		run_net(&net, false, all_fit);
		assert_int_equal(findings.odd, 0);
		/* A large difference is named all the same. */
		net.speed = 0.05;
		run_net(&net, false, all_fit);
		assert_int_not_equal(findings.odd, 0);
		assert_int_equal(findings.item[0].node, 1);
	}
}

TEST(a_node_is_named_whose_links_are_slow)
{
	bool unfit[MANY] = { false };

	for (int i = 0; i < 2000; i++) {
		int nodes = 3 + i % (MANY - 2);
		struct net net = { .nodes = nodes, .noise = 0.1, .a = i % nodes, .b = -1, .speed = 0.4 };
		run_net(&net, false, all_fit);
		assert_int_equal(findings.odd, 1);
		assert_int_equal(findings.item[0].node, net.a);
		assert_int_equal(findings.item[0].peer, -1);
	}
	/* The rank that measured there does not get its processor. */
	unfit[3] = true;
	run_net(&(struct net){ .nodes = 8, .a = 3, .b = -1, .speed = 0.4 }, false, unfit);
	assert_int_equal(findings.odd, 0);
}

TEST(a_clock_is_named_that_is_wrong)
{
	struct preflight_link links[6];
	int count = 0;

	for (int a = 0; a < 4; a++)
		for (int b = a + 1; b < 4; b++)
			links[count++] = (struct preflight_link){ .a = a, .b = b, .bandwidth = 1, .latency = 1e-5, .doubt = 1e-5,
				                                  .offset = b == 2 ? 3 : a == 2 ? -3 : 0.001 };
	begin_findings();
	preflight_clocks_judge(&findings, links, count, 4, names);
	assert_int_equal(findings.odd, 1);
	assert_int_equal(findings.item[0].node, 2);
	assert_non_null(strstr(findings.item[0].text, "n2: its clock is 3 s ahead of the others"));
	/* Of two clocks nobody knows which is wrong. */
	links[0] = (struct preflight_link){ .a = 0, .b = 1, .bandwidth = 1, .latency = 1e-5, .offset = -60 };
	begin_findings();
	preflight_clocks_judge(&findings, links, 1, 2, names);
	assert_int_equal(findings.odd, 1);
	assert_int_equal(findings.item[0].node, -1);
	assert_non_null(strstr(findings.item[0].text, "n1: its clock is 60 s behind n0"));
}

/* ---- differences ---- */

static struct preflight_facts facts[RANKS];

static void make_facts(void)
{
	for (int r = 0; r < RANKS; r++) {
		facts[r] = (struct preflight_facts){ .rank = r, .node = node_of[r], .local_rank = r % 2, .threads = 4, .processors = 8,
			                             .memory_bytes = (int64_t)64 << 30, .shm_bytes = (int64_t)32 << 30,
			                             .shm_free_bytes = (int64_t)32 << 30, .memlock = PREFLIGHT_UNLIMITED, .nofile = 4096,
			                             .cpus = 4, .numa = 1, .cpu_sum = (uint64_t)r, .gpu_numa = -1, .gpu_ecc_errors = -1 };
		strcpy(facts[r].node_name, names[node_of[r]]);
		strcpy(facts[r].processor, "P");
		strcpy(facts[r].kernel, "6.1");
		strcpy(facts[r].glibc, "2.36");
	}
	begin_findings();
}

/* One finding, which is odd, of this node and with this sentence. */
static void is_only_finding(int node, const char *text)
{
	preflight_facts_judge(&findings, facts, RANKS);
	if (findings.count != 1 || strcmp(findings.item[0].text, text) != 0)
		print_message("%d: %s\n", findings.count, findings.item[0].text);
	assert_int_equal(findings.count, 1);
	assert_int_equal(findings.odd, 1);
	assert_int_equal(findings.item[0].node, node);
	assert_string_equal(findings.item[0].text, text);
}

TEST(differences_are_named)
{
	make_facts();
	preflight_facts_judge(&findings, facts, RANKS);
	assert_int_equal(findings.count, 0);

	strcpy(facts[4].kernel, "5.14");
	strcpy(facts[5].kernel, "5.14");
	is_only_finding(2, "n2: the kernel is 5.14, and others have 6.1");

	make_facts();
	facts[3].memlock = 65536;
	is_only_finding(1, "rank 3 on n1: the limit of locked memory (memlock) is 64 KiB, and others have unlimited");

	/* A node's facts have one vote, however many ranks it has. */
	make_facts();
	for (int r = 0; r < RANKS; r++) {
		facts[r].node = r < 6 ? 0 : r - 5;
		facts[r].local_rank = r < 6 ? r : 0;
		strcpy(facts[r].node_name, names[facts[r].node]);
		strcpy(facts[r].kernel, r < 6 ? "5.14" : "6.1");
	}
	is_only_finding(0, "n0: the kernel is 5.14, and others have 6.1");
	for (int r = 0; r < 6; r++)
		strcpy(facts[r].kernel, "6.1");
	facts[3].nofile = facts[5].nofile = 1024;
	begin_findings();
	is_only_finding(0, "rank 3 and others on n0: the limit of open files (nofile) is 1024, and others have 4096");

	make_facts();
	facts[2].nofile = facts[3].nofile = 1024;
	is_only_finding(1, "n1: the limit of open files (nofile) is 1024, and others have 4096");

	make_facts();
	for (int r = 0; r < RANKS / 2; r++)
		strcpy(facts[r].glibc, "2.31");
	is_only_finding(-1, "glibc differs: it is 2.31 on n0 (rank 0), and 2.36 on n2 (rank 4)");

	make_facts();
	facts[6].memory_bytes /= 2;
	is_only_finding(3, "n3: it has 32 GiB of memory, and others with this processor have 64 GiB");

	make_facts();
	facts[0].shm_free_bytes = 10 << 20;
	is_only_finding(0, "n0: /dev/shm has 10 MiB free, and 2 ranks may need 128 MiB");

	make_facts();
	facts[7].cpu_sum = facts[6].cpu_sum;
	facts[6].cpus = facts[7].cpus = 1;
	for (int r = 0; r < RANKS; r++)
		facts[r].cpus = 1;
	is_only_finding(3, "2 ranks on n3 (the first is rank 6) share 1 CPU");

	make_facts();
	for (int r = 0; r < RANKS; r++) {
		facts[r].has_rdma = r / 2 == 1;
		facts[r].memlock = 8 << 20;
	}
	is_only_finding(1, "n1: the limit of locked memory (memlock) is 8192 KiB, and InfiniBand needs more: set LimitMEMLOCK=infinity "
	                   "for slurmd");
}

TEST(gpus_are_compared)
{
	make_facts();
	for (int r = 0; r < RANKS; r++) {
		strcpy(facts[r].gpu, "NVIDIA H100");
		strcpy(facts[r].gpu_bus, "0000:41:00.0");
		facts[r].gpu_memory_bytes = (int64_t)80 << 30;
		facts[r].gpu_clock_mhz = 1095;
	}
	preflight_facts_judge(&findings, facts, RANKS);
	assert_int_equal(findings.count, 0);
	facts[5].gpu_clock_mhz = 705;
	is_only_finding(2, "rank 5 on n2: the clock of the GPU (for applications) is 705 MHz, and others have 1095 MHz");
	facts[5].gpu_clock_mhz = 1095;
	begin_findings();
	facts[1].gpu_numa = 1;
	is_only_finding(0, "rank 1 on n0: its CPUs are not of NUMA node 1, which its GPU 0000:41:00.0 is of");
	facts[1].gpu_numa = 0;
	facts[1].gpu_ecc_errors = 2;
	begin_findings();
	is_only_finding(0, "rank 1 on n0: its GPU 0000:41:00.0 has counted 2 uncorrected memory errors (ECC)");
	facts[1].gpu_ecc_errors = 0;
	facts[1].gpu[0] = '\0';
	begin_findings();
	preflight_facts_judge(&findings, facts, RANKS);
	assert_string_equal(findings.item[0].text, "rank 1 on n0: the GPU is none, and others have NVIDIA H100");
}

TEST(a_processor_of_another_kind_is_a_note)
{
	make_facts();
	for (int r = 6; r < RANKS; r++) {
		strcpy(facts[r].processor, "Q");
		facts[r].processors = 64;
		facts[r].memory_bytes /= 4;
	}
	preflight_facts_judge(&findings, facts, RANKS);
	assert_int_equal(findings.odd, 0);
	assert_int_equal(findings.count, 1);
	assert_string_equal(findings.item[0].text, "n3: the processor is Q, and others have P");
}

/* ---- who is left out ---- */

TEST(odd_nodes_and_ends_of_links_are_excluded)
{
	bool excluded[8];
	const int links[][2] = { { 1, 4 }, { 2, 4 }, { 4, 6 }, { 3, 5 }, { 0, 7 } };

	begin_findings();
	preflight_find(&findings, &(struct preflight_finding){ .odd = true, .about = "cpu", .node = 0, .rank = 1, .peer = -1 }, "x");
	preflight_find(&findings, &(struct preflight_finding){ .odd = false, .about = "cpu", .node = 1, .rank = 1, .peer = -1 }, "x");
	preflight_find(&findings, &(struct preflight_finding){ .odd = true, .about = "version", .node = -1, .rank = -1, .peer = -1 }, "x");
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
		preflight_find(&findings, &(struct preflight_finding){ .odd = true, .about = "latency", .node = links[i][0], .rank = -1,
		                                                       .peer = links[i][1] }, "x");
	preflight_exclude(&findings, excluded, 8);
	for (int n = 0; n < 8; n++)
		assert_int_equal(excluded[n], n == 0 || n == 4 || n == 5);
}

TEST(more_findings_than_fit_are_counted)
{
	begin_findings();
	for (int i = 0; i < PREFLIGHT_FINDINGS + 10; i++)
		preflight_find(&findings, &(struct preflight_finding){ .odd = true, .node = -1 }, "number %d", i);
	assert_int_equal(findings.count, PREFLIGHT_FINDINGS);
	assert_int_equal(findings.odd, PREFLIGHT_FINDINGS + 10);
}

/* ---- files that are written at the end ---- */

static void is_refused(const char *path, const char *wanted)
{
	const char *why = "";

	assert_false(preflight_output_open(&(struct preflight_output){ .path = path }, &why));
	assert_non_null(strstr(why, wanted));
}

static bool write_to(const char *path, const char *text)
{
	struct preflight_output output = { .path = path };
	const char *why;

	return preflight_output_open(&output, &why) && preflight_output_write(&output, text);
}

static void holds(const char *path, const char *wanted)
{
	char text[64] = "";
	const int fd = open(path, O_RDONLY);

	assert_true(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0);
	close(fd);
	assert_string_equal(text, wanted);
}

TEST(files_that_cannot_be_written_are_refused)
{
	char file[128];

	is_refused(test_folder, "Is a directory");
	is_refused("/nowhere/at/all", "there is no such folder: make it");
	is_refused("", "make it, or name another file");
	snprintf(file, sizeof(file), "%s/file", test_folder);
	assert_true(write_to(file, "text"));
	snprintf(file, sizeof(file), "%s/file/below", test_folder);
	is_refused(file, "Not a directory");
	assert_true(write_to("/dev/null", "text"));
}

/* What a file had stays until it is written, and no file is made before. */
TEST(a_text_replaces_a_file_and_follows_in_a_pipe)
{
	char file[128], pipe[128], read_back[8] = "";
	struct preflight_output output = { .path = file };
	const char *why;

	snprintf(file, sizeof(file), "%s/replaced", test_folder);
	snprintf(pipe, sizeof(pipe), "%s/pipe", test_folder);
	assert_true(write_to(file, "the first text"));
	const int reader = open(file, O_RDONLY);
	assert_true(preflight_output_open(&output, &why));
	holds(file, "the first text");
	assert_true(preflight_output_write(&output, "2nd"));
	holds(file, "2nd");
	assert_int_equal(read(reader, read_back, 3), 3);
	assert_string_equal(read_back, "the");
	close(reader);
	memset(read_back, 0, sizeof(read_back));
	assert_int_equal(unlink(file), 0);
	assert_true(preflight_output_open(&output, &why));
	assert_int_equal(access(file, F_OK), -1);
	assert_int_equal(mkfifo(pipe, 0600), 0);
	is_refused(pipe, ""); /* nobody reads it */
	const int fd = open(pipe, O_RDONLY | O_NONBLOCK);
	assert_true(fd >= 0);
	assert_true(write_to(pipe, "text"));
	assert_int_equal(read(fd, read_back, sizeof(read_back)), 4);
	assert_string_equal(read_back, "text");
	close(fd);
}

/* What goes to a file by standard output stays there when the JSON goes to /dev/stdout. */
TEST(standard_output_is_not_replaced)
{
	char path[128];
	const int kept = dup(STDOUT_FILENO);
	bool first, second;

	snprintf(path, sizeof(path), "%s/stdout", test_folder);
	const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0 && kept >= 0);
	fflush(stdout);
	assert_int_equal(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
	printf("zero ");
	first = write_to("/dev/stdout", "one ");
	second = write_to("/dev/stdout", "two");
	printf(" three");
	fflush(stdout);
	assert_int_equal(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
	assert_true(first && second);
	close(fd);
	close(kept);
	holds(path, "zero one two three");
}

/* ---- who runs what ---- */

TEST(another_release_is_named)
{
	struct preflight_release all[5];
	char text[PREFLIGHT_RELEASE_TEXT] = "";

	for (int r = 0; r < 5; r++) {
		char node[8];
		snprintf(node, sizeof(node), "n%d", r / 2);
		preflight_release_own(&all[r], node);
	}
	assert_true(preflight_releases_agree(all, 5, text));
	assert_true(preflight_releases_agree(all, 1, text));
	for (int r = 0; r < 4; r++)
		strcpy(all[r].version, "1.0");
	strcpy(all[4].version, "9.8");
	assert_false(preflight_releases_agree(all, 5, text));
	assert_string_equal(text, "n2 runs ddp-preflight 9.8, and n0 runs 1.0: install one release on all nodes");
	strcpy(all[1].version, "9.9");
	assert_false(preflight_releases_agree(all, 5, text));
	assert_string_equal(text, "n0 and 1 other node run ddp-preflight 9.9, and n0 runs 1.0: install one release on all nodes");
	for (int r = 0; r < 5; r++)
		strcpy(all[r].version, "1.0");
	strcpy(all[2].form, "of 32 bits");
	strcpy(all[3].form, "of 32 bits");
	assert_false(preflight_releases_agree(all, 5, text));
	assert_string_equal(text, "n1 runs another build of ddp-preflight 1.0 than n0: install one build on all nodes");
	/* A release to come may fill its words to the end. */
	memset(&all[2], 'x', sizeof(all[2]));
	assert_false(preflight_releases_agree(all, 5, text));
}

TEST_MAIN(folder_make, folder_remove)
