/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/identity/identity and master: which port, and whether it can be had.
   spank/launch: what srun's side leaves in srun's environment. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "spank/identity/identity.h"
#include "spank/identity/master.h"
#include "spank/launch/names.h"
#include "spank/launch/prepare.h"
#include "spank/options/site.h"
#include "tests/support/test.h"

TEST(first_reserved_port_is_taken)
{
	static const struct { const char *text; int port; } cases[] = {
		{ "12000", 12000 }, { "12000-12003", 12000 }, { "12001,12005-12007", 12001 },
		{ "65535", 65535 }, { "1", 1 }, { "0", -1 }, { "", -1 }, { "65536", -1 }, { "-5", -1 },
		{ "x", -1 }, { "12000x", -1 }, { " 12000", -1 }, { "99999999999999999999", -1 },
		{ "(null)", -1 }, { "12000:12001", -1 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct error error = { "" };
		uint16_t port = 0;
		bool good = port_from_reservation(cases[i].text, &port, &error);
		assert_int_equal(good, cases[i].port >= 0);
		if (good)
			assert_int_equal(port, cases[i].port);
		else
			assert_non_null(strstr(error.text, "SLURM_STEP_RESV_PORTS"));
	}
}

TEST(hashed_port_stays_in_the_range)
{
	static const uint16_t ranges[][2] = { { 21000, 28999 }, { 1024, 65535 }, { 30000, 30000 },
		                              { 65534, 65535 }, { 20000, 20001 } };

	for (size_t i = 0; i < COUNT(ranges); i++)
		for (uint32_t job = 0; job < 500; job++)
			for (uint32_t restart = 0; restart < 3; restart++) {
				uint16_t port = port_from_hash(job * 7919, job % 5, restart, ranges[i][0],
				                               ranges[i][1]);
				assert_true(port >= ranges[i][0] && port <= ranges[i][1]);
			}
	assert_true(port_from_hash(UINT32_MAX, UINT32_MAX, UINT32_MAX, 1024, 65535) >= 1024);
}

TEST(steps_of_one_job_never_share_a_port)
{
	static char taken[65536];

	for (uint32_t job = 1; job < 50; job++) {
		memset(taken, 0, sizeof(taken));
		for (uint32_t step = 0; step < 8000; step++) {
			uint16_t port = port_from_hash(job, step, 0, 21000, 28999);
			assert_false(taken[port]);
			taken[port] = 1;
		}
	}
}

TEST(requeue_and_neighbouring_jobs_change_the_port)
{
	int same_after_requeue = 0, same_as_next = 0;

	for (uint32_t job = 1; job <= 1000; job++) {
		uint16_t port = port_from_hash(job, 0, 0, 21000, 28999);
		same_after_requeue += port == port_from_hash(job, 0, 1, 21000, 28999);
		same_as_next += port == port_from_hash(job + 1, 0, 0, 21000, 28999);
	}
	assert_true(same_after_requeue <= 5);
	assert_true(same_as_next <= 5);
}

TEST(ephemeral_ports_are_told)
{
	static const struct { uint16_t port; const char *range, *reserved; bool ephemeral; } cases[] = {
		{ 29500, "32768\t60999\n", "", false }, { 32768, "32768\t60999\n", "", true },
		{ 60999, "32768\t60999\n", "", true }, { 61000, "32768\t60999\n", "", false },
		{ 32767, "32768 60999", "", false }, { 20000, "1024 65535", "", true },
		{ 20000, "1024 65535", "20000", false }, { 20000, "1024 65535", "20000-20010\n", false },
		{ 20010, "1024 65535", "8080,20000-20010\n", false },
		{ 20011, "1024 65535", "8080,20000-20010\n", true },
		{ 20000, "1024 65535", "garbage", true }, { 20000, "garbage", "", false },
		{ 20000, "", "", false }, { 20000, "1024", "", false },
		{ 50000, "32768\t60999", "49999,50001", true }, { 50000, "32768\t60999", "49999, 50000", false },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		if (port_is_ephemeral(cases[i].port, cases[i].range, cases[i].reserved) != cases[i].ephemeral)
			fail_msg("port %u, range '%s', reserved '%s'", cases[i].port, cases[i].range,
			         cases[i].reserved);
}

/* A listener on an address of the caller's choice; its port is written down. */
static int listen_on(uint32_t address, uint16_t *port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
	socklen_t bytes = sizeof(name);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &bytes), 0);
	*port = ntohs(name.sin_port);
	return fd;
}

