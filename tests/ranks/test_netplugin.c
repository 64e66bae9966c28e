/*
 * libnccl-net-ddpucx.so, called as NCCL calls it: two processes, over sockets and over
 * shared memory, by the tables of all versions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/hung.h"
#include "tests/support/nccl_driver.h"
#include "tests/support/ranks.h"

#define KEY "step:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

enum { RECEIVER, SENDER, RANKS, CONNECTIONS = 4, ROUNDS = 2, SLOTS = 40, LONG = 200000 };
enum { NONCE_END = 40, FAMILY_AT = 60, PORT_AT = 62 }; /* in a handle */

/* Shared by the ranks. */
typedef struct board {
	const char *transports;
	int version;
	atomic_int ready[CONNECTIONS * ROUNDS]; /* the handle is written down */
	unsigned char handle[CONNECTIONS * ROUNDS][NET_HANDLE_BYTES];
	int victim;            /* the rank that dies or closes first */
	atomic_int stage;      /* of the test's own */
	atomic_int pids[RANKS];
	atomic_size_t length;  /* of the warnings */
	char heard[1 << 14];
} board;

static board *shared;

static void hear(int level, unsigned long about, const char *file, int line, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	(void)about;
	(void)file;
	(void)line;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text) - 1, format, arguments);
	va_end(arguments);
	if (length < 0 || level != NET_LOG_WARN)
		return;
	size_t bytes = strlen(text), at = atomic_fetch_add(&shared->length, bytes + 1);
	if (at + bytes + 1 < sizeof(shared->heard)) {
		memcpy(shared->heard + at, text, bytes);
		shared->heard[at + bytes] = '\n';
	}
}

static void nap(void)
{
	usleep(100);
}

static void reach(int stage)
{
	atomic_store(&shared->stage, stage);
}

static void await(int stage)
{
	while (atomic_load(&shared->stage) < stage)
		nap();
}

/* ---- as NCCL does --------------------------------------------------------------------------- */

static void set_up(nccl_driver *d, const board *b, int rank)
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

static void *receive_from(const nccl_driver *d, int i)
{
	void *listener = listen_at(d, i);
	void *receiver = accept_one(d, listener);

	CHECK(d->close_listener(listener) == NET_SUCCESS);
	return receiver;
}

static void *send_to(const nccl_driver *d, int i)
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

static void finish(const nccl_driver *d, void *request, int *sizes)
{
	int done = 0;

	while (done == 0)
		CHECK(d->test(request, &done, sizes) == NET_SUCCESS);
}

static void *begin_receive(const nccl_driver *d, void *receiver, void *data, size_t bytes, int tag, void *memory)
{
	void *request = NULL;

	CHECK(nccl_receive(d, receiver, 1, &data, &bytes, &tag, &memory, &request) == NET_SUCCESS);
	return request;
}

static void *begin_send(const nccl_driver *d, void *sender, void *data, size_t bytes, int tag, void *memory)
{
	void *request = NULL;

	CHECK(nccl_send(d, sender, data, bytes, tag, memory, &request) == NET_SUCCESS);
	return request;
}

/* What message i of so many bytes holds. */
static void fill(unsigned char *data, size_t bytes, int i)
{
	for (size_t k = 0; k < bytes; k++)
		data[k] = (unsigned char)(k * 7 + k / 256 + (size_t)i * 31 + 1);
}

static bool holds(const unsigned char *data, size_t bytes, int i)
{
	for (size_t k = 0; k < bytes; k++) {
		if (data[k] != (unsigned char)(k * 7 + k / 256 + (size_t)i * 31 + 1))
			return false;
	}
	return true;
}

/* Messages of all lengths, of none and of some that UCX sends another way, with a few
   that are longer than what comes before. */
static size_t length_of(int i)
{
	static const size_t lengths[] = { 1, 0, 64, 1000, 8192, 0, 9000, LONG, 3, 70000 };

	return lengths[(size_t)i % (sizeof(lengths) / sizeof(lengths[0]))];
}

/* ---- traffic ---------------------------------------------------------------------------------- */

/* As many under way as NCCL has; receives are longer than what is sent. */
static void stream_out(const nccl_driver *d, void *sender, int messages)
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

static void stream_in(const nccl_driver *d, void *receiver, int messages)
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

