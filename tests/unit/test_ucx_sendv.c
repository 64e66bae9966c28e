/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* comm/net/calls: UCX's transports write into TCP sockets by libddp's, or the plugin's, functions. What they
   call is read in the table of libuct, where it is replaced for a moment. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/net/calls.h"
#include "comm/net/guard.h"
#include "tests/support/nccl_driver.h"
#include "tests/support/test.h"

typedef ucs_status_t (*sendv_function)(int fd, struct iovec *iov, size_t iov_cnt, size_t *length_p);
typedef ucs_status_t (*send_function)(int fd, const void *data, size_t length);

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void *ucp; /* a handle */

/* What libuct calls by this name. */
static void *called(const char *name)
{
	void *found = NULL, *ucx_own = dlsym(ucp, name);
	const ddp_call away = { .name = name, .ours = ucx_own, .theirs = &found };

	assert_non_null(ucx_own);
	assert_null(ddp_calls_replace(ucp, "uct_iface_open", &away, 1));
	assert_ptr_not_equal(found, ucx_own);
	const ddp_call back = { .name = name, .ours = found };
	assert_null(ddp_calls_replace(ucp, "uct_iface_open", &back, 1));
	return found;
}

/* The file in which both functions are. */
static void are_of(const char *file)
{
	static const char *const names[] = { "ucs_socket_sendv_nb", "ucs_socket_send" };

	for (int i = 0; i < 2; i++) {
		Dl_info info;
		assert_int_not_equal(dladdr(called(names[i]), &info), 0);
		if (strstr(info.dli_fname, file) == NULL)
			fail_msg("%s() is that of %s", names[i], info.dli_fname);
	}
}

TEST(socket_of_a_dead_peer_takes_nothing)
{
	struct iovec data = { .iov_base = &(char){ 1 }, .iov_len = 1 };
	ddp_guard *guard;
	size_t sent = 0;
	int pair[2];

	assert_int_equal(ddp_guard_make(&guard), DDP_OK);
	are_of("test_ucx_sendv");
	const sendv_function sendv = (sendv_function)called("ucs_socket_sendv_nb");
	const send_function send_all = (send_function)called("ucs_socket_send");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(sendv(pair[0], &data, 1, &sent), UCS_OK);
	assert_int_equal(sent, 1);
	close(pair[1]);
	assert_int_equal(sendv(pair[0], &data, 1, &sent), UCS_ERR_NO_PROGRESS);
	assert_int_equal(sent, 0);
	assert_int_equal(send_all(pair[0], "x", 1), UCS_OK);
	close(pair[0]);
	assert_int_equal(sendv(-1, &data, 1, &sent), UCS_ERR_IO_ERROR);
	assert_int_equal(send_all(-1, "x", 1), UCS_ERR_IO_ERROR);
	ddp_guard_free(guard);
}

static double cpu_s(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

static void *read_all(void *socket)
{
	static char bytes[65536];

	while (read(*(int *)socket, bytes, sizeof(bytes)) > 0)
		continue;
	return NULL;
}

/* A peer that is stopped keeps its connections, and reads nothing. */
TEST(socket_of_a_stopped_peer_is_ended)
{
	enum { BYTES = 4 << 20 }; /* more than sockets take at once */
	static char data[BYTES];
	ddp_guard *guard;
	pthread_t reader;
	double began_s;
	int pair[2];

	assert_int_equal(ddp_guard_make(&guard), DDP_OK);
	const send_function send_all = (send_function)called("ucs_socket_send");
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	began_s = cpu_s();
	assert_int_equal(send_all(pair[0], data, BYTES), UCS_OK);
	/* The wait takes no core. */
	assert_true(cpu_s() - began_s < 1);
	/* UCX reads that the connection has ended, and so does the peer behind what was sent. */
	assert_int_equal(read(pair[0], data, 1), 0);
	while (read(pair[1], data, BYTES) > 0)
		continue;
	assert_int_equal(read(pair[1], data, 1), 0);
	close(pair[0]);
	close(pair[1]);
	/* A slow peer gets all. */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(pthread_create(&reader, NULL, read_all, &pair[1]), 0);
	assert_int_equal(send_all(pair[0], data, BYTES), UCS_OK);
	/* The socket was not ended, but it may be full. */
	assert_int_equal(fcntl(pair[0], F_SETFL, 0), 0);
	assert_int_equal(send(pair[0], data, 1, MSG_NOSIGNAL), 1);
	close(pair[0]);
	assert_int_equal(pthread_join(reader, NULL), 0);
	close(pair[1]);
	ddp_guard_free(guard);
}

/* A connection by TCP. The socket of the listener's side reads nothing unless it is asked to. */
static void connect_pair(int pair[2])
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(to);
	const int listener = socket(AF_INET, SOCK_STREAM, 0);

	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(listener >= 0 && pair[0] >= 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&to, sizeof(to)) | listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&to, &bytes), 0);
	assert_int_equal(connect(pair[0], (struct sockaddr *)&to, sizeof(to)), 0);
	pair[1] = accept(listener, NULL, NULL);
	assert_true(pair[1] >= 0);
	close(listener);
	assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
}

