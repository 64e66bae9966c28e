/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* UCX beside a program: its listening sockets, its lines, its settings, and what it
   would do to signals and to shared memory. */
#include <stdint.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/net/ucx.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static int run_two_nodes(int (*body)(ddp_comm *, void *), void *argument)
{
	static const int two_nodes[] = { 0, 1 };
	const test_world world = { .ranks = 2, .node_of = two_nodes, .body = body, .argument = argument };

	return test_world_run(&world);
}

static void run(int (*body)(ddp_comm *, void *), void *argument)
{
	assert_int_equal(run_two_nodes(body, argument), 0);
}

static int reach_a_barrier(ddp_comm *comm, void *argument)
{
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* ---- what the log heard ------------------------------------------------------------------- */

typedef struct heard {
	atomic_size_t length;
	atomic_int warnings, refusals; /* the latter: to accept a connection */
	char text[1 << 16];
} heard;

static void hear(void *user, ddp_log_level level, const char *message)
{
	heard *h = user;
	size_t bytes = strlen(message) + 1, at = atomic_fetch_add(&h->length, bytes);

	if (at + bytes < sizeof(h->text)) {
		memcpy(h->text + at, message, bytes - 1);
		h->text[at + bytes - 1] = '\n';
	}
	if (level <= DDP_LOG_WARN)
		atomic_fetch_add(&h->warnings, 1);
	if (strstr(message, "accept") != NULL)
		atomic_fetch_add(&h->refusals, 1);
}

/* ---- listeners ---------------------------------------------------------------------------- */

/* Is there an answer within a short time? The kernel of this host gives it. */
static bool lets_in(const ddp_place *to, const char *from)
{
	struct sockaddr_in listener = { .sin_family = AF_INET, .sin_port = to->port };
	struct sockaddr_in here = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = 0;
	socklen_t length = sizeof(error);

	memcpy(&listener.sin_addr, to->address, sizeof(listener.sin_addr));
	CHECK(fd >= 0);
	if (from != NULL)
		CHECK(inet_pton(AF_INET, from, &here.sin_addr) == 1 &&
		      bind(fd, (struct sockaddr *)&here, sizeof(here)) == 0);
	bool in = connect(fd, (struct sockaddr *)&listener, sizeof(listener)) == 0;
	struct pollfd connected = { .fd = fd, .events = POLLOUT };
	if (!in && poll(&connected, 1, 300) == 1)
		in = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
	close(fd);
	return in;
}

static int knock(ddp_comm *comm, void *argument)
{
	const ddp_listeners *listeners = &comm->net->worker->listeners;
	ddp_comm *part;

	CHECK_OK(ddp_barrier(comm));
	CHECK(listeners->count > 0);
	for (int i = 0; i < listeners->count; i++) {
		if (listeners->places[i].family == AF_INET)
			CHECK(!lets_in(&listeners->places[i], NULL));
	}
	/* Others connect nevertheless when there is a reason to. */
	CHECK_OK(ddp_comm_split(comm, 0, 0, &part));
	CHECK_OK(ddp_barrier(part));
	CHECK_OK(ddp_comm_free(part));
	return 0;
}

TEST_RUNS(filter_lets_nobody_in_when_all_are_connected, run(knock, NULL));

/* 1000 nodes with four addresses each: more than a filter can tell apart. It lets
   in all of them, perhaps their neighbours, and not the rest of the world. */
static void let_many_in(const ddp_listeners *listeners)
{
	enum { NODES = 1000, EACH = 4 };
	ddp_place *hosts = calloc(NODES * EACH, sizeof(*hosts));
	int bits[2];

	assert_non_null(hosts);
	for (int n = 0; n < NODES; n++) {
		const unsigned char high = (unsigned char)(n >> 8), low = (unsigned char)n;
		hosts[4 * n] = (ddp_place){ .family = AF_INET, .address = { 127, 1, high, low } };
		hosts[4 * n + 1] = (ddp_place){ .family = AF_INET, .address = { 127, 0, 0, 1 } };
		hosts[4 * n + 2] = (ddp_place){ .family = AF_INET6, .address = { 0xfe, 0x80, [14] = high, [15] = low } };
		hosts[4 * n + 3] = (ddp_place){ .family = AF_INET6, .address = { [15] = 1 } };
	}
	assert_int_equal(ddp_listeners_admit(listeners, hosts, NODES * EACH, bits), 0);
	assert_true(bits[0] >= 28 && bits[1] >= 120);
	assert_true(lets_in(&listeners->places[0], "127.0.0.1"));
	assert_true(lets_in(&listeners->places[0], "127.1.0.0"));
	assert_true(lets_in(&listeners->places[0], "127.1.3.231"));
	assert_true(lets_in(&listeners->places[0], "127.1.2.77"));
	assert_false(lets_in(&listeners->places[0], "127.2.2.77"));
	assert_false(lets_in(&listeners->places[0], "127.1.77.1"));
	assert_false(lets_in(&listeners->places[0], "127.0.1.0"));
	free(hosts);
}

TEST(filter_lets_the_jobs_hosts_in_only)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	enum { OTHERS = 2 * DDP_LISTENERS_MAX };
	ddp_listening before;
	ddp_listeners listeners;
	socklen_t length = sizeof(any);
	int bits[2], others[OTHERS];
	ddp_place hosts[3] = { { .family = AF_INET6, .address = { [15] = 1 } },
	                       { .family = AF_INET, .address = { 10, 1, 2, 3 } },
	                       { .family = AF_INET, .address = { 127, 0, 0, 2 } } };

	if (!test_may_filter())
		skip();
	for (int i = 0; i < OTHERS; i++) {
		others[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		assert_true(others[i] >= 0);
		assert_int_equal(listen(others[i], 1), 0);
	}
	ddp_listeners_list(&before);
	assert_true(before.error == 0 && before.count >= OTHERS);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof(any)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &length), 0);
	assert_int_equal(ddp_listeners_find(&listeners, &before, &any.sin_port, sizeof(any.sin_port)), 0);
	assert_int_equal(listeners.count, 1);
	assert_int_equal(listeners.fds[0], fd);
	assert_true(lets_in(&listeners.places[0], "127.0.0.1"));
	assert_int_equal(ddp_listeners_admit(&listeners, hosts, 3, bits), 0);
	assert_true(bits[0] == 32 && bits[1] == 128);
	assert_false(lets_in(&listeners.places[0], "127.0.0.1"));
	assert_true(lets_in(&listeners.places[0], "127.0.0.2"));
	assert_int_equal(ddp_listeners_shut(&listeners), 0);
	assert_false(lets_in(&listeners.places[0], "127.0.0.2"));
	let_many_in(&listeners);
	close(fd);
	free(before.places);
	for (int i = 0; i < OTHERS; i++)
		close(others[i]);
}

