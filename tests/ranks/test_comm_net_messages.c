/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit; needs: UCX */
/* The network between nodes: which message is whose, what becomes of one that nobody asks for, which way broadcasts go, and
   that it takes none without its key, of whoever knows a rank's address. */
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/hier/tree.h"
#include "comm/net/ucx.h"
#include "comm/wait/await.h"
#include "comm/wait/message.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/test.h"

static const int two_nodes[] = { 0, 1 };

static void run(int timeout_ms, int (*body)(ddp_comm *, void *), void *argument)
{
	RUN_WORLD(.ranks = 2, .node_of = two_nodes, .timeout_ms = timeout_ms, .body = body, .argument = argument);
}

/* ---- broadcasts --------------------------------------------------------------------- */

enum { NODES = 8, CHUNK_ELEMENTS = (256 << 10) / 4, ROOT = 3 };

static int broadcast_by_each_tree(ddp_comm *comm, void *argument)
{
	static const size_t chunks[DDP_TREE_FORMS] = { 1, 5, 16 };
	static int32_t data[16 * CHUNK_ELEMENTS];

	for (int form = 0; form < DDP_TREE_FORMS; form++) {
		const size_t count = chunks[form] * CHUNK_ELEMENTS - 1;
		CHECK((int)ddp_tree_choose(NODES, chunks[form]) == form);
		for (size_t i = 0; i < count; i++)
			data[i] = ddp_comm_rank(comm) == ROOT ? (int32_t)i * 31 + form : -1;
		CHECK_OK(ddp_broadcast(comm, data, count, DDP_I32, ROOT));
		for (size_t i = 0; i < count; i++)
			CHECK(data[i] == (int32_t)i * 31 + form);
	}
	return 0;
}

TEST(all_nodes_get_what_is_broadcast_by_each_tree)
{
	static const int node_of[NODES] = { 0, 1, 2, 3, 4, 5, 6, 7 };

	RUN_WORLD(.ranks = NODES, .node_of = node_of, .body = broadcast_by_each_tree);
}

/* ---- order ------------------------------------------------------------------------ */

enum { ORDERED = 1 << 20 };

/* Two messages with the same tag, the first of which UCX announces, as it does
   large ones, between their receivers' coming. */
