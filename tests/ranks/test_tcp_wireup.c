/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 35 */
/* Wire-up by TCP between real processes: what goes right, and each thing that
   can go wrong. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/tcp_ranks.h"
#include "tests/support/test.h"
#include "wireup/frame.h"
#include "wireup/resolve.h"

TEST_WITH(ranks_exchange_blobs_of_many_sizes, begin, NULL)
{
	static const int worlds[] = { 2, 3, 5, 16 };
	static const size_t sizes[] = { 0, 1, 1000, 65536, 300000, DDP_BLOB_MAX };

	for (size_t w = 0; w < sizeof(worlds) / sizeof(worlds[0]); w++) {
		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
			/* 16 ranks would pass 256 MiB around */
			if (worlds[w] > 3 && sizes[s] > 100000)
				continue;
			arrange(worlds[w]);
			for (int r = 0; r < worlds[w]; r++) {
				ranks[r].blob_bytes = sizes[s];
				ranks[r].rounds = 3;
			}
			run(worlds[w]);
			all_are_well(worlds[w]);
		}
	}
}

/* Nodes of 3, 3 and 2 ranks, whose blobs are so large that ranks of a node share them. */
static void arrange_nodes(void)
{
	static const char *const nodes[] = { "a", "b", "c" };

	arrange(8);
	for (int r = 0; r < 8; r++) {
		ranks[r].node = nodes[r % 3];
		ranks[r].blob_bytes = 20000;
		ranks[r].rounds = 3;
	}
}

TEST_WITH(rank_0_sends_all_blobs_once_to_each_node, begin, NULL)
{
	const uint64_t all = 3 * 8 * 20000;

	arrange_nodes();
	run(8);
	all_are_well(8);
	assert_in_range(outcomes[0].sent_bytes, 2 * all - 2000, 2 * all + 10000);
}

/* Ranks 1, 4 and 7 are of node b. */
TEST_WITH(ranks_whose_leader_has_no_memory_get_all_blobs, begin, NULL)
{
	static const long file_bytes[] = { 8, 1000 }; /* to offer, and to write them */

	for (int i = 0; i < 2; i++) {
		arrange_nodes();
		ranks[1].file_bytes = file_bytes[i];
		run(8);
		all_are_well(8);
	}
}

/* Rank 1 leads, rank 4 follows it. */
TEST_WITH(rank_that_leaves_while_nodes_share_blobs_is_named_to_all, begin, NULL)
{
	static const struct { int rank, at; } cases[] = {
		{ 1, DDP_FRAME_ASK }, { 1, DDP_FRAME_JOIN }, { 1, DDP_FRAME_ALL }, { 4, DDP_FRAME_JOIN },
	};
	char words[80];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		arrange_nodes();
		ranks[cases[i].rank].leaves_at = cases[i].at;
		run(8);
		snprintf(words, sizeof(words), "rank %d on node%d ended during wire-up, while rank 0 on node0 waited for",
		         cases[i].rank, cases[i].rank);
		for (int r = 0; r < 8; r++) {
			if (r == cases[i].rank)
				continue;
			expect(r, DDP_ERR_PEER, words);
			assert_int_equal(outcomes[r].about, cases[i].rank);
		}
	}
}

TEST_WITH(rank_that_does_not_take_the_blobs_is_named_to_all, begin, NULL)
{
	arrange_nodes();
	for (int r = 0; r < 8; r++)
		ranks[r].timeout_ms = r == 0 ? SHORT_MS : LONG_MS;
	ranks[1].leaves_at = DDP_FRAME_ALL;
	ranks[1].hangs = true;
	run(8);
	for (int r = 0; r < 8; r++)
		if (r != 1)
			expect(r, DDP_ERR_TIMEOUT, "rank 1 on node0 did not take the data of all ranks from rank 0 on node0 within");
}

TEST_WITH(rank_0_may_come_late, begin, NULL)
{
	arrange(3);
	ranks[0].delay_ms = 300;
	run(3);
	all_are_well(3);
}

TEST_WITH(missing_ranks_are_named_to_all, begin, NULL)
{
	arrange(5);
	for (int r = 0; r < 5; r++)
		ranks[r].timeout_ms = SHORT_MS;
	ranks[2].absent = ranks[3].absent = true;
	run(5);
	expect(0, DDP_ERR_TIMEOUT, "ranks 2-3 on node0 did not come to rank 0 on node0");
	expect(1, DDP_ERR_TIMEOUT, "ranks 2-3 on node0 did not come");
	expect(4, DDP_ERR_TIMEOUT, "ranks 2-3 on node0 did not come");
	assert_true(outcomes[0].seconds >= SHORT_MS * 1e-3);
}

