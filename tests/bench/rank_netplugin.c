/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes that call libnccl-net-ddpucx.so as NCCL does, for bench-netplugin:
 *
 *   rank_netplugin bandwidth|latency BYTES MESSAGES
 *
 * prints MiB/s of messages that all go one way, 32 under way at a time, as the
 * receiver sees them; or microseconds of one way of a ping-pong.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/nccl_driver.h"

enum { TAG = 1, WINDOW = NET_REQUESTS_MAX, WARM_UP = 2 * WINDOW };

typedef struct board {
	unsigned char handle[2][NET_HANDLE_BYTES];
	atomic_int ready[2];
} board;

static void die(const char *what)
{
	fprintf(stderr, "rank_netplugin: %s failed\n", what);
	exit(1);
}

static void check(net_result result, const char *what)
{
	if (result != NET_SUCCESS)
		die(what);
}

static void hear(int level, unsigned long about, const char *file, int line, const char *format, ...)
{
	va_list arguments;

	(void)about;
	(void)file;
	(void)line;
	if (level != NET_LOG_WARN)
		return;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

static void *receive_from(const nccl_driver *d, board *b, int i)
{
	void *listener, *receiver = NULL, *offload = NULL;

	check(nccl_listen(d, 0, b->handle[i], &listener), "listen");
	atomic_store(&b->ready[i], 1);
	while (receiver == NULL)
		check(d->accept(listener, &receiver, &offload), "accept");
	check(d->close_listener(listener), "close");
	return receiver;
}

static void *send_to(const nccl_driver *d, board *b, int i)
{
	void *sender = NULL;

	while (atomic_load(&b->ready[i]) == 0)
		usleep(100);
	while (sender == NULL)
		check(nccl_connect(d, 0, b->handle[i], &sender), "connect");
	return sender;
}

static void *start(const nccl_driver *d, void *connection, bool sends, void *data, size_t bytes, void *memory)
{
	void *request = NULL;
	int tag = TAG;

	while (request == NULL)
		check(sends ? nccl_send(d, connection, data, bytes, TAG, memory, &request) :
		      nccl_receive(d, connection, 1, &data, &bytes, &tag, &memory, &request), "send or receive");
	return request;
}

static void finish(const nccl_driver *d, void *request)
{
	int done = 0, bytes;

	while (done == 0)
		check(d->test(request, &done, &bytes), "test");
}

static void *registered(const nccl_driver *d, void *connection, size_t bytes, void **memory)
{
	void *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	if (data == NULL)
		die("memory");
	memset(data, 1, bytes);
	check(d->register_memory(connection, data, bytes, NET_HOST, memory), "register");
	return data;
}

/* MiB/s, once the first messages have come. All are of the same bytes, as ucx_perftest's:
   other ones take the time of the machine's memory, too. */
static double stream(const nccl_driver *d, void *connection, bool sends, size_t bytes, int messages)
{
	void *memory, *requests[WINDOW];
	void *data = registered(d, connection, bytes, &memory);
	uint64_t start_ns = 0;

	for (int i = 0; i < WARM_UP + messages + WINDOW; i++) {
		if (i >= WINDOW)
			finish(d, requests[i % WINDOW]);
		if (i == WARM_UP + WINDOW - 1)
			start_ns = ddp_now_ns();
		if (i < WARM_UP + messages)
			requests[i % WINDOW] = start(d, connection, sends, data, bytes, memory);
	}
	double seconds = ddp_seconds_since(start_ns);
	check(d->deregister_memory(connection, memory), "deregister");
	free(data);
	return (double)messages * (double)bytes / (1 << 20) / seconds;
}

/* Microseconds of one way. */
static double ping_pong(const nccl_driver *d, void *sender, void *receiver, bool first, size_t bytes, int messages)
{
	void *to_send, *to_receive;
	void *out = registered(d, sender, bytes, &to_send), *in = registered(d, receiver, bytes, &to_receive);
	uint64_t start_ns = 0;

	for (int i = 0; i < WARM_UP + messages; i++) {
		if (i == WARM_UP)
			start_ns = ddp_now_ns();
		void *request = start(d, receiver, false, in, bytes, to_receive);
		if (first)
			finish(d, start(d, sender, true, out, bytes, to_send));
		finish(d, request);
		if (!first)
			finish(d, start(d, sender, true, out, bytes, to_send));
	}
	double seconds = ddp_seconds_since(start_ns);
	check(d->deregister_memory(sender, to_send), "deregister");
	check(d->deregister_memory(receiver, to_receive), "deregister");
	free(out);
	free(in);
	return seconds / messages / 2 * 1e6;
}

static void run(board *b, bool child, bool latency, size_t bytes, int messages)
{
	nccl_driver d;
	int count;

	if (!nccl_load(&d, 11))
		die("dlopen");
	check(nccl_init(&d, hear), "init");
	check(nccl_devices(&d, &count), "devices");
	void *sender = NULL, *receiver = NULL;
	if (!child)
		receiver = receive_from(&d, b, 0);
	else
		sender = send_to(&d, b, 0);
	if (latency && child)
		receiver = receive_from(&d, b, 1);
	else if (latency)
		sender = send_to(&d, b, 1);
	double figure = latency ? ping_pong(&d, sender, receiver, child, bytes, messages) :
	                stream(&d, child ? sender : receiver, child, bytes, messages);
	if (!child)
		printf("%.3f\n", figure);
	if (sender != NULL)
		check(d.close_sender(sender), "close");
	if (receiver != NULL)
		check(d.close_receiver(receiver), "close");
	check(nccl_finalize(&d), "finalize");
}

int main(int argc, char **argv)
{
	const bool latency = argc == 4 && strcmp(argv[1], "latency") == 0;
	const long bytes = argc == 4 ? atol(argv[2]) : 0;
	const int messages = argc == 4 ? atoi(argv[3]) : 0;
	int state;

	if (bytes <= 0 || messages <= 0 || (!latency && strcmp(argv[1], "bandwidth") != 0)) {
		fprintf(stderr, "usage: rank_netplugin bandwidth|latency BYTES MESSAGES\n");
		return 2;
	}
	board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED || setenv("DDP_KEY", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 0) != 0)
		die("memory");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	run(b, child == 0, latency, (size_t)bytes, messages);
	if (child == 0)
		return 0;
	return waitpid(child, &state, 0) == child && state == 0 ? 0 : 1;
}
