/* SPDX-License-Identifier: Apache-2.0 */
/* A leaf's side: its search for rank 0, and the exchange with it. Rank 0 may start later than the leaf, and is searched
   at several ports at once. In each round the leaf connects to the ports that it is not connected to. If a challenge
   comes, the leaf goes on with the handshake. Other programs that listen at such a port may send nothing, send other
   bytes, close the connection, or drop packets. */
#include "wireup/star.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "wireup/frame.h"
#include "wireup/node_table.h"
#include "wireup/torchrun.h"

/* ---- the search for rank 0 ----------------------------------------------------------- */

/* One address that swallows packets must not keep the next from being tried. The kernel of a
   flooded listener does so now and then, also with the last packet of a connection that seems to be
   made, and would be asked again after a second only. */
static const uint64_t first_answer_ns = 250000000u, longest_answer_ns = 5000000000u;
/* Each round takes so long, so a port is not visited more often. */
static const uint64_t first_pause_ns = 5000000u, longest_pause_ns = 500000000u;
/* Rank 0 sends a challenge as soon as it can. */
static const uint64_t silence_ns = 200000000u, handshake_timeout_ns = 10000000000u;
/* Another job's rank 0 may hold a port of this job; this job's own is found soon. */
static const uint64_t refusals_ns = 5000000000u;
enum { ALL_PORTS_EACH = 8 };

/* Rank 0, as a leaf knows it. */
struct found {
	int fd;
	char host[DDP_AUTH_HOST_BYTES];
};

struct port {
	int fd;            /* -1: to be tried in the next round */
	int address;       /* which of the rendezvous's is tried */
	bool connected;
	bool foreign;      /* something that is not this step's rank 0 has answered there */
	bool stalled;      /* a handshake has begun there, and has not ended in time */
	uint64_t since_ns; /* connecting, or connected */
	ddp_challenge challenge;
	ddp_hello hello;   /* the answer to it */
	ddp_verdict verdict;
	size_t got;        /* of the challenge, and of the verdict behind it */
};

struct search {
	const ddp_rendezvous *rendezvous;
	const ddp_job *job;
	const ddp_key *key;
	pid_t agent;         /* of torchrun; 0: none */
	uint64_t start_ns, deadline_ns;
	struct port port[DDP_RENDEZVOUS_PORTS];
	uint64_t refused_ns; /* when a rank 0 first did not share the key; 0: never */
	char refusal[400];
	unsigned round;
	int last;            /* port that was attended */
	bool dropped;        /* by who had sent a challenge: a flooded rank 0 drops the oldest connections */
	char reason[400];    /* why the first port was none, or what another one said */
	struct found *found;
};

static const char *where_is(const struct search *search, int index, char where[DDP_WHERE_MAX])
{
	return ddp_rendezvous_where(search->rendezvous, index, where);
}

static void leave(struct port *port)
{
	close(port->fd);
	port->fd = -1;
	port->connected = false;
	port->got = 0;
}

/* Keeps this thread's message for the end of the search. */
static ddp_status go_on(struct search *search, int index)
{
	if (index == 0 && !search->port[0].foreign)
		snprintf(search->reason, sizeof(search->reason), "%s", ddp_last_error());
	return DDP_ERR_PEER;
}

static ddp_status go_on_beside_foreign(struct search *search, int index)
{
	search->port[index].foreign = true;
	snprintf(search->reason, sizeof(search->reason), "%s", ddp_last_error());
	return DDP_ERR_PEER;
}

static ddp_status refused(const char *where)
{
	return ddp_fail(DDP_ERR_AUTH, "rank 0 at %s did not accept this rank's key: DDP_KEY is not the same "
	                "on all ranks of the step, or another job's rank 0 holds the port", where);
}