TEST(port_in_use_is_told_on_any_address)
{
	static const uint32_t addresses[] = { INADDR_ANY, INADDR_LOOPBACK };

	for (size_t i = 0; i < COUNT(addresses); i++) {
		struct error error = { "" };
		uint16_t ports[4];
		int fds[COUNT(ports)], had = 0;
		for (size_t k = 0; k < COUNT(ports); k++) {
			fds[k] = listen_on(addresses[i], &ports[k]);
			assert_false(port_probe(ports[k], &error));
			assert_non_null(strstr(error.text, "in use"));
		}
		for (size_t k = 0; k < COUNT(ports); k++)
			close(fds[k]);
		/* Another process may have got one of them in the meantime. */
		for (size_t k = 0; k < COUNT(ports); k++)
			had += port_probe(ports[k], &error);
		assert_true(had > 0);
	}
}

TEST(loopback_and_unknown_names_are_refused)
{
	static const struct { const char *host, *named; } cases[] = {
		{ "127.0.0.1", "127.0.0.1 only" }, { "127.0.1.1", "127.0.1.1 only" }, { "::1", "::1 only" },
		{ "0.0.0.0", "0.0.0.0 only" }, { "169.254.3.4", "169.254.3.4 only" },
		{ "fe80::1", "fe80::1 only" }, { "a..b", "does not resolve" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[ADDRESS_TEXT_MAX];
		struct error error = { "" };
		assert_false(address_resolve(cases[i].host, text, &error));
		assert_non_null(strstr(error.text, cases[i].host));
		if (strstr(error.text, cases[i].named) == NULL)
			fail_msg("'%s' does not say '%s'", error.text, cases[i].named);
	}
}

TEST(node_addr_of_slurm_comes_before_the_name)
{
	static const struct { const char *list, *node, *known, *address; } cases[] = {
		{ "addr=ip", "a..b", "198.18.0.7", "198.18.0.7" }, { "addr=ip", "2001:db8::1", NULL, "2001:db8::1" },
		{ "addr=ip", "198.18.0.1", "198.18.0.7", "198.18.0.7" },
		{ "addr=ip", "198.18.0.1", "127.0.0.1", "198.18.0.1" }, /* of a cluster on one host */
		{ "addr=ip", "198.18.0.1", "c..d", "198.18.0.1" },
		{ "addr=ip", "198.18.0.1", NULL, "198.18.0.1" },
		{ "addr=nodename", "a..b", "198.18.0.7", "a..b" },
		{ "addr=ip,addr-suffix=9", "198.18.0.1", "198.18.0.7", "198.18.0.19" },
		{ "addr=ip", "a..b", NULL, NULL }, { "addr=ip", "a..b", "127.0.0.1", NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct identity identity = { .node_name = "n1" };
		struct node_address known = { .node = "" };
		struct settings settings;
		struct error error = { "" };
		char address[MASTER_ADDRESS_MAX] = "";
		settings_init(&settings);
		assert_true(user_list_read(&settings, cases[i].list, 0, &error));
		strcpy(identity.master_node, cases[i].node);
		if (cases[i].known != NULL) {
			strcpy(known.node, cases[i].node);
			strcpy(known.address, cases[i].known);
		}
		bool found = master_find_address(&identity, &settings, &known, address, &error);
		assert_int_equal(found, cases[i].address != NULL);
		if (found)
			assert_string_equal(address, cases[i].address);
		else
			assert_non_null(strstr(error.text, "NodeAddr"));
	}
}

/* ---- spank/launch --------------------------------------------------------------- */

static struct settings defaults(void)
{
	struct settings settings;

	settings_init(&settings);
	return settings;
}

static int clear(void **state)
{
	for (int i = 0; name_at(i) != NULL; i++)
		unsetenv(name_at(i)->text);
	return 0;
}

TEST_WITH(key_is_made_once_for_all_components, clear, NULL)
{
	struct settings settings = defaults();
	struct error error = { "" };
	char first[80];

	assert_true(launch_prepare(&settings, NULL, &error));
	snprintf(first, sizeof(first), "%s", getenv("SLURM_DDP_KEY"));
	assert_int_equal(strlen(first), 64);
	assert_int_equal(strspn(first, "0123456789abcdef"), 64);
	unsetenv("SLURM_DDP_KEY");
	assert_true(launch_prepare(&settings, NULL, &error));
	assert_string_equal(getenv("SLURM_DDP_KEY"), first);
}

TEST_WITH(ranks_of_a_node_without_the_plugin_are_no_numbers, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	setenv("RANK", "7", 1);
	for (int launcher = 0; launcher < 2; launcher++) {
		settings.launcher = launcher > 0;
		assert_true(launch_prepare(&settings, NULL, &error));
		for (int i = 0; name_at(i) != NULL; i++) {
			const char *name = name_at(i)->text, *value = getenv(name);
			bool told = strncmp(name, "PET_", 4) == 0 || (launcher == 0 && name_at(i)->kind == NAME_RANK);
			if (told != (value != NULL && strstr(value, "absent on this node") != NULL))
				fail_msg("%s is %s", name, value != NULL ? value : "not set");
		}
		clear(NULL);
	}
}

TEST_WITH(first_host_of_a_hostfile_is_found, clear, NULL)
{
	static const struct { const char *text, *host; } cases[] = {
		{ "n2\nn0\n", "n2" }, { "n2", "n2" }, { "\n\n  n2 \nn0", "n2" }, { "n2,n0,n1\n", "n2" },
		{ "n[2-3]\n", "n2" }, { "n2*4\n", "n2" }, { "# comment\nn2\n", "n2" }, { "n2\r\nn0\r\n", "n2" },
		{ "", NULL }, { "\n\n", NULL }, { "# none\n", NULL }, { "n[2-\n", NULL }, { "n/2\n", NULL },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char path[] = "/tmp/test_spank_port.XXXXXX";
		int fd = mkstemp(path);
		struct settings settings = defaults();
		struct error error = { "" };
		assert_true(fd >= 0);
		assert_int_equal(write(fd, cases[i].text, strlen(cases[i].text)), (ssize_t)strlen(cases[i].text));
		close(fd);
		if (launch_prepare(&settings, path, &error) != (cases[i].host != NULL))
			fail_msg("case %zu: %s", i, error.text);
		if (cases[i].host != NULL)
			assert_string_equal(getenv("SLURM_DDP_FIRST_HOST"), cases[i].host);
		else
			assert_true(error.text[0] != '\0');
		/* The nodes refuse a step without. */
		assert_int_equal(getenv("SLURM_DDP_KEY") != NULL, cases[i].host != NULL);
		unlink(path);
	}
}

TEST_WITH(missing_hostfile_is_an_error_that_names_it, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	assert_false(launch_prepare(&settings, "/nonexistent/hosts", &error));
	assert_non_null(strstr(error.text, "/nonexistent/hosts"));
	setenv("SLURM_DDP_FIRST_HOST", "stale", 1);
	assert_true(launch_prepare(&settings, NULL, &error));
	assert_null(getenv("SLURM_DDP_FIRST_HOST"));
}

TEST_WITH(stale_variables_are_listed, clear, NULL)
{
	char text[512], small[8];
	struct settings settings = defaults();
	struct error error;

	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "");
	setenv("MASTER_ADDR", "n9", 1);
	setenv("RANK", "7", 1);
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "RANK=7 MASTER_ADDR=n9");
	launch_list_stale(small, sizeof(small));
	assert_string_equal(small, "RANK=7 ");
	setenv("MASTER_ADDR", "n9\n\033[2J", 1);
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "RANK=7 MASTER_ADDR=n9??[2J");
	unsetenv("MASTER_ADDR");
	assert_true(launch_prepare(&settings, NULL, &error));
	launch_list_stale(text, sizeof(text));
	assert_string_equal(text, "");
}

