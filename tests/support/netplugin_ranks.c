/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/netplugin_ranks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/ranks.h"
#include "tests/support/test.h"

board *shared;

/* ---- as NCCL does --------------------------------------------------------------------------- */

char last_closed[1024];

void hear(int level, unsigned long about, const char *file, int line, const char *format, ...)
{
	char text[sizeof(last_closed)];
	va_list arguments;

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

void check_transports(void)
{
	const char *at = strstr(last_closed, " by ");
	char allowed[128], wanted[80], name[64];
	int length;

	CHECK(at != NULL);
	snprintf(allowed, sizeof(allowed), ",%s,", shared->transports);
	at += strlen(" by ");
	do {
		CHECK(sscanf(at, "%63[^/]/%*[^+: ]%n", name, &length) == 1);
		snprintf(wanted, sizeof(wanted), ",%s,", name);
		if (strstr(allowed, wanted) == NULL)
			fprintf(stderr, "# %s instead of %s\n", name, shared->transports);
		CHECK(strstr(allowed, wanted) != NULL);
		at += length;
	} while (*at++ == '+');
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

static void copy_bytes(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

const place on_host = { .memory = NET_HOST, .take = malloc, .give_back = free, .write = copy_bytes, .read = copy_bytes };
const place *messages_at = &on_host;

/* What stream_out() and stream_in() have: a part for each message that is under way. */
typedef struct stream {
	const nccl_driver *d;
	void *connection, *memory;
	unsigned char *parts, *copy; /* copy: of one part, for the host to see */
	void *requests[NET_REQUESTS_MAX];
} stream;

static void begin_stream(stream *s, const nccl_driver *d, void *connection)
{
	const size_t bytes = (size_t)NET_REQUESTS_MAX * LONG;

	*s = (stream){ .d = d, .connection = connection, .parts = messages_at->take(bytes), .copy = calloc(1, LONG) };
	CHECK(s->parts != NULL && s->copy != NULL);
	CHECK(d->register_memory(connection, s->parts, bytes, messages_at->memory, &s->memory) == NET_SUCCESS);
}

static void end_stream(stream *s)
{
	CHECK(s->d->deregister_memory(s->connection, s->memory) == NET_SUCCESS);
	messages_at->give_back(s->parts);
	free(s->copy);
}

static unsigned char *part_of(const stream *s, int i)
{
	return s->parts + (size_t)(i % NET_REQUESTS_MAX) * LONG;
}

void flush(const nccl_driver *d, void *receiver, void *data, int bytes, void *memory)
{
	void *request = NULL;

	CHECK(d->flush(receiver, 1, &data, &bytes, &memory, &request) == NET_SUCCESS);
	CHECK((request != NULL) == (messages_at->memory == NET_CUDA && bytes > 0));
	if (request != NULL)
		finish(d, request, NULL);
}

void stream_out(const nccl_driver *d, void *sender, int messages)
{
	stream s;
	int size;

	begin_stream(&s, d, sender);
	for (int i = 0; i < messages + NET_REQUESTS_MAX; i++) {
		void **request = &s.requests[i % NET_REQUESTS_MAX];
		if (*request != NULL) {
			finish(d, *request, &size);
			CHECK((size_t)size == length_of(i - NET_REQUESTS_MAX));
		}
		*request = NULL;
		if (i >= messages)
			continue;
		fill(s.copy, length_of(i), i);
		messages_at->write(part_of(&s, i), s.copy, length_of(i));
		*request = begin_send(d, sender, part_of(&s, i), length_of(i), 5, s.memory);
		CHECK(*request != NULL);
	}
	end_stream(&s);
}

static void check_received(stream *s, void *request, int i)
{
	int size = -1;

	finish(s->d, request, &size);
	CHECK(size == (int)length_of(i));
	flush(s->d, s->connection, part_of(s, i), size, s->memory);
	messages_at->read(s->copy, part_of(s, i), length_of(i));
	CHECK(holds(s->copy, length_of(i), i));
}

void stream_in(const nccl_driver *d, void *receiver, int messages)
{
	stream s;

	begin_stream(&s, d, receiver);
	for (int i = 0; i < messages + NET_REQUESTS_MAX; i++) {
		void **request = &s.requests[i % NET_REQUESTS_MAX];
		if (*request != NULL)
			check_received(&s, *request, i - NET_REQUESTS_MAX);
		*request = NULL;
		if (i < messages) {
			memset(s.copy, 0, LONG);
			messages_at->write(part_of(&s, i), s.copy, LONG);
			*request = begin_receive(d, receiver, part_of(&s, i), LONG, 5, s.memory);
			CHECK(*request != NULL);
		}
	}
	end_stream(&s);
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

int main(void)
{
	shared = test_share(sizeof(*shared));
	setenv("DDP_KEY", KEY, 1);
	int failures = test_run(NULL, NULL);
	test_unshare(shared, sizeof(*shared));
	return failures;
}
