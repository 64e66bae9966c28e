#include "tests/support/netplugin_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/ranks.h"

board *shared;

/* ---- as NCCL does --------------------------------------------------------------------------- */

char last_closed[1024];

void hear(int level, unsigned long about, const char *file, int line, const char *format, ...)
{
	char text[sizeof(last_closed)];
	va_list arguments;

	(void)about;
	(void)file;
	(void)line;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text) - 1, format, arguments);
	va_end(arguments);
	if (level == NET_LOG_INFO && strstr(text, ": closed ") != NULL)
		memcpy(last_closed, text, sizeof(last_closed));
	if (length < 0 || level != NET_LOG_WARN)
		return;
	size_t bytes = strlen(text), at = atomic_fetch_add(&shared->length, bytes + 1);
	if (at + bytes + 1 < sizeof(shared->heard)) {
		memcpy(shared->heard + at, text, bytes);
		shared->heard[at + bytes] = '\n';
	}
}

void nap(void)
{
	usleep(100);
}

void reach(int stage)
{
	atomic_store(&shared->stage, stage);
}

void await(int stage)
{
	while (atomic_load(&shared->stage) < stage)
		nap();
}

void set_up(nccl_driver *d, const board *b, int rank)
{
	char number[8];
	int count;

	snprintf(number, sizeof(number), "%d", rank);
	CHECK(setenv("UCX_TLS", b->transports, 1) == 0 && setenv("RANK", number, 1) == 0);
	CHECK(setenv("NCCL_SOCKET_IFNAME", "lo", 1) == 0);
	atomic_store(&shared->pids[rank], getpid());
	CHECK(nccl_load(d, b->version));
	CHECK(nccl_init(d, hear) == NET_SUCCESS);
	CHECK(nccl_devices(d, &count) == NET_SUCCESS && count >= 1);
}

static void *accept_one(const nccl_driver *d, void *listener)
{
	void *receiver = NULL, *offload = NULL;

	while (receiver == NULL) {
		CHECK(d->accept(listener, &receiver, &offload) == NET_SUCCESS);
		if (receiver == NULL)
			nap();
	}
	return receiver;
}

static void *listen_at(const nccl_driver *d, int i)
{
	void *listener = NULL;

	CHECK(nccl_listen(d, 0, shared->handle[i], &listener) == NET_SUCCESS && listener != NULL);
	atomic_store(&shared->ready[i], 1);
	return listener;
}

void *receive_from(const nccl_driver *d, int i)
{
	void *listener = listen_at(d, i);
	void *receiver = accept_one(d, listener);

	CHECK(d->close_listener(listener) == NET_SUCCESS);
	return receiver;
}

void *send_to(const nccl_driver *d, int i)
{
	unsigned char handle[NET_HANDLE_BYTES];
	void *sender = NULL;

	while (atomic_load(&shared->ready[i]) == 0)
		nap();
	memcpy(handle, shared->handle[i], sizeof(handle));
	while (sender == NULL) {
		CHECK(nccl_connect(d, 0, handle, &sender) == NET_SUCCESS);
		if (sender == NULL)
			nap();
	}
	return sender;
}

void finish(const nccl_driver *d, void *request, int *sizes)
{
	int done = 0;

	while (done == 0)
		CHECK(d->test(request, &done, sizes) == NET_SUCCESS);
}

void *begin_receive(const nccl_driver *d, void *receiver, void *data, size_t bytes, int tag, void *memory)
{
	void *request = NULL;

	CHECK(nccl_receive(d, receiver, 1, &data, &bytes, &tag, &memory, &request) == NET_SUCCESS);
	return request;
}

void *begin_send(const nccl_driver *d, void *sender, void *data, size_t bytes, int tag, void *memory)
{
	void *request = NULL;

	CHECK(nccl_send(d, sender, data, bytes, tag, memory, &request) == NET_SUCCESS);
	return request;
}

void *open_one(const nccl_driver *d, int rank)
{
	return rank == RECEIVER ? receive_from(d, 0) : send_to(d, 0);
}

void close_one(const nccl_driver *d, int rank, void *connection)
{
	CHECK((rank == RECEIVER ? d->close_receiver : d->close_sender)(connection) == NET_SUCCESS);
}

/* ---- messages ------------------------------------------------------------------------------- */