/* The names that are set now, except those of a kind, Slurm's, which a generation only changes, and the user's lists. */
static int count_left(enum name_kind except)
{
	int count = 0;

	for (int i = 0; name_at(i) != NULL; i++)
		count += name_at(i)->kind != except && name_at(i)->kind != NAME_RENUMBERED &&
		         name_at(i)->kind != NAME_LIST && getenv(name_at(i)->text) != NULL;
	return count;
}

TEST_WITH(variables_of_another_step_are_taken_out, clear, NULL)
{
	/* DDP_STEP_ID tells that the others are the plugin's. */
	for (int i = 0; name_at(i) != NULL; i++)
		if (name_at(i)->kind != NAME_HANDOVER && strcmp(name_at(i)->text, "DDP_STEP_ID") != 0)
			setenv(name_at(i)->text, "7", 1);
	launch_leave_step();
	for (int i = 0; name_at(i) != NULL; i++) {
		const char *name = name_at(i)->text;
		bool stays = name_at(i)->kind != NAME_HANDOVER && strcmp(name, "DDP_STEP_ID") != 0 &&
		             strcmp(name, "DDP_DERIVED") != 0;
		if ((getenv(name) != NULL) != stays)
			fail_msg("%s is %s", name, stays ? "taken out" : "left");
	}
	/* Nor is a step's key left, whatever else a program has taken out. */
	setenv("DDP_KEY", "step:7", 1);
	launch_leave_step();
	assert_null(getenv("DDP_KEY"));
	setenv("DDP_KEY", "7", 1);
	setenv("DDP_STEP_ID", "7", 1);
	setenv("SLURM_DDP_RELAY", "7", 1);
	launch_leave_step();
	assert_int_equal(count_left(NAME_CHOICE), 0);
	assert_string_equal(getenv("OMP_NUM_THREADS"), "7");
}