/* Rank 0 is there once it has shown in its verdict that it holds the key. */
static ddp_status check_verdict(struct search *search, int index)
{
	struct port *port = &search->port[index];
	char where[DDP_WHERE_MAX], ends[DDP_ENDS_TEXT];

	where_is(search, index, where);
	if (ddp_verdict_is_refusal(&port->verdict))
		return refused(where);
	if (ddp_verdict_is_about_ends(&port->verdict))
		return ddp_fail(DDP_ERR_AUTH, "rank 0 at %s sees other addresses of this connection than this rank, "
		                "which connected from %s: a NAT, or a program that relays, stands between (man 3 "
		                "libddp, SECURITY)", where, ddp_ends_show(&port->hello.ends, ends));
	if (ddp_verdict_check(search->key, &port->hello, &port->verdict) != DDP_OK)
		return ddp_fail(DDP_ERR_AUTH, "what answers at %s does not hold this step's key: it is not "
		                "rank 0 of this step", where);
	port->verdict.host[sizeof(port->verdict.host) - 1] = '\0';
	snprintf(search->found->host, sizeof(search->found->host), "%s", port->verdict.host);
	search->found->fd = port->fd;
	port->fd = -1;
	return DDP_OK;
}

static ddp_status end_handshake(struct search *search, int index)
{
	const ddp_status status = check_verdict(search, index);

	if (status == DDP_OK)
		return DDP_OK;
	leave(&search->port[index]);
	if (search->refused_ns == 0)
		search->refused_ns = ddp_now_ns();
	snprintf(search->refusal, sizeof(search->refusal), "%s", ddp_last_error());
	return go_on_beside_foreign(search, index);
}

/* The present error is why the connection serves no more. */
static ddp_status lose_connection(struct search *search, int index)
{
	struct port *port = &search->port[index];
	char where[DDP_WHERE_MAX];

	if (port->got >= sizeof(port->challenge)) {
		search->dropped = true;
		ddp_fail_context(DDP_ERR_PEER, "rank 0 at %s did not end the handshake", where_is(search, index, where));
	}
	leave(port);
	return go_on(search, index);
}

/* The buffer of a fresh connection holds these few bytes. */
static ddp_status answer_challenge(struct search *search, int index)
{
	struct port *port = &search->port[index];
	const ddp_ends ends = ddp_ends_of(port->fd, false);
	ddp_status status = ddp_hello_make(search->key, &port->challenge, &ends, search->job, &port->hello);

	if (status != DDP_OK)
		return status;
	if (send(port->fd, &port->hello, sizeof(port->hello), MSG_NOSIGNAL) == (ssize_t)sizeof(port->hello))
		return DDP_ERR_PEER;
	ddp_fail(DDP_ERR_PEER, "the connection broke");
	return lose_connection(search, index);
}

/* One read of what the challenge or the verdict lacks. */
static ssize_t read_some(struct port *port)
{
	const size_t first = sizeof(port->challenge);

	return port->got < first
	       ? recv(port->fd, (char *)&port->challenge + port->got, first - port->got, 0)
	       : recv(port->fd, (char *)&port->verdict + port->got - first, first + sizeof(port->verdict) - port->got, 0);
}

/* No port is waited for alone: whoever holds one may begin a handshake and be silent then. */
static ddp_status continue_handshake(struct search *search, int index)
{
	struct port *port = &search->port[index];
	char where[DDP_WHERE_MAX];
	const bool begun = port->got >= sizeof(port->challenge);
	const ssize_t got = read_some(port);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return DDP_ERR_PEER;
	if (got < 0)
		ddp_fail_errno(DDP_ERR_PEER, errno, "the connection to %s broke", where_is(search, index, where));
	else if (got == 0)
		ddp_fail(DDP_ERR_PEER, "what listens at %s closed the connection without a handshake",
		         where_is(search, index, where));
	if (got <= 0)
		return lose_connection(search, index);
	port->got += (size_t)got;
	if (begun)
		return port->got == sizeof(port->challenge) + sizeof(port->verdict) ? end_handshake(search, index)
		                                                                    : DDP_ERR_PEER;
	if (!ddp_challenge_may_be_ours(&port->challenge, port->got)) {
		leave(port);
		ddp_fail(DDP_ERR_AUTH, "what answers at %s is not rank 0 of a libddp job: another program "
		         "holds the port", where_is(search, index, where));
		return go_on_beside_foreign(search, index);
	}
	return port->got == sizeof(port->challenge) ? answer_challenge(search, index) : DDP_ERR_PEER;
}