TEST_WITH(absent_rank_0_is_named, begin, NULL)
{
	arrange(2);
	ranks[0].absent = true;
	ranks[1].timeout_ms = 300;
	run(2);
	expect(1, DDP_ERR_TIMEOUT, "rank 0 did not come to 127.");
	expect(1, DDP_ERR_TIMEOUT, "Connection refused");
}

TEST_WITH(wrong_key_is_an_error_on_both_sides, begin, NULL)
{
	arrange(3);
	ranks[1].key.bytes[31] ^= 1;
	ranks[0].timeout_ms = SHORT_MS;
	run(3);
	expect(1, DDP_ERR_AUTH, "did not accept this rank's key");
	expect(0, DDP_ERR_AUTH, "rank 1 on node0 did not come");
	expect(0, DDP_ERR_AUTH, "DDP_KEY must be the same");
	expect(2, DDP_ERR_AUTH, "rank 1 on node0 did not come");
}

TEST_WITH(rank_that_leaves_ends_the_wait_at_once, begin, NULL)
{
	arrange(4);
	ranks[2].rounds = 0;
	ranks[1].absent = ranks[3].absent = true;
	run(4);
	expect(0, DDP_ERR_PEER, "rank 2 on node2 ended");
	expect(0, DDP_ERR_PEER, "waited for ranks 1, 3");
	assert_true(outcomes[0].seconds < LONG_MS * 1e-3 / 2);
}

TEST_WITH(rank_that_leaves_between_exchanges_is_named_to_all, begin, NULL)
{
	arrange(3);
	ranks[0].rounds = ranks[1].rounds = 2;
	run(3);
	expect(0, DDP_ERR_PEER, "rank 2 on node2 ended");
	expect(1, DDP_ERR_PEER, "rank 2 on node2 ended");
	expect(2, DDP_OK, "");
	assert_true(outcomes[1].seconds < LONG_MS * 1e-3 / 2);
}

TEST_WITH(rank_that_joins_and_sends_nothing_is_named, begin, NULL)
{
	arrange(3);
	ranks[0].timeout_ms = SHORT_MS;
	ranks[2].idles = true;
	run(3);
	expect(0, DDP_ERR_TIMEOUT, "rank 2 on node0 came to rank 0 on node0, but sent no data");
	expect(1, DDP_ERR_TIMEOUT, "rank 2 on node0 came to rank 0 on node0, but sent no data");
}

/* Whenever it happens, nobody hangs, and nobody takes it for something else. */
TEST_WITH(rank_killed_at_any_moment_leaves_the_others_with_an_error, begin, NULL)
{
	enum { ROUNDS = 6, WORLD = 4 };

	srandom(3);
	for (int round = 0; round < ROUNDS; round++) {
		int victim = (int)(random() % WORLD);
		arrange(WORLD);
		for (int r = 0; r < WORLD; r++) {
			ranks[r].timeout_ms = 400;
			ranks[r].rounds = 5;
			ranks[r].blob_bytes = 50000;
			ranks[r].node = r % 2 != 0 ? "a" : NULL;
		}
		ranks[victim].dies_us = 1 + (int)(random() % 8000);
		run(WORLD);
		for (int r = 0; r < WORLD; r++) {
			ddp_status status = outcomes[r].status;
			if (status != DDP_OK && status != DDP_ERR_PEER && status != DDP_ERR_TIMEOUT)
				fail_msg("rank %d: %s %s", r, ddp_status_name(status), outcomes[r].message);
			assert_true(outcomes[r].seconds < 30);
		}
	}
}

TEST_WITH(two_claims_to_one_rank_are_named, begin, NULL)
{
	arrange(4);
	ranks[2].absent = true;
	ranks[3].job.rank = 1;
	run(4);
	expect(0, DDP_ERR_JOB, "two processes say that they are rank 1");
	expect(1, DDP_ERR_JOB, "two processes say that they are rank 1");
	expect(3, DDP_ERR_JOB, "two processes say that they are rank 1");
	assert_non_null(strstr(outcomes[0].message, "node1"));
	assert_non_null(strstr(outcomes[0].message, "node3"));
}