/* Until the socket takes no more. True: it has taken something. */
static bool fill(int fd)
{
	static const char data[1 << 16];
	bool any = false;

	/* A buffer without room for many bytes has room for some. */
	for (size_t bytes = sizeof(data); bytes > 0; bytes /= 16) {
		while (send(fd, data, bytes, MSG_NOSIGNAL) > 0)
			any = true;
	}
	return any;
}

/* On a busy machine, the kernel takes long to bring bytes from one end to the other, where they make room. */
static void fill_all(int pairs[][2], int count)
{
	for (bool any = true; any;) {
		any = false;
		for (int i = 0; i < count; i++)
			any = fill(pairs[i][0]) || any;
		usleep(200000);
	}
}

static void *read_a_little_later(void *socket)
{
	usleep(500000);
	return read_all(socket);
}

/* Eight ranks are stopped. A caller waits for their sockets one after the other, with the lock of all connections. */
TEST(sockets_of_several_stopped_peers_are_ended_together)
{
	enum { STOPPED = 8 };
	int pairs[STOPPED][2], slow[1][2];
	ddp_guard *guard;
	pthread_t reader;
	uint64_t began_ns;
	double first_s, all_s;

	assert_int_equal(ddp_guard_make(&guard), DDP_OK);
	const send_function send_all = (send_function)called("ucs_socket_send");
	for (int i = 0; i < STOPPED; i++)
		connect_pair(pairs[i]);
	fill_all(pairs, STOPPED);
	began_ns = ddp_now_ns();
	assert_int_equal(send_all(pairs[0][0], "x", 1), UCS_OK);
	first_s = ddp_seconds_since(began_ns);
	for (int i = 1; i < STOPPED; i++)
		assert_int_equal(send_all(pairs[i][0], "x", 1), UCS_OK);
	all_s = ddp_seconds_since(began_ns);
	if (first_s < 2 || all_s >= 3 * first_s)
		fail_msg("one socket took %.1f s, and eight %.1f s", first_s, all_s);
	/* Each of them is ended. */
	for (int i = 0; i < STOPPED; i++) {
		assert_int_equal(send(pairs[i][0], "x", 1, MSG_NOSIGNAL), -1);
		assert_int_equal(errno, EPIPE);
	}
	/* A peer that is only slow is none of them. */
	connect_pair(slow[0]);
	fill_all(slow, 1);
	assert_int_equal(pthread_create(&reader, NULL, read_a_little_later, &slow[0][1]), 0);
	assert_int_equal(send_all(slow[0][0], "x", 1), UCS_OK);
	assert_int_equal(fcntl(slow[0][0], F_SETFL, 0), 0);
	assert_int_equal(send(slow[0][0], "x", 1, MSG_NOSIGNAL), 1);
	close(slow[0][0]);
	assert_int_equal(pthread_join(reader, NULL), 0);
	close(slow[0][1]);
	for (int i = 0; i < STOPPED; i++) {
		close(pairs[i][0]);
		close(pairs[i][1]);
	}
	ddp_guard_free(guard);
}

static void say_nothing(int level, unsigned long about, const char *file, int line, const char *format, ...)
{
}

TEST(plugin_takes_the_place_too)
{
	unsigned char handle[NET_HANDLE_BYTES];
	void *listener;
	nccl_driver d;
	int count;

	if (access("libruntime/nccl_plugins/net/.libs/libnccl-net-ddpucx.so", R_OK) != 0)
		skip(); /* configure --enable-nccl-net builds it */
	assert_int_equal(setenv("NCCL_SOCKET_IFNAME", "lo", 1) || setenv("DDP_KEY", KEY, 1), 0);
	assert_true(nccl_load(&d, 11));
	assert_int_equal(nccl_init(&d, say_nothing), NET_SUCCESS);
	assert_int_equal(nccl_devices(&d, &count), NET_SUCCESS);
	assert_int_equal(nccl_listen(&d, 0, handle, &listener), NET_SUCCESS);
	are_of("libnccl-net-ddpucx.so");
	assert_int_equal(d.close_listener(listener), NET_SUCCESS);
	assert_int_equal(nccl_finalize(&d), NET_SUCCESS);
}

static int find_ucx(void **state)
{
	Dl_info info;

	if (dladdr((void *)ucp_worker_create, &info) == 0)
		return -1;
	ucp = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	return ucp != NULL ? 0 : -1;
}

int main(void)
{
	return test_run(find_ucx, NULL);
}