static ddp_status begin_handshake(struct search *search, int index)
{
	struct port *port = &search->port[index];

	port->connected = true;
	port->since_ns = ddp_now_ns();
	if (!search->rendezvous->same_user || ddp_socket_is_same_user(port->fd))
		return DDP_ERR_PEER;
	return ddp_fail(DDP_ERR_AUTH, "%s belongs to another user's process", search->rendezvous->where);
}

static void not_connected(struct search *search, int index, int error)
{
	char where[DDP_WHERE_MAX];

	ddp_fail_errno(DDP_ERR_PEER, error, "cannot connect to rank 0 at %s", where_is(search, index, where));
	go_on(search, index);
}

/* Begins to connect at the port's present address, or at those behind it. */
static ddp_status connect_on(struct search *search, int index)
{
	struct port *port = &search->port[index];

	for (; port->address < search->rendezvous->count; port->address++) {
		int error;
		ddp_status status = ddp_rendezvous_connect(search->rendezvous, index, port->address,
		                                           &port->fd, &error);
		if (status != DDP_OK)
			return status;
		if (error == 0)
			return begin_handshake(search, index);
		if (error == EINPROGRESS) {
			port->since_ns = ddp_now_ns();
			return DDP_ERR_PEER;
		}
		not_connected(search, index, error);
	}
	return DDP_ERR_PEER;
}

static ddp_status connect_elsewhere(struct search *search, int index, int error)
{
	struct port *port = &search->port[index];

	leave(port);
	not_connected(search, index, error);
	port->address++;
	return connect_on(search, index);
}

/* All these return DDP_ERR_PEER for "go on" and DDP_OK once rank 0 is found. */
static ddp_status attend(struct search *search, int index)
{
	struct port *port = &search->port[index];

	if (port->connected)
		return continue_handshake(search, index);
	const int error = ddp_rendezvous_connected(port->fd);
	return error == 0 ? begin_handshake(search, index) : connect_elsewhere(search, index, error);
}

/* Only one port behind the first one is open: rank 0's own choice. The ports behind the first one
   count if the first one is another program's. */
static bool is_wanted(const struct search *search, int index)
{
	const struct port *first = &search->port[0];

	return index == 0 || first->foreign || first->stalled || search->round % ALL_PORTS_EACH == ALL_PORTS_EACH - 1 ||
	       (first->connected && ddp_now_ns() - first->since_ns > silence_ns);
}

static uint64_t answer_timeout_ns(const struct search *search)
{
	const uint64_t part_ns = (ddp_now_ns() - search->start_ns) / 4;

	return part_ns < first_answer_ns ? first_answer_ns : part_ns < longest_answer_ns ? part_ns : longest_answer_ns;
}

static bool is_stalled(const struct port *port)
{
	return port->connected && port->got > 0 && ddp_now_ns() - port->since_ns > handshake_timeout_ns;
}

static void leave_stalled(struct search *search, int index)
{
	char where[DDP_WHERE_MAX];

	search->port[index].stalled = true;
	leave(&search->port[index]);
	ddp_fail(DDP_ERR_TIMEOUT, "what answers at %s began a handshake and did not end it within %.0f s",
	         where_is(search, index, where), (double)handshake_timeout_ns * 1e-9);
	go_on(search, index);
}

static ddp_status begin_round(struct search *search)
{
	const uint64_t timeout_ns = answer_timeout_ns(search);
	ddp_status status = DDP_ERR_PEER;

	for (int i = 0; i < search->rendezvous->ports.count && status == DDP_ERR_PEER; i++) {
		struct port *port = &search->port[i];
		if (is_stalled(port))
			leave_stalled(search, i);
		const bool late = port->fd >= 0 && port->got == 0 && ddp_now_ns() - port->since_ns > timeout_ns;
		if (late && port->connected) {
			leave(port);
			status = connect_on(search, i);
		} else if (late) {
			status = connect_elsewhere(search, i, ETIMEDOUT);
		} else if (port->fd < 0 && is_wanted(search, i)) {
			port->address = 0;
			status = connect_on(search, i);
		}
	}
	search->round++;
	return status;
}

/* The index of a port of which poll() tells something by then, or -1. They take turns: one that
   has always something to say keeps no other from being heard. */