TEST_WITH(world_sizes_that_differ_name_both_sides, begin, NULL)
{
	arrange(3);
	ranks[1].absent = true;
	ranks[2].job.world_size = 5;
	run(3);
	expect(0, DDP_ERR_JOB, "rank 2 on node2");
	expect(0, DDP_ERR_JOB, "5 ranks, rank 0 on node0 says 3");
	expect(2, DDP_ERR_JOB, "5 ranks, rank 0 on node0 says 3");
}

/* Listens there, and says nothing to who comes, as PyTorch's store does. */
static int hold_port(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	inet_pton(AF_INET, ranks[0].job.master_addr, &address.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 5), 0);
	return fd;
}

/* The first `held` ports are other programs'. */
static void hold_ports(int held, int fds[DDP_RENDEZVOUS_PORTS])
{
	ddp_ports ports;

	ddp_ports_choose(ranks[0].job.master_port, &ports);
	assert_int_equal(ports.count, DDP_RENDEZVOUS_PORTS);
	for (int i = 0; i < held; i++)
		fds[i] = hold_port(ports.port[i]);
}

static void release_ports(int held, const int fds[DDP_RENDEZVOUS_PORTS])
{
	for (int i = 0; i < held; i++)
		close(fds[i]);
}

TEST_WITH(ranks_meet_at_a_port_of_libddp_if_others_are_held, begin, NULL)
{
	static const int helds[] = { 1, 3, DDP_RENDEZVOUS_PORTS - 1 };
	int fds[DDP_RENDEZVOUS_PORTS];

	for (size_t i = 0; i < sizeof(helds) / sizeof(helds[0]); i++) {
		arrange(3);
		hold_ports(helds[i], fds);
		ranks[0].delay_ms = i == 1 ? 500 : 0;
		run(3);
		release_ports(helds[i], fds);
		all_are_well(3);
		for (int r = 0; r < 3; r++)
			assert_true(outcomes[r].seconds < LONG_MS * 1e-3 / 2);
	}
}

/* Packets to it are dropped, as by a firewall: its queue of connections is full. */
static void drop_packets_to(int port, int fds[4])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	fds[0] = hold_port(port);
	listen(fds[0], 0);
	inet_pton(AF_INET, ranks[0].job.master_addr, &address.sin_addr);
	for (int i = 1; i < 4; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(fds[i], (struct sockaddr *)&address, sizeof(address));
	}
}

/* The silent ones are tried beside each other, not one after the other. */
TEST_WITH(ports_that_drop_packets_do_not_delay_the_others, begin, NULL)
{
	int fds[DDP_RENDEZVOUS_PORTS][4];
	ddp_ports ports;

	arrange(3);
	ddp_ports_choose(ranks[0].job.master_port, &ports);
	for (int i = 0; i < DDP_RENDEZVOUS_PORTS - 1; i++)
		drop_packets_to(ports.port[i], fds[i]);
	run(3);
	for (int i = 0; i < DDP_RENDEZVOUS_PORTS - 1; i++)
		release_ports(4, fds[i]);
	all_are_well(3);
	for (int r = 0; r < 3; r++)
		assert_true(outcomes[r].seconds < 4);
}

TEST_WITH(no_free_port_is_said_by_rank_0, begin, NULL)
{
	int fds[DDP_RENDEZVOUS_PORTS];

	arrange(2);
	ranks[1].timeout_ms = SHORT_MS;
	hold_ports(DDP_RENDEZVOUS_PORTS, fds);
	run(2);
	release_ports(DDP_RENDEZVOUS_PORTS, fds);
	expect(0, DDP_ERR_IO, "another program holds the port");
	expect(0, DDP_ERR_IO, "choose another MASTER_PORT");
	expect(1, DDP_ERR_TIMEOUT, "what listens there says nothing");
}

/* srun --ddp chooses MASTER_PORT from 21000 to 28999, and another job's may be a port of ours. */
TEST_WITH(own_ports_are_none_that_the_plugin_chooses, begin, NULL)
{
	ddp_ports ports;

	for (int master = 21000; master < 29000; master++) {
		ddp_ports_choose(master, &ports);
		for (int i = 1; i < DDP_RENDEZVOUS_PORTS; i++)
			if (ports.port[i] < 20000 || ports.port[i] >= 32000 ||
			    (ports.port[i] >= 21000 && ports.port[i] <= 28999))
				fail_msg("port %d of MASTER_PORT %d", ports.port[i], master);
	}
}