/* A kernel before 6.8 gives a socket 20 KiB for its options, and a site may set less.
   Hosts that have nothing in common make the longest filter. */
static int fit_in(int bytes_of_socket)
{
	enum { MANY = 3000 };
	static ddp_place hosts[2 * MANY];
	ddp_listeners listeners = { .count = 1, .fds = { socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) } };
	char text[16];
	int bits[2], file = open("/proc/sys/net/core/optmem_max", O_WRONLY | O_CLOEXEC);
	int length = snprintf(text, sizeof(text), "%d", bytes_of_socket);
	uint32_t random = 1;

	CHECK(listeners.fds[0] >= 0 && file >= 0 && write(file, text, (size_t)length) == length);
	close(file);
	for (int i = 0; i < 2 * MANY; i++) {
		hosts[i] = (ddp_place){ .family = i < MANY ? AF_INET : AF_INET6 };
		for (int b = 0; b < (i < MANY ? 4 : 16); b++)
			hosts[i].address[b] = (unsigned char)((random = random * 1664525 + 1013904223) >> 24);
	}
	CHECK(ddp_listeners_shut(&listeners) == 0);
	for (int count = 1; count <= 2 * MANY; count += 1 + count / 9)
		CHECK(ddp_listeners_admit(&listeners, hosts + MANY - count / 2, count, bits) == 0 && bits[0] > 0 && bits[1] > 0);
	CHECK(ddp_listeners_shut(&listeners) == 0);
	close(listeners.fds[0]);
	return 0;
}