static int await_port(struct search *search, uint64_t until_ns)
{
	struct pollfd ready[DDP_RENDEZVOUS_PORTS];
	const int count = search->rendezvous->ports.count;

	for (int i = 0; i < count; i++)
		ready[i] = (struct pollfd){ .fd = search->port[i].fd,
		                            .events = search->port[i].connected ? POLLIN : POLLOUT };
	if (poll(ready, (nfds_t)count, ddp_poll_ms(until_ns, 1000)) <= 0)
		return -1;
	for (int i = 1; i <= count; i++) {
		const int index = (search->last + i) % count;
		if (ready[index].revents != 0)
			return search->last = index;
	}
	return -1;
}

static ddp_status search_round(struct search *search, uint64_t pause_ns)
{
	uint64_t until_ns = ddp_now_ns() + pause_ns;
	ddp_status status = begin_round(search);

	if (until_ns > search->deadline_ns)
		until_ns = search->deadline_ns;
	while (status == DDP_ERR_PEER && ddp_now_ns() < until_ns) {
		const int index = await_port(search, until_ns);
		if (index >= 0)
			status = attend(search, index);
	}
	if (status == DDP_ERR_PEER && ddp_torchrun_check(search->job, search->agent) != DDP_OK)
		return DDP_ERR_STATE;
	if (status == DDP_ERR_PEER && search->refused_ns != 0 &&
	    ddp_now_ns() - search->refused_ns > refusals_ns)
		return ddp_fail(DDP_ERR_AUTH, "%s", search->refusal);
	return status;
}

/* A connection of just now may yet be closed, as those before it were. */
static bool is_silent(const struct search *search)
{
	const struct port *first = &search->port[0];

	return first->connected && (search->reason[0] == '\0' || ddp_now_ns() - first->since_ns > silence_ns);
}

static ddp_status not_found(struct search *search)
{
	const ddp_rendezvous *rendezvous = search->rendezvous;
	const struct port *first = &search->port[0];
	char own[64] = "", where[DDP_WHERE_MAX];
	bool answered = false;

	for (int i = 0; i < rendezvous->ports.count; i++)
		answered |= search->port[i].foreign;
	if (first->fd >= 0 && !first->connected)
		not_connected(search, 0, ETIMEDOUT);
	if (rendezvous->ports.count > 1)
		snprintf(own, sizeof(own), " (or to %d, %d, ...)", rendezvous->ports.port[1],
		         rendezvous->ports.port[2]);
	ddp_status status = answered ? DDP_ERR_AUTH : DDP_ERR_TIMEOUT;
	ddp_fail(status, "rank %d on %s: rank 0 did not come to %s%s within %.1f s: %s; %s",
	         search->job->rank, search->job->hostname, where_is(search, 0, where), own,
	         ddp_seconds_since(search->start_ns),
	         is_silent(search) && !answered ? "what listens there says nothing" : search->reason,
	         rendezvous->addresses[0].ss_family == AF_UNIX
	         ? "did rank 0 call ddp_init() as often as this rank? Each ddp_init() is one of all ranks"
	         : "did rank 0 start, and does a firewall stand between?");
	return ddp_error_about(status, 0);
}

/* Searches until rank 0 is found and both ends have proven the key. *found is written on success only. */
static ddp_status find_centre(const ddp_job *job, const ddp_key *key, const ddp_rendezvous *rendezvous,
                              uint64_t deadline_ns, struct found *found)
{
	struct search search = { .rendezvous = rendezvous, .job = job, .key = key, .found = found,
	                         .agent = ddp_torchrun_agent(), .start_ns = ddp_now_ns(), .deadline_ns = deadline_ns };
	uint64_t pause_ns = first_pause_ns;
	ddp_status status;

	for (int i = 0; i < DDP_RENDEZVOUS_PORTS; i++)
		search.port[i].fd = -1;
	while ((status = search_round(&search, pause_ns)) == DDP_ERR_PEER && ddp_now_ns() < deadline_ns) {
		pause_ns = search.dropped ? first_pause_ns : pause_ns * 2 < longest_pause_ns ? pause_ns * 2 : longest_pause_ns;
		search.dropped = false;
	}
	if (status == DDP_ERR_PEER)
		status = not_found(&search);
	for (int i = 0; i < rendezvous->ports.count; i++)
		if (search.port[i].fd >= 0)
			close(search.port[i].fd);
	return status;
}