void fill(unsigned char *data, size_t bytes, int i)
{
	for (size_t k = 0; k < bytes; k++)
		data[k] = (unsigned char)(k * 7 + k / 256 + (size_t)i * 31 + 1);
}

bool holds(const unsigned char *data, size_t bytes, int i)
{
	for (size_t k = 0; k < bytes; k++) {
		if (data[k] != (unsigned char)(k * 7 + k / 256 + (size_t)i * 31 + 1))
			return false;
	}
	return true;
}

size_t length_of(int i)
{
	static const size_t lengths[] = { 1, 0, 64, 1000, 8192, 0, 9000, LONG, 3, 70000 };

	return lengths[(size_t)i % (sizeof(lengths) / sizeof(lengths[0]))];
}

void stream_out(const nccl_driver *d, void *sender, int messages)
{
	unsigned char *data = malloc((size_t)NET_REQUESTS_MAX * LONG);
	void *memory, *requests[NET_REQUESTS_MAX] = { NULL };
	int size;

	CHECK(data != NULL);
	CHECK(d->register_memory(sender, data, (size_t)NET_REQUESTS_MAX * LONG, NET_HOST, &memory) == NET_SUCCESS);
	for (int i = 0; i < messages + NET_REQUESTS_MAX; i++) {
		const int slot = i % NET_REQUESTS_MAX;
		unsigned char *at = data + (size_t)slot * LONG;
		if (requests[slot] != NULL) {
			finish(d, requests[slot], &size);
			CHECK((size_t)size == length_of(i - NET_REQUESTS_MAX));
		}
		requests[slot] = NULL;
		if (i >= messages)
			continue;
		fill(at, length_of(i), i);
		requests[slot] = begin_send(d, sender, at, length_of(i), 5, memory);
		CHECK(requests[slot] != NULL);
	}
	CHECK(d->deregister_memory(sender, memory) == NET_SUCCESS);
	free(data);
}

void stream_in(const nccl_driver *d, void *receiver, int messages)
{
	unsigned char *data = malloc((size_t)NET_REQUESTS_MAX * LONG);
	void *memory, *requests[NET_REQUESTS_MAX] = { NULL };
	int size;

	CHECK(data != NULL);
	CHECK(d->register_memory(receiver, data, (size_t)NET_REQUESTS_MAX * LONG, NET_HOST, &memory) == NET_SUCCESS);
	for (int i = 0; i < messages + NET_REQUESTS_MAX; i++) {
		const int slot = i % NET_REQUESTS_MAX, before = i - NET_REQUESTS_MAX;
		unsigned char *at = data + (size_t)slot * LONG;
		if (requests[slot] != NULL) {
			size = -1;
			finish(d, requests[slot], &size);
			CHECK(size == (int)length_of(before) && holds(at, length_of(before), before));
		}
		requests[slot] = NULL;
		if (i < messages) {
			memset(at, 0, LONG);
			requests[slot] = begin_receive(d, receiver, at, LONG, 5, memory);
			CHECK(requests[slot] != NULL);
		}
	}
	CHECK(d->deregister_memory(receiver, memory) == NET_SUCCESS);
	free(data);
}

/* ---- what runs them --------------------------------------------------------------------------- */

const char over_tcp[] = "tcp", over_memory[] = "posix,sysv,cma";

static int run_all(int (*body)(int, void *), int version, const char *transports, int victim, bool dies)
{
	const test_ranks ranks = { .count = RANKS, .body = body, .argument = shared, .expect_deaths = dies };

	memset(shared, 0, sizeof(*shared));
	shared->version = version;
	shared->transports = transports;
	shared->victim = victim;
	int failures = test_ranks_run(&ranks);
	if (failures != 0)
		fprintf(stderr, "# heard: %s\n", shared->heard);
	return failures;
}

int run_board(int (*body)(int, void *), int version, const char *transports)
{
	return run_all(body, version, transports, -1, false);
}

int run_with_victim(int (*body)(int, void *), const char *transports, int victim, bool dies)
{
	return run_all(body, 11, transports, victim, dies);
}

void heard_once(const char *words)
{
	const char *found = strstr(shared->heard, words);

	assert_non_null(found);
	assert_null(strstr(found + 1, words));
}