/* A node without the plugin leaves there what srun has put in. */
TEST_WITH(words_for_a_node_without_the_plugin_are_taken_out, clear, NULL)
{
	struct settings settings = defaults();
	struct error error;

	assert_true(launch_prepare(&settings, NULL, &error));
	setenv("DDP_REQUESTED", "7.0", 1);
	setenv("SLURM_STEP_RESV_PORTS", "20001", 1);
	setenv("OMP_NUM_THREADS", "7", 1);
	launch_leave_step();
	assert_int_equal(count_left(NAME_CHOICE), 0);
	assert_string_equal(getenv("OMP_NUM_THREADS"), "7");
}

TEST_WITH(derived_values_are_taken_out_and_others_stay, clear, NULL)
{
	static const struct { const char *derived, *threads, *trace; bool has_threads, has_trace; } cases[] = {
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "4", "/a b", false, false },
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "8", "/a b", true, false },
		{ "OMP_NUM_THREADS=4\tDDP_TRACE_DIR=/a b", "4", "/a", false, true },
		{ "OMP_NUM_THREADS=44\tDDP_TRACE_DIR=/a", "4", "/a b", true, true },
		{ "DDP_TRACE_DIR=/a", "4", "/a", true, false },
		{ "XOMP_NUM_THREADS=4\tOMP_NUM_THREADS", "4", "", true, true },
		{ "\t\t", "4", "", true, true }, { "", "4", "", true, true }, { NULL, "4", "/a", true, true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		clear(NULL);
		if (cases[i].derived != NULL)
			setenv("DDP_DERIVED", cases[i].derived, 1);
		setenv("OMP_NUM_THREADS", cases[i].threads, 1);
		setenv("DDP_TRACE_DIR", cases[i].trace, 1);
		launch_leave_step();
		if ((getenv("OMP_NUM_THREADS") != NULL) != cases[i].has_threads ||
		    (getenv("DDP_TRACE_DIR") != NULL) != cases[i].has_trace)
			fail_msg("case %zu", i);
		assert_null(getenv("DDP_DERIVED"));
	}
}
