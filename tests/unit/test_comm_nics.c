/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* comm/net/nics: InfiniBand ports of a node, as sysfs shows them, and its ranks. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/net/nics.h"
#include "tests/support/folder.h"
#include "tests/support/test.h"

/* ---- a sysfs, and its devices in dev ------------------------------------------------------ */

static void put(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A file, and the folders that it is in. */
static void put(const char *text, const char *format, ...)
{
	char path[512];
	va_list arguments;
	int length = snprintf(path, sizeof(path), "%s/", test_folder);

	va_start(arguments, format);
	vsnprintf(path + length, sizeof(path) - (size_t)length, format, arguments);
	va_end(arguments);
	for (char *slash = strchr(path + length, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		(void)mkdir(path, 0755);
		*slash = '/';
	}
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "%s\n", text);
	assert_int_equal(fclose(file), 0);
}

typedef struct port {
	int card, numa;
	const char *state, *rate, *link, *gid;
} port;

static const port usual = { .state = "4: ACTIVE", .rate = "200 Gb/sec (4X HDR)", .link = "InfiniBand",
                            .gid = "fe80:0000:0000:0000:0c42:a103:0010:9f16" };

static void put_verbs(const char *kind, int card, int number)
{
	char name[16];

	snprintf(name, sizeof(name), "%s_%d", kind, card);
	put(name, "class/infiniband_verbs/uverbs%d/ibdev", number);
	put("", "dev/uverbs%d", number);
}

static void put_port(const port *p)
{
	char numa[16];

	snprintf(numa, sizeof(numa), "%d", p->numa);
	put(p->state, "class/infiniband/mlx5_%d/ports/1/state", p->card);
	put(p->rate, "class/infiniband/mlx5_%d/ports/1/rate", p->card);
	put(p->link, "class/infiniband/mlx5_%d/ports/1/link_layer", p->card);
	put(p->gid, "class/infiniband/mlx5_%d/ports/1/gids/0", p->card);
	put(numa, "class/infiniband/mlx5_%d/device/numa_node", p->card);
	put_verbs("mlx5", p->card, p->card + 1);
}

/* Cards of the usual kind, as many on each of two sockets of 16 cores. */
static void put_node(int cards)
{
	port p = usual;

	put("0-15", "devices/system/node/node0/cpulist");
	put("10 21", "devices/system/node/node0/distance");
	put("16-31", "devices/system/node/node1/cpulist");
	put("21 10", "devices/system/node/node1/distance");
	for (p.card = 0; p.card < cards; p.card++) {
		p.numa = p.card >= cards / 2;
		put_port(&p);
	}
}

/* ---- choices -------------------------------------------------------------------------------- */

enum { RANKS_MAX = 16 };

/* Ranks that may run on `each` cores, one behind the other; or, with a stride, further on. */
static void expect(int each, int stride, int local, int locals, const char *expected)
{
	cpu_set_t allowed[RANKS_MAX];
	char names[256] = "", dev[512];

	for (int i = 0; i < locals; i++) {
		CPU_ZERO(&allowed[i]);
		for (int core = 0; core < each; core++)
			CPU_SET((size_t)(i * stride + core) % 32, &allowed[i]);
	}
	snprintf(dev, sizeof(dev), "%s/dev", test_folder);
	assert_int_equal(ddp_nics_choose(test_folder, dev, allowed, sizeof(allowed[0]), local, locals, names,
	                                 sizeof(names)), expected != NULL);
	if (expected != NULL)
		assert_string_equal(names, expected);
}

TEST_WITH(bound_rank_uses_a_card_of_its_socket, folder_empty, NULL)
{
	put_node(8);
	expect(4, 4, 0, 8, "mlx5_0:1");
	expect(4, 4, 3, 8, "mlx5_3:1");
	expect(4, 4, 4, 8, "mlx5_4:1");
	expect(4, 4, 7, 8, "mlx5_7:1");
}

/* As SLURM does if nobody says otherwise: to one socket and the other by turns. */
TEST_WITH(ranks_dealt_out_to_sockets_use_all_cards, folder_empty, NULL)
{
	static const char *const cards[] = { "mlx5_0:1", "mlx5_4:1", "mlx5_1:1", "mlx5_5:1", "mlx5_2:1", "mlx5_6:1",
	                                     "mlx5_3:1", "mlx5_7:1" };

	put_node(8);
	for (int i = 0; i < 8; i++)
		expect(1, 16, i, 8, cards[i]);
}

TEST_WITH(unbound_ranks_share_all_cards, folder_empty, NULL)
{
	put_node(4);
	expect(32, 0, 0, 4, "mlx5_0:1");
	expect(32, 0, 3, 4, "mlx5_3:1");
	expect(32, 0, 5, 16, "mlx5_1:1");
	expect(32, 0, 1, 2, "mlx5_2:1,mlx5_3:1");
}

TEST_WITH(few_ranks_use_what_is_near, folder_empty, NULL)
{
	put_node(4);
	expect(32, 0, 0, 1, NULL);
	expect(16, 16, 1, 2, "mlx5_2:1,mlx5_3:1");
	expect(4, 4, 0, 1, "mlx5_0:1,mlx5_1:1");
}

TEST_WITH(cards_are_counted_as_their_numbers_are, folder_empty, NULL)
{
	put_node(12);
	expect(32, 0, 10, 12, "mlx5_10:1");
	expect(32, 0, 2, 12, "mlx5_2:1");
}

TEST_WITH(what_is_slow_or_down_does_not_count, folder_empty, NULL)
{
	port slow = usual, down = usual;

	put_node(2);
	slow.card = 2;
	slow.rate = "25 Gb/sec (1X EDR)";
	slow.link = "Ethernet";
	put_port(&slow);
	down.card = 3;
	down.state = "1: DOWN";
	put_port(&down);
	expect(32, 0, 1, 4, "mlx5_1:1");
	expect(32, 0, 2, 4, "mlx5_0:1");
	expect(32, 0, 3, 4, "mlx5_1:1");
}

static void expect_device(bool expected)
{
	char dev[512];

	snprintf(dev, sizeof(dev), "%s/dev", test_folder);
	assert_int_equal(ddp_nics_any(test_folder, dev), expected);
}

static void remove_device(int card)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/dev/uverbs%d", test_folder, card + 1);
	assert_int_equal(unlink(path), 0);
}