/* A worker whose torchrun was killed may still look for rank 0, and finds the next generation's. */
TEST_WITH(orphan_of_an_earlier_torchrun_does_not_end_the_next, begin, NULL)
{
	setenv("TORCHELASTIC_RUN_ID", "run 8", 1);
	arrange(4);
	for (int r = 0; r < 3; r++)
		ranks[r].job.world_size = ranks[r].job.local_world_size = 3;
	ranks[2].delay_ms = 500;
	ranks[3].timeout_ms = SHORT_MS;
	run(4);
	unsetenv("TORCHELASTIC_RUN_ID");
	all_are_well(3);
	assert_int_not_equal(outcomes[3].status, DDP_OK);
}

/* The orphan has the rank `rank` of a world as large as the next one, at the same port. */
static void meet_after_orphan(int rank)
{
	setenv("TORCHELASTIC_RUN_ID", "run 8", 1);
	arrange(4);
	for (int r = 0; r < 4; r++) {
		ranks[r].job.world_size = ranks[r].job.local_world_size = 3;
		ranks[r].delay_ms = r < 3 ? 3000 : 0;
	}
	ranks[3].job.rank = rank;
	ranks[3].agent_ends_ms = 300;
	run(4);
	unsetenv("TORCHELASTIC_RUN_ID");
	all_are_well(3);
	expect(3, DDP_ERR_STATE, "torchrun's agent, has ended");
	assert_true(outcomes[3].seconds < LONG_MS * 1e-3 / 2);
}

TEST_WITH(orphan_gives_up_before_the_next_start_comes, begin, NULL)
{
	meet_after_orphan(1);
	meet_after_orphan(0);
}

/* All have one key, as in one job of several torchruns at one port. */
TEST_WITH(rank_of_another_torchrun_does_not_join, begin, NULL)
{
	setenv("TORCHELASTIC_RUN_ID", "run 9", 1);
	arrange(4);
	for (int r = 0; r < 4; r++)
		ranks[r].job.world_size = ranks[r].job.local_world_size = 3;
	ranks[2].delay_ms = 500;
	ranks[3].job.rank = 2;
	ranks[3].run_id = "another run";
	ranks[3].timeout_ms = SHORT_MS;
	run(4);
	unsetenv("TORCHELASTIC_RUN_ID");
	all_are_well(3);
	assert_int_not_equal(outcomes[3].status, DDP_OK);
}

/* torchrun's agent keeps MASTER_PORT for its store. */
TEST_WITH(agents_store_keeps_master_port, begin, NULL)
{
	int fd;

	setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
	setenv("TORCHELASTIC_RUN_ID", "run 7", 1);
	arrange(3);
	fd = hold_port(ranks[0].job.master_port);
	run(3);
	close(fd);
	all_are_well(3);
	/* Without a torchrun that has told the key, ranks of one node need none. */
	arrange(3);
	for (int r = 0; r < 3; r++)
		ranks[r].key.present = false;
	run(3);
	all_are_well(3);
	/* Those of several nodes do. */
	for (int r = 0; r < 3; r++)
		ranks[r].job.local_world_size = 2;
	run(3);
	unsetenv("TORCHELASTIC_USE_AGENT_STORE");
	unsetenv("TORCHELASTIC_RUN_ID");
	for (int r = 0; r < 3; r++)
		expect(r, DDP_ERR_AUTH, "openssl rand -hex 32");
}

TEST_WITH(ports_are_the_same_on_all_ranks_and_differ_by_run, begin, NULL)
{
	ddp_ports first, again, other;

	ddp_ports_choose(29500, &first);
	assert_true(first.master_first);
	assert_int_equal(first.port[0], 29500);
	setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
	ddp_ports_choose(29500, &again);
	assert_memory_equal(first.port, again.port, sizeof(first.port));
	setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
	setenv("TORCHELASTIC_RUN_ID", "77.0.0", 1);
	ddp_ports_choose(29500, &other);
	unsetenv("TORCHELASTIC_USE_AGENT_STORE");
	unsetenv("TORCHELASTIC_RUN_ID");
	assert_false(other.master_first);
	for (int i = 0; i < DDP_RENDEZVOUS_PORTS; i++)
		for (int j = 0; j < DDP_RENDEZVOUS_PORTS; j++)
			assert_int_not_equal(other.port[i], first.port[j]);
}

TEST_WITH(too_low_a_descriptor_limit_is_said, begin, NULL)
{
	arrange(2);
	ranks[0].descriptors = 40;
	ranks[1].absent = true;
	run(2);
	expect(0, DDP_ERR_NOMEM, "raise ulimit -Hn");
}