static int receive_in_order(ddp_comm *comm, void *argument)
{
	const ddp_envelope envelope = {
		.tag = DDP_NET_P2P_TAG | 5, .source = ddp_comm_rank(comm),
		.operation = { .kind = DDP_SEND, .type = DDP_F32, .count = ORDERED },
	};
	static float x[2][ORDERED];
	ddp_transfer transfers[2];

	CHECK_OK(ddp_barrier(comm));
	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &(const ddp_operation){ .kind = DDP_BARRIER };
	comm->run.deadline_ns = 0;
	for (int i = 0; i < 2; i++) {
		if (ddp_comm_rank(comm) == 1) {
			x[i][0] = (float)(1 + i);
			CHECK_OK(ddp_net_send(comm, 0, &envelope, x[i], sizeof(x[i]), &transfers[i]));
			continue;
		}
		ddp_net_recv(comm, 1, &envelope, x[i], sizeof(x[i]), &transfers[i]);
		for (int n = 0; i == 0 && n < 1000 && atomic_load(&comm->net->unexpected) == 0 && !transfers[0].done; n++) {
			pthread_mutex_lock(&comm->net->worker->lock);
			ucp_worker_progress(comm->net->worker->worker);
			pthread_mutex_unlock(&comm->net->worker->lock);
			usleep(1000);
		}
	}
	CHECK_OK(ddp_await_transfers(comm, transfers, 2));
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(x[0][0] == 1 && x[1][0] == 2);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(messages_are_taken_in_the_order_of_their_receivers, run(0, receive_in_order, NULL));

/* ---- what is taken where it came ---------------------------------------------------- */

enum { TAKES = 20 };

typedef struct taker {
	bool agrees;
	int calls;
	float seen;
} taker;

static bool take(void *argument, const void *data)
{
	taker *t = argument;

	t->calls++;
	memcpy(&t->seen, data, sizeof(t->seen));
	return t->agrees;
}

static ddp_envelope envelope_of(const ddp_comm *comm, uint64_t tag)
{
	return (ddp_envelope){
		.tag = DDP_NET_P2P_TAG | tag, .source = ddp_comm_rank(comm),
		.operation = { .kind = DDP_SEND, .type = DDP_F32, .count = 1 },
	};
}

/* Asks for number i. Whoever lets messages move for another communicator, or for none, copies it. Returns true if
   this thread took it. */
static bool ask_for(ddp_comm *comm, int i, bool of_none)
{
	const ddp_envelope question = envelope_of(comm, 6);
	taker t = { .agrees = i % 2 == 0 };
	float buffer = -1, word = 0;
	ddp_transfer transfers[2] = {
		{ .peer = 1, .envelope = envelope_of(comm, 7), .buffer = &buffer, .bytes = sizeof(buffer), .take = take, .taker = &t },
	};

	ddp_net_recv_filled(comm, &transfers[0]);
	CHECK_OK(ddp_net_send(comm, 1, &question, &word, sizeof(word), &transfers[1]));
	while (of_none && !(transfers[0].done && transfers[1].done))
		(void)ddp_net_progress_all(comm->roster);
	CHECK_OK(ddp_await_transfers(comm, transfers, 2));
	CHECK(t.calls <= !of_none && (t.calls == 0 || t.seen == (float)i));
	CHECK(buffer == (t.calls == 1 && t.agrees ? -1 : (float)i));
	return t.calls == 1;
}

static void answer(ddp_comm *comm, int i)
{
	const ddp_envelope question = envelope_of(comm, 6), number = envelope_of(comm, 7);
	ddp_transfer transfer;
	float x = (float)i, word;

	ddp_net_recv(comm, 0, &question, &word, sizeof(word), &transfer);
	CHECK_OK(ddp_await_transfers(comm, &transfer, 1));
	CHECK_OK(ddp_net_send(comm, 0, &number, &x, sizeof(x), &transfer));
	CHECK_OK(ddp_await_transfers(comm, &transfer, 1));
}

static int take_messages(ddp_comm *comm, void *argument)
{
	int taken = 0;

	CHECK_OK(ddp_barrier(comm));
	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &(const ddp_operation){ .kind = DDP_BARRIER };
	comm->run.deadline_ns = 0;
	for (int i = 0; i < TAKES; i++) {
		if (ddp_comm_rank(comm) == 1)
			answer(comm, i);
		else
			taken += ask_for(comm, i, i >= TAKES / 2);
	}
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(ddp_comm_rank(comm) == 1 || taken > 0);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(messages_are_taken_where_they_came_by_their_own_thread, run(0, take_messages, NULL));

/* ---- what is kept ------------------------------------------------------------------ */

static int send_unasked(ddp_comm *comm, void *argument)
{
	static char data[4096];

	CHECK_OK(ddp_barrier(comm));
	if (ddp_comm_rank(comm) == 0) {
		pthread_mutex_lock(&comm->net->worker->lock);
		comm->net->worker->kept_bytes += ((size_t)1 << 30) + ((size_t)2 << 20) - sizeof(data);
		pthread_mutex_unlock(&comm->net->worker->lock);
	}
	ddp_status status = ddp_barrier(comm);
	if (status == DDP_OK && ddp_comm_rank(comm) == 1)
		status = ddp_send(comm, data, sizeof(data), DDP_U8, 0, 7);
	while (status == DDP_OK)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_NOMEM, "rank 1 on n1 sent more");
	return 0;
}

TEST_RUNS(messages_nobody_asks_for_are_bounded, run(0, send_unasked, NULL));

/* ---- what must not be overlooked -------------------------------------------------------- */

/* Lets the peer's message come in, unless the progress thread was faster. */
static void take_in(ddp_comm *comm)
{
	uint64_t start = ddp_now_ns();

	pthread_mutex_lock(&comm->run.lock);
	while (atomic_load(&comm->net->unexpected) == 0 && !ddp_comm_broken(comm) && ddp_seconds_since(start) < 10)
		(void)ddp_net_progress(comm);
	pthread_mutex_unlock(&comm->run.lock);
}

/* Each takes itself for the root, and is through; then comes what waits for
   nobody, until the mistake is older than what a rank remembers. */
static int hurry_on(ddp_comm *comm, void *argument)
{
	const bool *came_in_time = argument;
	float x[5] = { 0 };

	CHECK_OK(ddp_barrier(comm));
	uint64_t start = ddp_now_ns();
	ddp_status status = ddp_broadcast(comm, x, 5, DDP_F32, ddp_comm_rank(comm));
	if (*came_in_time)
		take_in(comm);
	for (int i = 0; i < 2 * DDP_PAST && status == DDP_OK; i++)
		status = ddp_broadcast(comm, x, 0, DDP_F32, 0);
	while (status == DDP_OK && ddp_seconds_since(start) < 20)
		status = ddp_barrier(comm);
	CHECK_FAILS(status, DDP_ERR_MISMATCH, "operation #2 differs");
	return 0;
}

TEST(mistake_is_noticed_however_fast_operations_follow)
{
	static bool came_in_time[] = { true, false };

	for (int i = 0; i < 2; i++)
		run(0, hurry_on, &came_in_time[i]);
}

/* A message of the barrier whose number is high, and which comes before it is
   asked for, is no question about the barrier. */
static int send_a_high_number(ddp_comm *comm, void *argument)
{
	const ddp_operation barrier = { .kind = DDP_BARRIER };
	char byte = (char)(7 * ddp_comm_rank(comm));
	ddp_transfer transfer;

	CHECK_OK(ddp_barrier(comm));
	pthread_mutex_lock(&comm->run.lock);
	comm->run.operation = &barrier;
	comm->run.deadline_ns = 0;
	if (ddp_comm_rank(comm) == 1) {
		CHECK_OK(ddp_message_send(comm, 0, ddp_message_tag(comm, 0xfffffe), &byte, 1, &transfer));
	} else {
		while (atomic_load(&comm->net->unexpected) == 0)
			(void)ddp_net_progress(comm);
		CHECK_OK(ddp_message_check(comm, DDP_NOBODY, false));
		ddp_message_recv(comm, 1, ddp_message_tag(comm, 0xfffffe), &byte, 1, &transfer);
	}
	CHECK_OK(ddp_await_transfers(comm, &transfer, 1));
	pthread_mutex_unlock(&comm->run.lock);
	CHECK(byte == 7);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

TEST_RUNS(no_message_is_taken_for_a_question, run(5000, send_a_high_number, NULL));

/* ---- messages of others -------------------------------------------------------------------- */

enum { ADDRESS_MAX = 8192 };

typedef struct intrusion {
	atomic_size_t bytes;  /* of rank 0's address; set last */
	atomic_int done;      /* the intruder has sent all that it has */
	ddp_listeners listeners;
	char address[ADDRESS_MAX];
} intrusion;

static void ignore_loss(void *argument, ucp_ep_h ep, ucs_status_t status)
{
}

/* One message with this header, and data behind it. */
static void send_forged(ucp_worker_h worker, ucp_ep_h ep, unsigned int id, const void *header,
                        size_t header_bytes, const void *data, size_t bytes)
{
	static const ucp_request_param_t param = { .op_attr_mask = 0 };
	void *request = ucp_am_send_nbx(ep, id, header, header_bytes, data, bytes, &param);

	for (int i = 0; i < 2000 && UCS_PTR_IS_PTR(request) &&
	     ucp_request_check_status(request) == UCS_INPROGRESS; i++) {
		(void)ucp_worker_progress(worker);
		usleep(10);
	}
}

static void send_forged_data(ucp_worker_h worker, ucp_ep_h ep, const data_header *header, const void *data, size_t bytes)
{
	unsigned char written[DDP_HEADER_MAX];
	const size_t header_bytes = ddp_ucx_header_write(header, written);

	send_forged(worker, ep, DDP_AM_DATA, written, header_bytes, data, bytes);
}

static void send_all(ucp_worker_h worker, ucp_ep_h ep)
{
	static unsigned char garbage[4 << 20];
	data_header data = { .seal = { .source = 1 },
	                     .envelope = { .source = 1, .operation = { .kind = DDP_ALL_REDUCE } } };
	failure_header failure = { .seal = { .source = 1 },
	                           .failure = { .status = DDP_ERR_PEER, .text = "a lie" } };
	handshake_header handshake = { .seal = { .source = 1 }, .heard = 1, .ready = 1 };

	memset(garbage, 0xa5, sizeof(garbage));
	for (unsigned int id = 0; id < 6; id++) {
		for (size_t bytes = 0; bytes < 100; bytes += 7)
			send_forged(worker, ep, id, garbage, bytes, garbage, bytes);
	}
	for (int source = -1; source < 3; source++) {
		data.seal.source = failure.seal.source = handshake.seal.source = source;
		send_forged(worker, ep, DDP_AM_HANDSHAKE, &handshake, sizeof(handshake), NULL, 0);
		send_forged(worker, ep, DDP_AM_FAILURE, &failure, sizeof(failure), NULL, 0);
		for (uint64_t sequence = 1; sequence < 64; sequence++) {
			data.envelope.tag = sequence << 24;
			send_forged_data(worker, ep, &data, garbage, 40);
		}
		send_forged_data(worker, ep, &data, garbage, sizeof(garbage));
	}
}

/* Does not speak UCX. */
static void send_noise(const ddp_place *place)
{
	struct sockaddr_in listener = { .sin_family = AF_INET, .sin_port = place->port };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char noise[1000];

	memset(noise, 0xa5, sizeof(noise));
	memcpy(&listener.sin_addr, place->address, sizeof(listener.sin_addr));
	if (connect(fd, (struct sockaddr *)&listener, sizeof(listener)) == 0)
		(void)!send(fd, noise, sizeof(noise), MSG_NOSIGNAL);
	close(fd);
}

/* Knows rank 0's address. */
static int intrude(intrusion *r)
{
	const ucp_params_t features = { .field_mask = UCP_PARAM_FIELD_FEATURES,
	                                .features = UCP_FEATURE_AM };
	const ucp_worker_params_t single = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
	                                     .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_ep_params_t to = {
		.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
			UCP_EP_PARAM_FIELD_ERR_HANDLER,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler = { .cb = ignore_loss },
	};
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_config_t *config;
	ucp_ep_h ep;

	while (atomic_load(&r->bytes) == 0)
		usleep(1000);
	for (int i = 0; i < r->listeners.count; i++) {
		if (r->listeners.places[i].family == AF_INET)
			send_noise(&r->listeners.places[i]);
	}
	to.address = (const ucp_address_t *)r->address;
	if (ucp_config_read(NULL, NULL, &config) != UCS_OK ||
	    ucp_init(&features, config, &context) != UCS_OK ||
	    ucp_worker_create(context, &single, &worker) != UCS_OK ||
	    ucp_ep_create(worker, &to, &ep) != UCS_OK)
		return 1;
	send_all(worker, ep);
	atomic_store(&r->done, 1);
	return 0;
}

static void give_address(ddp_comm *comm, intrusion *r)
{
	ucp_address_t *address;
	size_t bytes;

	/* The guard and the filter would keep the intruder out before it can send anything. */
	ddp_guard_let_all_in(comm->net->worker->guard);
	for (int i = 0; i < comm->net->worker->listeners.count; i++)
		CHECK(setsockopt(comm->net->worker->listeners.fds[i], SOL_SOCKET, SO_DETACH_FILTER, &(int){ 0 },
		                 sizeof(int)) == 0);
	CHECK(ucp_worker_get_address(comm->net->worker->worker, &address, &bytes) == UCS_OK);
	CHECK(bytes <= ADDRESS_MAX);
	memcpy(r->address, address, bytes);
	r->listeners = comm->net->worker->listeners;
	ucp_worker_release_address(comm->net->worker->worker, address);
	atomic_store(&r->bytes, bytes);
}

static int work_beside_an_intruder(ddp_comm *comm, void *argument)
{
	intrusion *r = argument;
	float x[10], over = 0;

	if (ddp_comm_rank(comm) == 0)
		give_address(comm, r);
	while (over < 2) {
		for (int i = 0; i < 10; i++)
			x[i] = 1;
		CHECK_OK(ddp_all_reduce(comm, NULL, x, 10, DDP_F32, DDP_SUM));
		for (int i = 0; i < 10; i++)
			CHECK(x[i] == 2);
		over = atomic_load(&r->done) != 0;
		CHECK_OK(ddp_all_reduce(comm, NULL, &over, 1, DDP_F32, DDP_SUM));
	}
	if (ddp_comm_rank(comm) == 0)
		CHECK(comm->net->worker->unauthentic > 0);
	return 0;
}

TEST(messages_without_the_key_are_ignored)
{
	if (!test_may_filter())
		skip();
	intrusion *r = test_share(sizeof(*r));
	const test_world world = { .ranks = 2, .node_of = two_nodes, .body = work_beside_an_intruder,
	                           .argument = r };
	int end;

	pid_t intruder = fork();
	assert_true(intruder >= 0);
	if (intruder == 0) {
		signal(SIGSEGV, SIG_DFL); /* of cmocka */
		_exit(intrude(r));
	}
	const int failures = test_world_run(&world);
	kill(intruder, SIGKILL);
	assert_int_equal(waitpid(intruder, &end, 0), intruder);
	assert_int_equal(failures, 0);
	test_unshare(r, sizeof(*r));
}

/* ---- headers ---------------------------------------------------------------------------------- */

/* Those of a sum in the world, of a message of a pair in a group, and one whose words are as large as they can be. */
static const data_header some_headers[] = {
	{
		.seal = { .source = 1 }, .id = 1, .charge = 1024 + 128,
		.envelope = { .tag = 1000ull << 24, .source = 1,
		              .operation = { .kind = DDP_ALL_REDUCE, .type = DDP_F32, .count = 256 } },
	}, {
		.seal = { .source = 300 }, .id = 5ull << 32 | 7,
		.envelope = { .tag = DDP_NET_P2P_TAG | 0x80000001, .source = 2,
		              .operation = { .kind = DDP_SEND, .type = DDP_U8, .root = -1, .count = 1 } },
	}, {
		.seal = { .source = INT32_MAX }, .id = UINT64_MAX, .charge = UINT64_MAX,
		.envelope = { .tag = UINT64_MAX, .source = -1,
		              .operation = { .kind = 255, .type = 255, .op = 255, .by_counts = 255, .root = -1,
		                             .count = UINT64_MAX, .counts_hash = UINT32_MAX } },
	},
};
enum { SOME_HEADERS = sizeof(some_headers) / sizeof(some_headers[0]) };

/* Exactly so many bytes, so that a sanitizer sees who reads beyond them. */
static unsigned char *copy_of(const unsigned char *from, size_t bytes)
{
	unsigned char *copy = malloc(bytes + (bytes == 0));

	assert_non_null(copy);
	memcpy(copy, from, bytes);
	return copy;
}

TEST(headers_come_as_they_were_sent)
{
	for (int i = 0; i < SOME_HEADERS; i++) {
		unsigned char written[DDP_HEADER_MAX];
		data_header sent = some_headers[i], came;
		memset(&sent.seal.token, 0xa5, sizeof(sent.seal.token));
		const size_t bytes = ddp_ucx_header_write(&sent, written);
		assert_true(bytes <= sizeof(written));
		assert_true(ddp_ucx_header_read(written, bytes, &came));
		assert_true(ddp_token_same(&came.seal.token, &sent.seal.token));
		assert_int_equal(came.seal.source, sent.seal.source);
		assert_true(came.id == sent.id && came.charge == sent.charge);
		assert_true(came.envelope.tag == sent.envelope.tag);
		assert_int_equal(came.envelope.source, sent.envelope.source);
		assert_true(ddp_fingerprint_same(&came.envelope.operation, &sent.envelope.operation));
	}
}

/* A narrow link takes as long for it as for the values that it precedes. */
TEST(the_header_of_a_small_sum_is_small)
{
	unsigned char written[DDP_HEADER_MAX];

	assert_true(ddp_ucx_header_write(&some_headers[0], written) <= 36);
}

TEST(what_is_no_header_is_refused)
{
	unsigned char written[DDP_HEADER_MAX + 1] = { 0 };
	data_header came;

	for (int i = 0; i < SOME_HEADERS; i++) {
		const size_t bytes = ddp_ucx_header_write(&some_headers[i], written);
		for (size_t cut = 0; cut < bytes; cut++) {
			unsigned char *part = copy_of(written, cut);
			assert_false(ddp_ucx_header_read(part, cut, &came));
			free(part);
		}
		assert_false(ddp_ucx_header_read(written, bytes + 1, &came));
	}
	/* Words of 9 to 15 bytes. */
	memset(written + DDP_SEAL_BYTES, 0xff, DDP_HEADER_MIN - DDP_SEAL_BYTES);
	assert_false(ddp_ucx_header_read(written, sizeof(written), &came));
}