/* ---- the exchange -------------------------------------------------------------------- */

/* Rank 0 knows who is missing; a leaf waits a little longer for its word. */
static const uint64_t grace_ns = 2000000000u;

struct leaf {
	ddp_wireup base;
	struct found centre;
	uint32_t sequence;
	ddp_node_table table; /* of its node */
};

/* The present error, with who lost whom; about rank 0 only if it is rank 0 that is missed. */
static ddp_status lost_centre(const struct leaf *leaf, ddp_status status, uint64_t start_ns)
{
	const ddp_job *job = leaf->base.job;

	if (status == DDP_ERR_TIMEOUT)
		ddp_fail(status, "rank %d on %s: rank 0 on %s has not gathered all ranks after %.1f s", job->rank,
		         job->hostname, leaf->centre.host, ddp_seconds_since(start_ns));
	else if (status == DDP_ERR_PEER)
		ddp_fail_context(status, "rank %d on %s lost rank 0 on %s during wire-up", job->rank, job->hostname,
		                 leaf->centre.host);
	else
		return ddp_fail_context(status, "rank %d on %s, during wire-up with rank 0 on %s", job->rank,
		                        job->hostname, leaf->centre.host);
	return ddp_error_about(status, 0);
}

static ddp_status read_frame(struct leaf *leaf, ddp_frame_reader *reader, uint64_t deadline_ns)
{
	bool complete = false;

	while (!complete) {
		void *at;
		size_t bytes;
		ddp_status status = ddp_frame_room(reader, &at, &bytes);
		if (status == DDP_OK)
			status = ddp_socket_await(leaf->centre.fd, deadline_ns, leaf->base.silence_ms);
		if (status == DDP_OK)
			status = ddp_socket_read_some(leaf->centre.fd, at, bytes, deadline_ns, &bytes);
		if (status == DDP_OK)
			status = ddp_frame_filled(reader, bytes, &complete);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static ddp_status send_frame(struct leaf *leaf, enum ddp_frame_kind kind, const void *payload, size_t bytes,
                             uint64_t deadline_ns)
{
	unsigned char header[DDP_FRAME_HEADER_BYTES];

	ddp_frame_header(header, kind, leaf->sequence, bytes);
	ddp_status status = ddp_socket_write(leaf->centre.fd, header, sizeof(header), deadline_ns);
	return status == DDP_OK ? ddp_socket_write(leaf->centre.fd, payload, bytes, deadline_ns) : status;
}

static ddp_status send_done(struct leaf *leaf, bool done, uint64_t deadline_ns)
{
	const unsigned char answer = done;

	return send_frame(leaf, DDP_FRAME_DONE, &answer, sizeof(answer), deadline_ns);
}

static ddp_status wrong_frame(const struct leaf *leaf, const ddp_frame_reader *reader)
{
	return ddp_fail(DDP_ERR_FORMAT, "rank 0 answers exchange %u with message %u of exchange %u and %llu bytes",
	                leaf->sequence, reader->kind, reader->sequence, (unsigned long long)reader->bytes);
}

/* Does what rank 0 wants about memory that the ranks of this node share. */
static ddp_status share_memory(struct leaf *leaf, const ddp_frame_reader *reader, uint64_t deadline_ns)
{
	ddp_node_table *table = &leaf->table;
	ddp_segment_offer leader;

	if (reader->kind == DDP_FRAME_ALL)
		return send_done(leaf, ddp_node_table_write(table, reader->payload, reader->bytes), deadline_ns);
	if (reader->kind == DDP_FRAME_ASK) {
		ddp_node_table_offer(table);
		return send_frame(leaf, DDP_FRAME_OFFER, &table->offer, sizeof(table->offer), deadline_ns);
	}
	if (reader->bytes != sizeof(leader))
		return wrong_frame(leaf, reader);
	memcpy(&leader, reader->payload, sizeof(leader));
	return send_done(leaf, ddp_node_table_join(table, &leader), deadline_ns);
}

/* Reads frames up to the last one of the exchange, which the caller resets. */
static ddp_status read_last_frame(struct leaf *leaf, ddp_frame_reader *reader, uint64_t deadline_ns)
{
	for (;;) {
		ddp_status status = read_frame(leaf, reader, deadline_ns);
		const bool all = reader->kind == DDP_FRAME_ALL;
		if (status == DDP_OK && reader->kind != DDP_FRAME_ERROR && reader->sequence != leaf->sequence)
			return wrong_frame(leaf, reader);
		if (status != DDP_OK ||
		    (reader->kind != DDP_FRAME_ASK && reader->kind != DDP_FRAME_JOIN && !(all && leaf->table.leads)))
			return status;
		status = share_memory(leaf, reader, deadline_ns);
		/* If rank 0 has closed, it has said why before. */
		if (status != DDP_ERR_PEER && (status != DDP_OK || all))
			return status;
		ddp_frame_reset(reader);
	}
}

static ddp_status read_table(const struct leaf *leaf, const ddp_frame_reader *reader, void **blobs, size_t *sizes)
{
	unsigned char *payload;
	uint64_t bytes;

	if (reader->bytes != sizeof(bytes))
		return wrong_frame(leaf, reader);
	memcpy(&bytes, reader->payload, sizeof(bytes));
	bytes = le64toh(bytes);
	if (bytes > (uint64_t)ddp_frame_limit(DDP_FRAME_ALL, leaf->base.job->world_size))
		return wrong_frame(leaf, reader);
	ddp_status status = ddp_node_table_read(&leaf->table, bytes, &payload);
	if (status != DDP_OK)
		return status;
	status = ddp_frame_unpack_all(payload, bytes, leaf->base.job->world_size, blobs, sizes);
	free(payload);
	return status;
}

static ddp_status read_answer(struct leaf *leaf, const ddp_frame_reader *reader, void **blobs, size_t *sizes)
{
	if (reader->kind == DDP_FRAME_ERROR)
		return ddp_frame_raise_error(reader->payload, reader->bytes);
	if (reader->kind == DDP_FRAME_READ)
		return read_table(leaf, reader, blobs, sizes);
	if (reader->kind != DDP_FRAME_ALL)
		return wrong_frame(leaf, reader);
	return ddp_frame_unpack_all(reader->payload, reader->bytes, leaf->base.job->world_size, blobs, sizes);
}

static ddp_status leaf_exchange(ddp_wireup *wireup, const void *blob, size_t bytes,
                                uint64_t deadline_ns, void **blobs, size_t *sizes)
{
	struct leaf *leaf = (struct leaf *)wireup;
	ddp_frame_reader reader = { .world_size = leaf->base.job->world_size };
	uint64_t start_ns = ddp_now_ns();

	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	leaf->sequence++;
	ddp_status status = send_frame(leaf, DDP_FRAME_BLOB, blob, bytes, deadline_ns);
	/* Rank 0 may have closed, but have said why before. */
	if (status == DDP_OK || status == DDP_ERR_PEER)
		status = read_last_frame(leaf, &reader, deadline_ns + grace_ns);
	status = status == DDP_OK ? read_answer(leaf, &reader, blobs, sizes)
	                          : lost_centre(leaf, status, start_ns);
	ddp_frame_reset(&reader);
	return status;
}

static void leaf_close(ddp_wireup *wireup)
{
	struct leaf *leaf = (struct leaf *)wireup;

	if (leaf->centre.fd >= 0)
		close(leaf->centre.fd);
	ddp_node_table_close(&leaf->table);
	free(leaf);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { .name = "tcp", .exchange = leaf_exchange, .close = leaf_close };
static const ddp_wireup_ops local_ops = { .name = "local", .exchange = leaf_exchange, .close = leaf_close };

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup)
{
	struct leaf *leaf = calloc(1, sizeof(*leaf));

	if (leaf == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	leaf->base.ops = local ? &local_ops : &tcp_ops;
	leaf->base.job = job;
	leaf->centre.fd = -1;
	leaf->table = (ddp_node_table){ .fd = -1, .offer.fd = -1 };
	ddp_status status = find_centre(job, key, rendezvous, deadline_ns, &leaf->centre);
	if (status != DDP_OK) {
		leaf_close(&leaf->base);
		return status;
	}
	*wireup = &leaf->base;
	return DDP_OK;
}