TEST_WITH(blob_that_is_too_large_is_refused_and_others_hear_of_it, begin, NULL)
{
	arrange(3);
	for (int r = 0; r < 3; r++)
		ranks[r].blob_bytes = DDP_BLOB_MAX + 1; /* those of ranks 1 and 2 fit */
	run(3);
	for (int r = 0; r < 3; r++)
		expect(r, DDP_ERR_INVALID, "a blob of 1048577 bytes; 1048576 are possible");
}

TEST_WITH(address_of_another_node_is_refused_on_rank_0, begin, NULL)
{
	arrange(2);
	ranks[1].absent = true;
	strcpy(ranks[0].job.master_addr, "192.0.2.1");
	run(2);
	expect(0, DDP_ERR_JOB, "is no address of that node");
}

/* An address of this machine that is not the loopback's. */
static bool other_address(char *text, size_t bytes)
{
	struct ifaddrs *list;
	bool found = false;

	if (getifaddrs(&list) < 0)
		return false;
	for (const struct ifaddrs *a = list; a != NULL && !found; a = a->ifa_next) {
		if (a->ifa_addr == NULL || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_LOOPBACK))
			continue;
		found = inet_ntop(AF_INET, &((const struct sockaddr_in *)a->ifa_addr)->sin_addr, text,
		                  (socklen_t)bytes) != NULL;
	}
	freeifaddrs(list);
	return found;
}

TEST_WITH(loopback_is_refused_for_several_nodes, begin, NULL)
{
	arrange(2);
	ranks[0].job.nnodes = ranks[1].job.nnodes = 2;
	run(2);
	expect(0, DDP_ERR_JOB, "is a loopback address there");
	expect(1, DDP_ERR_JOB, "is a loopback address there");
}

TEST_WITH(agents_of_torchrun_may_share_a_machine, begin, NULL)
{
	static const char *const addresses[] = { "localhost", "127.0.0.1" };

	setenv("TORCHELASTIC_RUN_ID", "none", 1);
	for (int i = 0; i < 2; i++) {
		arrange(2);
		ranks[0].job.nnodes = ranks[1].job.nnodes = 2;
		for (int r = 0; r < 2; r++)
			strcpy(ranks[r].job.master_addr, addresses[i]);
		run(2);
		all_are_well(2);
	}
	unsetenv("TORCHELASTIC_RUN_ID");
}

/* Debian's 127.0.1.1: rank 1 shares rank 0's node, rank 2 has its address. */
TEST_WITH(loopback_of_rank_0s_own_name_is_no_obstacle, begin, NULL)
{
	arrange(3);
	for (int r = 0; r < 3; r++)
		ranks[r].job.nnodes = 2;
	strcpy(ranks[0].job.hostname, "localhost");
	strcpy(ranks[1].job.hostname, "localhost.example.org");
	strcpy(ranks[2].job.hostname, "elsewhere");
	strcpy(ranks[0].job.master_addr, "localhost");
	strcpy(ranks[1].job.master_addr, "localhost");
	if (!other_address(ranks[2].job.master_addr, sizeof(ranks[2].job.master_addr)))
		skip();
	run(3);
	all_are_well(3);
}

TEST_WITH(name_that_does_not_resolve_is_said, begin, NULL)
{
	arrange(2);
	ranks[0].absent = true;
	ranks[1].timeout_ms = 300;
	strcpy(ranks[1].job.master_addr, "no-such-host.invalid");
	run(2);
	assert_true(outcomes[1].status == DDP_ERR_JOB || outcomes[1].status == DDP_ERR_TIMEOUT);
	assert_non_null(strstr(outcomes[1].message, "MASTER_ADDR no-such-host.invalid"));
}

TEST_WITH(key_and_address_are_required, begin, NULL)
{
	arrange(2);
	ranks[0].key.present = false;
	ranks[1].job.master_addr[0] = '\0';
	run(2);
	expect(0, DDP_ERR_AUTH, "openssl rand -hex 32");
	expect(1, DDP_ERR_JOB, "needs MASTER_ADDR");
}

TEST_WITH(unknown_wireup_is_refused, begin, NULL)
{
	ddp_wireup *wireup;

	arrange(2);
	assert_int_equal(ddp_wireup_open(&ranks[0].job, &ranks[0].key, "ftp", 0, &wireup),
	                 DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "\"ftp\" is not known"));
	unsetenv("PMIX_NAMESPACE");
	assert_int_equal(ddp_wireup_open(&ranks[0].job, &ranks[0].key, "pmix", 0, &wireup), DDP_ERR_JOB);
	assert_non_null(strstr(ddp_last_error(), "srun --mpi=pmix"));
}