/* Groups of receives, whose senders come in another order, and two of one tag. */
static const int group_tags[2][NET_RECEIVES_MAX] = { { 3, 1, 4, 2, 9, 5, 6, 7 }, { 1, 3, 1 } };
static const int group_sends[][2] = { { 0, 9 }, { 0, 7 }, { 1, 1 }, { 0, 3 }, { 0, 2 }, { 1, 1 }, { 0, 6 },
                                      { 0, 4 }, { 0, 5 }, { 1, 3 } };
/* Of tag 1, the first send is the first group's. */

static void groups_in(const nccl_driver *d, void *receiver)
{
	static unsigned char data[2][NET_RECEIVES_MAX][64];
	void *at[NET_RECEIVES_MAX], *requests[2], *none[NET_RECEIVES_MAX] = { NULL };
	size_t bytes[NET_RECEIVES_MAX];
	int sizes[NET_RECEIVES_MAX], tags[NET_RECEIVES_MAX];
	static const int counts[2] = { 8, 3 };

	for (int g = 0; g < 2; g++) {
		for (int k = 0; k < counts[g]; k++) {
			at[k] = data[g][k];
			bytes[k] = sizeof(data[g][k]);
			tags[k] = group_tags[g][k];
		}
		CHECK(nccl_receive(d, receiver, counts[g], at, bytes, tags, none, &requests[g]) == NET_SUCCESS);
		CHECK(requests[g] != NULL);
	}
	for (int g = 0; g < 2; g++) {
		finish(d, requests[g], sizes);
		for (int k = 0; k < counts[g]; k++)
			CHECK(sizes[k] == 10 + group_tags[g][k] && data[g][k][1] == group_tags[g][k]);
	}
	/* The sends of tag 1 were numbered: groups get them in order. */
	CHECK(data[0][1][0] == 0 && data[1][0][0] == 1 && data[1][2][0] == 2);
	CHECK(nccl_receive(d, receiver, NET_RECEIVES_MAX + 1, at, bytes, tags, none, &requests[0]) == NET_INTERNAL_ERROR);
}

static void groups_out(const nccl_driver *d, void *sender)
{
	static unsigned char data[16][64];
	void *requests[16];
	int count = (int)(sizeof(group_sends) / sizeof(group_sends[0])), of_tag_1 = 0;

	for (int i = 0; i <= count; i++) {
		/* 1 comes once more, for the second group. */
		const int tag = i < count ? group_sends[i][1] : 1;
		data[i][0] = tag == 1 ? (unsigned char)of_tag_1++ : 0;
		data[i][1] = (unsigned char)tag;
		requests[i] = begin_send(d, sender, data[i], (size_t)(10 + tag), tag, NULL);
		CHECK(requests[i] != NULL);
	}
	for (int i = 0; i <= count; i++)
		finish(d, requests[i], NULL);
}

/* More than there are: NULL, and no error; then they are there again. */
static void exhaust(const nccl_driver *d, void *receiver)
{
	static unsigned char data[SLOTS * 2][8];
	void *requests[SLOTS * 2];
	int begun = 0;

	while (begun < SLOTS * 2 && (requests[begun] = begin_receive(d, receiver, data[begun], 8, 5, NULL)) != NULL)
		begun++;
	CHECK(begun >= NET_REQUESTS_MAX && begun < SLOTS * 2);
	reach(1);
	for (int i = 0; i < begun; i++) {
		finish(d, requests[i], NULL);
		CHECK(data[i][0] == i);
	}
	CHECK((requests[0] = begin_receive(d, receiver, data[0], 8, 5, NULL)) != NULL);
	finish(d, requests[0], NULL);
	/* What was sent in vain stays behind when the connection closes. */
}

static void satisfy(const nccl_driver *d, void *sender)
{
	unsigned char data[SLOTS * 2];

	await(1);
	for (int i = 0; i < SLOTS * 2; i++) {
		data[i] = (unsigned char)i;
		finish(d, begin_send(d, sender, &data[i], 1, 5, NULL), NULL);
	}
}

static int exchange(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		void *receiver = receive_from(&d, 0);
		stream_in(&d, receiver, 90);
		groups_in(&d, receiver);
		exhaust(&d, receiver);
		CHECK(d.close_receiver(receiver) == NET_SUCCESS);
	} else {
		void *sender = send_to(&d, 0);
		stream_out(&d, sender, 90);
		groups_out(&d, sender);
		satisfy(&d, sender);
		CHECK(d.close_sender(sender) == NET_SUCCESS);
	}
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* ---- threads ---------------------------------------------------------------------------------- */

static nccl_driver of_threads;