/* 0 if it is so, 77 if this kernel has no such setting for a network of its own. */
static int try_little_memory(void)
{
	if (unshare(CLONE_NEWNET) != 0 || access("/proc/sys/net/core/optmem_max", W_OK) != 0)
		return 77;
	return fit_in(20480) + fit_in(5000);
}

static int code_of_child(int (*body)(void))
{
	int end;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit(body());
	assert_int_equal(waitpid(pid, &end, 0), pid);
	assert_true(WIFEXITED(end));
	return WEXITSTATUS(end);
}

TEST(filter_fits_in_the_memory_that_a_socket_has)
{
	int code = code_of_child(try_little_memory);
	if (code == 77)
		skip();
	assert_int_equal(code, 0);
}

/* As a user without privileges, to whom some kernels refuse filters: who connects is checked nevertheless. */
static int open_as_nobody(void)
{
	heard *h = test_share(sizeof(*h));

	if (getuid() == 0)
		CHECK(setgid(65534) == 0 && setuid(65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
	ddp_set_log(hear, h, DDP_LOG_WARN);
	CHECK(run_two_nodes(reach_a_barrier, NULL) == 0);
	CHECK(atomic_load(&h->warnings) == 0);
	return 0;
}

TEST_RUNS(user_without_privileges_is_not_warned, assert_int_equal(code_of_child(open_as_nobody), 0));

/* ---- lines -------------------------------------------------------------------------------- */

typedef struct captured {
	int stdout_fd, stderr_fd, file;
} captured;

/* From here on this process and its children write there. */
static captured begin_capture(void)
{
	captured c = { dup(1), dup(2), memfd_create("lines", MFD_CLOEXEC) };

	fflush(NULL);
	assert_true(c.stdout_fd >= 0 && c.stderr_fd >= 0 && dup2(c.file, 1) == 1 && dup2(c.file, 2) == 2);
	return c;
}

static void end_capture(const captured *c, char *text, size_t bytes)
{
	fflush(NULL);
	assert_true(dup2(c->stdout_fd, 1) == 1 && dup2(c->stderr_fd, 2) == 2);
	ssize_t length = pread(c->file, text, bytes - 1, 0);
	text[length > 0 ? length : 0] = '\0';
	close(c->stdout_fd);
	close(c->stderr_fd);
	close(c->file);
}

/* The program's own use of UCX, with a mistake that UCX complains of. */
static int use_ucx_oneself(ddp_comm *comm, void *argument)
{
	const ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_config_t *config;
	ucp_context_h context;

	CHECK_OK(ddp_barrier(comm));
	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_config_modify(config, "TLS", "of_the_program") == UCS_OK);
	CHECK(ucp_init(&params, config, &context) != UCS_OK);
	ucp_config_release(config);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(lines_of_the_programs_ucx_come_out)
{
	char text[1 << 14];
	heard *h = test_share(sizeof(*h));

	setenv("UCX_UNKNOWN_TO_UCX", "1", 1);
	ddp_set_log(hear, h, DDP_LOG_DEBUG);
	captured c = begin_capture();
	int failures = run_two_nodes(use_ucx_oneself, NULL);
	end_capture(&c, text, sizeof(text));
	ddp_set_log(NULL, NULL, DDP_LOG_DEBUG);
	unsetenv("UCX_UNKNOWN_TO_UCX");
	if (failures > 0)
		fputs(text, stderr);
	assert_int_equal(failures, 0);
	assert_non_null(strstr(text, "of_the_program"));
	assert_null(strstr(text, "UNKNOWN_TO_UCX"));
	assert_non_null(strstr(h->text, "UNKNOWN_TO_UCX"));
	assert_null(strstr(h->text, "of_the_program"));
	test_unshare(h, sizeof(*h));
}

/* What ranks say that cannot open with this in their environment. */
static void fail_with(const char *name, const char *value, char *text, size_t bytes)
{
	setenv(name, value, 1);
	captured c = begin_capture();
	const int failures = run_two_nodes(reach_a_barrier, NULL);
	end_capture(&c, text, bytes);
	unsetenv(name);
	assert_int_not_equal(failures, 0);
}

/* If a choice of the environment cannot be had, the message names it, and has the reason that UCX tells. */
TEST(a_choice_that_cannot_be_had_is_named_with_the_reason)
{
	char text[1 << 14];

	fail_with("UCX_NET_DEVICES", "ib77", text, sizeof(text));
	assert_non_null(strstr(text, "the environment sets UCX_NET_DEVICES=ib77"));
	fail_with("UCX_TLS", "none_that_there_is", text, sizeof(text));
	const char *said = strstr(text, "UCX cannot");
	assert_non_null(said);
	assert_non_null(strstr(said, "none_that_there_is"));
}

/* UCX's own thread accepts connections: without descriptors it cannot, and says so. */
static int run_out_of_descriptors(ddp_comm *comm, void *argument)
{
	heard *h = argument;
	const ddp_listeners *listeners = &comm->net->worker->listeners;
	struct rlimit limit, none;

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct sockaddr_in listener = { .sin_family = AF_INET };
		for (int i = 0; i < listeners->count; i++) {
			(void)setsockopt(listeners->fds[i], SOL_SOCKET, SO_DETACH_FILTER, &(int){ 0 }, sizeof(int));
			listener.sin_port = listeners->places[i].port;
			memcpy(&listener.sin_addr, listeners->places[i].address, sizeof(listener.sin_addr));
		}
		CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
		none = limit;
		none.rlim_cur = 3;
		CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
		CHECK(connect(fd, (struct sockaddr *)&listener, sizeof(listener)) == 0);
		for (uint64_t start = ddp_now_ns(); atomic_load(&h->refusals) == 0 && ddp_seconds_since(start) < 10;)
			usleep(1000);
		CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
		close(fd);
		CHECK(atomic_load(&h->refusals) > 0);
	}
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(lines_of_ucx_own_thread_go_to_the_log)
{
	char text[1 << 14];

	if (!test_may_filter())
		skip();
	heard *h = test_share(sizeof(*h));
	ddp_set_log(hear, h, DDP_LOG_DEBUG);
	captured c = begin_capture();
	int failures = run_two_nodes(run_out_of_descriptors, h);
	end_capture(&c, text, sizeof(text));
	ddp_set_log(NULL, NULL, DDP_LOG_DEBUG);
	assert_string_equal(text, "");
	assert_int_equal(failures, 0);
	test_unshare(h, sizeof(*h));
}

/* ---- settings, signals --------------------------------------------------------------------- */

static char modified[1024]; /* names that UCX was given values for */

/* Stands before UCX's. */
__attribute__((visibility("default"))) ucs_status_t ucp_config_modify(ucp_config_t *config,
                                                                      const char *name,
                                                                      const char *value)
{
	ucs_status_t (*modify)(ucp_config_t *, const char *, const char *);
	size_t length = strlen(modified);

	snprintf(modified + length, sizeof(modified) - length, "%s ", name);
	*(void **)&modify = dlsym(RTLD_NEXT, "ucp_config_modify");
	return modify == NULL ? UCS_ERR_UNSUPPORTED : modify(config, name, value);
}

static int look_at_settings(ddp_comm *comm, void *argument)
{
	CHECK(strstr(modified, "TCP_KEEPIDLE ") != NULL);
	CHECK(strstr(modified, "TCP_KEEPINTVL ") == NULL);
	CHECK(strstr(modified, "KEEPALIVE_INTERVAL ") == NULL);
	CHECK(strstr(modified, "TLS ") == NULL);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(settings_of_the_user_stay)
{
	setenv("UCX_KEEPALIVE_INTERVAL", "20s", 1);
	setenv("UCX_TCP_KEEPINTVL", "2s", 1);
	setenv("UCX_TLS", "all", 1);
	run(look_at_settings, NULL);
	unsetenv("UCX_KEEPALIVE_INTERVAL");
	unsetenv("UCX_TCP_KEEPINTVL");
	unsetenv("UCX_TLS");
}

static ucp_params_t given; /* to UCX's last context */

/* Stands before UCX's. */
__attribute__((visibility("default"))) ucs_status_t ucp_init_version(unsigned int major, unsigned int minor,
                                                                     const ucp_params_t *params,
                                                                     const ucp_config_t *config,
                                                                     ucp_context_h *context)
{
	ucs_status_t (*init)(unsigned int, unsigned int, const ucp_params_t *, const ucp_config_t *, ucp_context_h *);

	given = *params;
	*(void **)&init = dlsym(RTLD_NEXT, "ucp_init_version");
	return init == NULL ? UCS_ERR_UNSUPPORTED : init(major, minor, params, config, context);
}

static int look_at_estimates(ddp_comm *comm, void *argument)
{
	const uint64_t both = UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_ESTIMATED_NUM_PPN;

	CHECK((given.field_mask & both) == both);
	CHECK(given.estimated_num_eps == (comm->node.size == 2 ? 1 : 2));
	CHECK(given.estimated_num_ppn == (size_t)comm->node.size);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST(ucx_knows_how_many_peers_to_expect)
{
	static const int uneven[] = { 0, 1, 0 };

	RUN_WORLD(.ranks = 3, .node_of = uneven, .body = look_at_estimates);
}

/* UCX says of tcp that it is for 256. */
TEST(world_that_expects_thousands_of_peers_opens_over_tcp)
{
	setenv("UCX_NUM_EPS", "10000", 1);
	setenv("UCX_TLS", "tcp,self", 1);
	run(reach_a_barrier, NULL);
	unsetenv("UCX_TLS");
	run(reach_a_barrier, NULL);
	unsetenv("UCX_NUM_EPS");
}

static struct sigaction at_start; /* what became of SIGSEGV by loading UCX */

TEST(crash_is_left_to_the_program)
{
	Dl_info owner = { .dli_fname = "" };
	void *handler;

	memcpy(&handler, &at_start.sa_sigaction, sizeof(handler));
	if (handler != NULL && dladdr(handler, &owner) != 0)
		assert_null(strstr(owner.dli_fname, "libucs"));
}

/* ---- shared memory ------------------------------------------------------------------------ */

/* What UCX makes in /dev/shm stays there if the process is killed at that moment. */
static int look_for_shared_memory(ddp_comm *comm, void *argument)
{
	char *text = NULL;
	size_t length;
	FILE *stream = open_memstream(&text, &length);

	CHECK(stream != NULL);
	ucp_context_print_info(comm->net->worker->context, stream);
	CHECK(fclose(stream) == 0);
	CHECK(strstr(text, "tcp/") != NULL);
	CHECK(strstr(text, "posix/memory") == NULL);
	CHECK(strstr(text, "sysv/memory") == NULL);
	free(text);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(ucx_makes_no_shared_memory, run(look_for_shared_memory, NULL));

int main(void)
{
	sigaction(SIGSEGV, NULL, &at_start);
	return test_run(NULL, NULL);
}