/* Opening it fails, as with a device that the job's cgroup forbids. */
TEST_WITH(card_that_cannot_be_opened_does_not_count, folder_empty, NULL)
{
	put_node(4);
	remove_device(0);
	expect(32, 0, 0, 3, "mlx5_1:1");
	expect(32, 0, 2, 3, "mlx5_3:1");
	remove_device(2);
	expect(4, 4, 0, 1, "mlx5_1:1");
	remove_device(3);
	expect(32, 0, 0, 2, NULL);
	expect_device(true);
	remove_device(1);
	expect(32, 0, 0, 2, NULL);
	expect_device(false);
}

/* Soft-RoCE and siw: there is no folder "device" of theirs. */
TEST_WITH(software_that_can_be_opened_counts, folder_empty, NULL)
{
	put("6", "class/infiniband_verbs/abi_version");
	put("4: ACTIVE", "class/infiniband/rxe_0/ports/1/state");
	put("Ethernet", "class/infiniband/rxe_0/ports/1/link_layer");
	expect_device(false);
	put_verbs("rxe", 0, 1);
	expect_device(true);
	remove_device(0);
	expect_device(false);
}

TEST_WITH(memory_node_need_not_be_known, folder_empty, NULL)
{
	port p = usual;

	for (p.card = 0; p.card < 2; p.card++) {
		p.numa = p.card == 0 ? -1 : 70;
		put_port(&p);
	}
	expect(1, 1, 1, 2, "mlx5_1:1");
}

TEST_WITH(what_may_not_reach_each_other_is_left_to_ucx, folder_empty, NULL)
{
	port other = usual;

	expect(32, 0, 0, 4, NULL); /* nothing there */
	put_node(1);
	expect(32, 0, 0, 4, NULL);
	other.card = 1;
	other.gid = "fec0:0000:0000:0001:0c42:a103:0010:9f17";
	put_port(&other);
	expect(32, 0, 0, 4, NULL);
	other = usual;
	other.card = 1;
	other.link = "Ethernet";
	put_port(&other);
	expect(32, 0, 0, 4, NULL);
	other.link = usual.link;
	put_port(&other);
	expect(32, 0, 0, 4, "mlx5_0:1");
}

TEST_WITH(names_that_do_not_fit_are_none, folder_empty, NULL)
{
	char names[12], dev[512];
	cpu_set_t allowed;

	put_node(8);
	CPU_ZERO(&allowed);
	CPU_SET(0, &allowed);
	snprintf(dev, sizeof(dev), "%s/dev", test_folder);
	assert_false(ddp_nics_choose(test_folder, dev, &allowed, sizeof(allowed), 0, 1, names, sizeof(names)));
}

int main(void)
{
	return test_run(folder_make, folder_remove);
}