/* Each opens and closes connections of its own while the others use theirs. */
static void *use_one(void *argument)
{
	const int first = (int)(intptr_t)argument;
	const bool receives = atomic_load(&shared->pids[RECEIVER]) == getpid();

	for (int i = first; i < CONNECTIONS * ROUNDS; i += CONNECTIONS) {
		if (receives) {
			void *receiver = receive_from(&of_threads, i);
			stream_in(&of_threads, receiver, 40);
			CHECK(of_threads.close_receiver(receiver) == NET_SUCCESS);
		} else {
			void *sender = send_to(&of_threads, i);
			stream_out(&of_threads, sender, 40);
			CHECK(of_threads.close_sender(sender) == NET_SUCCESS);
		}
	}
	return NULL;
}

static int use_several(int rank, void *argument)
{
	pthread_t threads[CONNECTIONS];

	set_up(&of_threads, argument, rank);
	for (intptr_t i = 0; i < CONNECTIONS; i++)
		CHECK(pthread_create(&threads[i], NULL, use_one, (void *)i) == 0);
	for (int i = 0; i < CONNECTIONS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(nccl_finalize(&of_threads) == NET_SUCCESS);
	return 0;
}

/* ---- failures --------------------------------------------------------------------------------- */

/* Sends or receives without end; what the plugin says when it fails. */
static net_result stream_on(const nccl_driver *d, void *connection, bool sends, int messages)
{
	enum { AT_ONCE = 6 };
	static unsigned char data[AT_ONCE][LONG];
	void *requests[AT_ONCE] = { NULL };
	net_result result = NET_SUCCESS;

	for (int i = 0; (messages == 0 || i < messages) && result == NET_SUCCESS; i++) {
		const int slot = i % AT_ONCE;
		int done = requests[slot] == NULL, tag = 5;
		size_t bytes = LONG;
		void *at = data[slot], *none = NULL;
		while (done == 0 && result == NET_SUCCESS)
			result = d->test(requests[slot], &done, NULL);
		if (result != NET_SUCCESS)
			break;
		result = sends ? nccl_send(d, connection, at, length_of(i), 5, NULL, &requests[slot]) :
		         nccl_receive(d, connection, 1, &at, &bytes, &tag, &none, &requests[slot]);
		if (sends && i == 50)
			reach(1);
	}
	return result;
}

static void *open_one(const nccl_driver *d, int rank)
{
	return rank == RECEIVER ? receive_from(d, 0) : send_to(d, 0);
}

static void close_one(const nccl_driver *d, int rank, void *connection)
{
	CHECK((rank == RECEIVER ? d->close_receiver : d->close_sender)(connection) == NET_SUCCESS);
}

/* The victim is killed while messages are under way. */
static int outlive(int rank, void *argument)
{
	nccl_driver d;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == shared->victim)
		return stream_on(&d, connection, rank == SENDER, 0) == NET_SUCCESS;
	if (rank == SENDER)
		CHECK(stream_on(&d, connection, true, 60) == NET_SUCCESS);
	else
		CHECK(stream_on(&d, connection, false, 40) == NET_SUCCESS);
	CHECK(kill(atomic_load(&shared->pids[shared->victim]), SIGKILL) == 0);
	const uint64_t start_ns = ddp_now_ns();
	CHECK(stream_on(&d, connection, rank == SENDER, 0) == NET_SYSTEM_ERROR);
	CHECK(ddp_seconds_since(start_ns) < 5 * test_slowness());
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* The victim closes while the other has requests under way that it will not answer. */
static int close_early(int rank, void *argument)
{
	static unsigned char data[4][LONG];
	nccl_driver d;
	void *requests[4];
	int done = 0;
	net_result result = NET_SUCCESS;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	for (int i = 0; i < 4; i++) {
		requests[i] = rank == RECEIVER ? begin_receive(&d, connection, data[i], LONG, 5, NULL) :
		              begin_send(&d, connection, data[i], LONG, 6, NULL);
		CHECK(requests[i] != NULL);
	}
	atomic_fetch_add(&shared->stage, 1);
	await(2);
	for (int i = 0; i < 100; i++) /* some of it gets there */
		CHECK(d.test(requests[0], &done, NULL) == NET_SUCCESS && done == 0);
	atomic_fetch_add(&shared->stage, 1);
	await(4);
	if (rank != shared->victim) {
		while (result == NET_SUCCESS && done == 0)
			result = d.test(requests[0], &done, NULL);
		CHECK(result == NET_SYSTEM_ERROR);
		/* It stays so, and is told once. */
		CHECK(d.test(requests[1], &done, NULL) == NET_SYSTEM_ERROR);
	}
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* The receiver has got all and is gone, and UCX could not tell the sender so: the shared
   memory in which it does is full of what nobody has taken. */
static int close_unacknowledged(int rank, void *argument)
{
	enum { MESSAGES = 8, FILLING = 100 }; /* FILLING: more than UCX has places for */
	static unsigned char data[MESSAGES][LONG], filling[FILLING];
	nccl_driver d;
	void *requests[MESSAGES], *memory = NULL;

	CHECK(setenv("UCX_POSIX_FIFO_SIZE", "64", 1) == 0 && setenv("UCX_SYSV_FIFO_SIZE", "64", 1) == 0);
	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	void *back = rank == RECEIVER ? send_to(&d, 1) : receive_from(&d, 1);
	if (rank == SENDER) {
		CHECK(d.register_memory(connection, data, sizeof(data), NET_HOST, &memory) == NET_SUCCESS);
		for (int i = 0; i < MESSAGES; i++) {
			fill(data[i], LONG, i);
			requests[i] = begin_send(&d, connection, data[i], LONG, 5, memory);
		}
		reach(1);
		await(2);
		for (int i = 0; i < MESSAGES; i++)
			finish(&d, requests[i], NULL);
		CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
	} else {
		await(1);
		for (int i = 0; i < FILLING; i++)
			(void)begin_send(&d, back, &filling[i], 1, 5, NULL);
		for (int i = 0; i < MESSAGES; i++) {
			finish(&d, begin_receive(&d, connection, data[i], LONG, 5, NULL), NULL);
			CHECK(holds(data[i], LONG, i));
		}
	}
	close_one(&d, rank, connection);
	close_one(&d, rank == RECEIVER ? SENDER : RECEIVER, back);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	if (rank == RECEIVER)
		reach(2);
	return 0;
}

/* More comes than there is room for. */
static int overflow(int rank, void *argument)
{
	static unsigned char data[100];
	nccl_driver d;
	int done = 0;
	net_result result = NET_SUCCESS;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	if (rank == SENDER) {
		finish(&d, begin_send(&d, connection, data, sizeof(data), 5, NULL), NULL);
	} else {
		void *request = begin_receive(&d, connection, data, 10, 5, NULL);
		while (result == NET_SUCCESS && done == 0)
			result = d.test(request, &done, NULL);
		CHECK(result == NET_INVALID_USAGE);
	}
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* What was sent for a receive that has been given up is not taken for another one. */
static void refuse_receive(const nccl_driver *d, void *connection)
{
	static unsigned char data[1000];
	size_t bytes = sizeof(data);
	void *to = data, *memory = NULL, *request;
	int tag = 5;

	CHECK(nccl_receive(d, connection, 1, &to, &bytes, &tag, &memory, &request) == NET_SYSTEM_ERROR);
}

/* The victim's memory is used by others before the message moves, and UCX goes on for
   another connection. */
static int take_back(int rank, void *argument)
{
	const size_t bytes = rank == RECEIVER ? 1000 : LONG;
	unsigned char peers[LONG];
	const bool victim = rank == shared->victim;
	nccl_driver d;
	void *memory;

	set_up(&d, argument, rank);
	void *connection = open_one(&d, rank);
	void *other = rank == RECEIVER ? receive_from(&d, 1) : send_to(&d, 1);
	if (victim) {
		unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(data != MAP_FAILED);
		CHECK(d.register_memory(connection, data, bytes, NET_HOST, &memory) == NET_SUCCESS);
		CHECK((rank == RECEIVER ? begin_receive(&d, connection, data, bytes, 5, memory) :
		       begin_send(&d, connection, data, bytes, 5, memory)) != NULL);
		CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
		CHECK(mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == data);
		reach(1);
	} else {
		await(1);
		if (rank == RECEIVER)
			(void)begin_receive(&d, connection, peers, sizeof(peers), 5, NULL);
		else
			finish(&d, begin_send(&d, connection, peers, 1000, 5, NULL), NULL);
	}
	if (rank == RECEIVER)
		stream_in(&d, other, 90);
	else
		stream_out(&d, other, 90);
	if (victim && rank == RECEIVER)
		refuse_receive(&d, connection);
	close_one(&d, rank, connection);
	close_one(&d, rank, other);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* ---- strangers -------------------------------------------------------------------------------- */

static int connect_raw(const unsigned char *handle)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint16_t family;

	memcpy(&family, handle + FAMILY_AT, sizeof(family));
	memcpy(&to.sin_addr, handle + NONCE_END, sizeof(to.sin_addr));
	memcpy(&to.sin_port, handle + PORT_AT, sizeof(to.sin_port));
	CHECK(family == AF_INET && fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	return fd;
}

/* One that says nothing, one that hangs up, and some that say anything. */
static void disturb(const unsigned char *handle)
{
	unsigned char noise[1000];

	(void)connect_raw(handle);
	close(connect_raw(handle));
	for (unsigned int seed = 1; seed < 4; seed++) {
		int fd = connect_raw(handle);
		for (size_t i = 0; i < sizeof(noise); i++)
			noise[i] = (unsigned char)(rand_r(&seed) >> 8);
		CHECK(send(fd, noise, sizeof(noise), MSG_NOSIGNAL) > 0);
		/* Until it is turned away. */
		while (recv(fd, noise, sizeof(noise), 0) > 0)
			continue;
		close(fd);
	}
}

static net_result connect_with(const nccl_driver *d, const char *key, unsigned char *handle)
{
	void *sender = NULL;
	net_result result = NET_SUCCESS;

	CHECK(setenv("DDP_KEY", key, 1) == 0);
	while (sender == NULL && result == NET_SUCCESS) {
		result = nccl_connect(d, 0, handle, &sender);
		nap();
	}
	if (sender != NULL) {
		stream_out(d, sender, 3);
		CHECK(d->close_sender(sender) == NET_SUCCESS);
	}
	return result;
}

/* Neither they nor a wrong key keep the listener from the right peer. */
static int turn_away(int rank, void *argument)
{
	unsigned char handle[NET_HANDLE_BYTES], other[NET_HANDLE_BYTES] = "something else";
	nccl_driver d;
	void *sender = NULL;

	set_up(&d, argument, rank);
	if (rank == RECEIVER) {
		void *receiver = receive_from(&d, 0);
		stream_in(&d, receiver, 3);
		close_one(&d, rank, receiver);
		CHECK(nccl_finalize(&d) == NET_SUCCESS);
		return 0;
	}
	while (atomic_load(&shared->ready[0]) == 0)
		nap();
	memcpy(handle, shared->handle[0], sizeof(handle));
	CHECK(nccl_connect(&d, 0, other, &sender) == NET_INVALID_USAGE && sender == NULL);
	disturb(handle);
	CHECK(connect_with(&d, "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", handle) == NET_SYSTEM_ERROR);
	CHECK(connect_with(&d, KEY, handle) == NET_SUCCESS);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

/* As many that say nothing as a listener has places for keep nobody out. */
static int come_last(int rank, void *argument)
{
	enum { PLACES = 16 };
	nccl_driver d;

	set_up(&d, argument, rank);
	if (rank == SENDER) {
		while (atomic_load(&shared->ready[0]) == 0)
			nap();
		for (int i = 0; i < PLACES; i++)
			(void)connect_raw(shared->handle[0]);
	}
	const uint64_t start_ns = ddp_now_ns();
	void *connection = open_one(&d, rank);
	CHECK(ddp_seconds_since(start_ns) < 5 * test_slowness());
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static int lack_key(int rank, void *argument)
{
	static const char *const keys[] = { "", "12", "step:zz" };
	nccl_driver d;

	(void)argument;
	CHECK(nccl_load(&d, rank == RECEIVER ? 12 : 8));
	for (int i = 0; i < 3; i++) {
		CHECK(setenv("DDP_KEY", keys[i], 1) == 0);
		CHECK(nccl_init(&d, hear) == NET_SYSTEM_ERROR);
	}
	return 0;
}

/* ---- what runs them --------------------------------------------------------------------------- */

static const char over_tcp[] = "tcp", over_memory[] = "posix,sysv,cma";

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

static int run_board(int (*body)(int, void *), int version, const char *transports)
{
	return run_all(body, version, transports, -1, false);
}

static int run_with_victim(int (*body)(int, void *), const char *transports, int victim, bool dies)
{
	return run_all(body, 11, transports, victim, dies);
}

static void v12_over_tcp(void **state)
{
	(void)state;
	assert_int_equal(run_board(exchange, 12, over_tcp), 0);
}

static void v11_over_memory(void **state)
{
	(void)state;
	assert_int_equal(run_board(exchange, 11, over_memory), 0);
}

static void v10_over_tcp(void **state)
{
	(void)state;
	assert_int_equal(run_board(exchange, 10, over_tcp), 0);
}

static void v8_over_memory(void **state)
{
	(void)state;
	assert_int_equal(run_board(exchange, 8, over_memory), 0);
}

/* Said once, by name. */
static void heard_once(const char *words)
{
	const char *found = strstr(shared->heard, words);

	assert_non_null(found);
	assert_null(strstr(found + 1, words));
}

static void several_threads_open_use_and_close(void **state)
{
	(void)state;
	assert_int_equal(run_board(use_several, 11, over_tcp), 0);
	assert_int_equal(run_board(use_several, 11, over_memory), 0);
}

static void a_killed_peer_is_noticed(void **state)
{
	(void)state;
	assert_int_equal(run_with_victim(outlive, over_tcp, SENDER, true), 0);
	heard_once("the connection from rank 1 on");
	assert_int_equal(run_with_victim(outlive, over_tcp, RECEIVER, true), 0);
	heard_once("the connection to rank 0 on");
	assert_int_equal(run_with_victim(outlive, over_memory, SENDER, true), 0);
	heard_once("the connection from rank 1 on");
	assert_int_equal(run_with_victim(outlive, over_memory, RECEIVER, true), 0);
	heard_once("the connection to rank 0 on");
}

static void a_peer_that_closes_early_is_noticed(void **state)
{
	(void)state;
	assert_int_equal(run_with_victim(close_early, over_tcp, SENDER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_tcp, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_memory, SENDER, false), 0);
	assert_int_equal(run_with_victim(close_early, over_memory, RECEIVER, false), 0);
	heard_once("the connection to rank 0 on");
}

static void what_was_received_counts_as_sent(void **state)
{
	char byte = 0, copy;
	const struct iovec from = { .iov_base = &byte, .iov_len = 1 }, to = { .iov_base = &copy, .iov_len = 1 };

	(void)state;
	/* Where UCX cannot read the sender's memory, the sender would have to take part. */
	if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1)
		skip();
	assert_int_equal(run_board(close_unacknowledged, 11, over_memory), 0);
	assert_string_equal(shared->heard, "");
}

static void what_does_not_fit_is_an_error(void **state)
{
	(void)state;
	assert_int_equal(run_board(overflow, 12, over_tcp), 0);
	heard_once("is longer than what it is to be received into");
}

static void memory_that_is_taken_back_is_left_alone(void **state)
{
	(void)state;
	assert_int_equal(run_with_victim(take_back, over_tcp, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_tcp, SENDER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_memory, RECEIVER, false), 0);
	assert_int_equal(run_with_victim(take_back, over_memory, SENDER, false), 0);
}

static void strangers_are_turned_away(void **state)
{
	(void)state;
	assert_int_equal(run_board(turn_away, 11, over_tcp), 0);
	heard_once("a connection was turned away");
	heard_once("DDP_KEY must be the same");
}

static void silent_strangers_make_room(void **state)
{
	(void)state;
	assert_int_equal(run_board(come_last, 11, over_tcp), 0);
	heard_once("and others wait");
}

static void nothing_starts_without_a_key(void **state)
{
	(void)state;
	assert_int_equal(run_board(lack_key, 12, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "DDP_KEY is not set"));
	assert_non_null(strstr(shared->heard, "DDP_KEY has 2 characters"));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(v12_over_tcp), cmocka_unit_test(v11_over_memory),
		cmocka_unit_test(v10_over_tcp), cmocka_unit_test(v8_over_memory),
		cmocka_unit_test(several_threads_open_use_and_close),
		cmocka_unit_test(a_killed_peer_is_noticed), cmocka_unit_test(a_peer_that_closes_early_is_noticed),
		cmocka_unit_test(what_was_received_counts_as_sent), cmocka_unit_test(what_does_not_fit_is_an_error),
		cmocka_unit_test(memory_that_is_taken_back_is_left_alone),
		cmocka_unit_test(strangers_are_turned_away), cmocka_unit_test(silent_strangers_make_room),
		cmocka_unit_test(nothing_starts_without_a_key),
	};

	shared = test_share(sizeof(*shared));
	setenv("DDP_KEY", KEY, 1);
	int failures = cmocka_run_group_tests_name("netplugin", tests, NULL, NULL);
	test_unshare(shared, sizeof(*shared));
	return failures;
}
