#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "wireup/auth.h"
#include "wireup/frame.h"
#include "wireup/star.h"

/* Rank 0 knows who is missing; a leaf waits a little longer for its word. */
static const uint64_t grace_ns = 2000000000u;
/* One address that swallows packets must not keep the next from being tried. */
static const uint64_t connect_timeout_ns = 5000000000u, own_timeout_ns = 1000000000u;
static const uint64_t first_pause_ns = 5000000u, longest_pause_ns = 500000000u;

struct leaf {
	ddp_wireup base;
	int fd;
	uint32_t sequence;
	char centre_host[DDP_AUTH_HOST_BYTES];
};

/* Rank 0's challenge is awaited at several ports at once. */
struct search {
	const ddp_rendezvous *rendezvous;
	uint64_t start_ns, deadline_ns;
	int fd[DDP_RENDEZVOUS_PORTS];            /* connected, but silent; -1: not connected */
	uint64_t since_ns[DDP_RENDEZVOUS_PORTS]; /* of fd */
	bool foreign[DDP_RENDEZVOUS_PORTS];      /* another program has answered there */
	uint64_t refused_ns;                     /* when a port of libddp's own first refused the key; 0: never */
	unsigned round;
	char reason[320];                        /* why the first port was none, or what another one said */
};

/* Rank 0 greets who comes as soon as it can. */
static const uint64_t silence_ns = 200000000u, handshake_timeout_ns = 10000000000u;
/* Another job's rank 0 may hold a port of ours; with the right key, ours is found soon. */
static const uint64_t refusals_ns = 5000000000u;
enum { ALL_PORTS_EACH = 8 };

static ddp_status refused(const char *where)
{
	return ddp_fail(DDP_ERR_AUTH, "rank 0 at %s did not accept this rank's key: DDP_KEY must be the "
	                "same on all ranks of a step", where);
}

/* DDP_ERR_PEER if the connection ended early, so that a new one may do. *foreign: no libddp answers. */
static ddp_status shake_hands(struct leaf *leaf, const ddp_key *key, const char *where,
                              uint64_t deadline_ns, bool *foreign)
{
	ddp_challenge challenge;
	ddp_hello hello;
	ddp_verdict verdict;

	ddp_status status = ddp_socket_read(leaf->fd, &challenge, sizeof(challenge), deadline_ns);
	if (status != DDP_OK)
		return status;
	*foreign = !ddp_challenge_is_ours(&challenge);
	if (*foreign)
		return ddp_fail(DDP_ERR_AUTH, "what answers at %s is not rank 0 of a libddp job: another "
		                "program holds the port", where);
	status = ddp_hello_make(key, &challenge, leaf->base.job, &hello);
	if (status == DDP_OK)
		status = ddp_socket_write(leaf->fd, &hello, sizeof(hello), deadline_ns);
	if (status == DDP_OK)
		status = ddp_socket_read(leaf->fd, &verdict, sizeof(verdict), deadline_ns);
	if (status != DDP_OK)
		return status;
	if (ddp_verdict_is_refusal(&verdict))
		return refused(where);
	if (ddp_verdict_check(key, &hello, &verdict) != DDP_OK)
		return ddp_fail(DDP_ERR_AUTH, "what answers at %s does not hold this step's key: it is not "
		                "rank 0 of this step", where);
	verdict.host[sizeof(verdict.host) - 1] = '\0';
	snprintf(leaf->centre_host, sizeof(leaf->centre_host), "%s", verdict.host);
	return DDP_OK;
}

/* Of the ports behind the first one, only rank 0's own choice is open; some firewalls swallow
   what goes to the others. They count where the first one is another program's. */
static bool is_wanted(const struct search *search, int index)
{
	const uint64_t now = ddp_now_ns();

	return index == 0 || search->foreign[0] || search->round % ALL_PORTS_EACH == ALL_PORTS_EACH - 1 ||
	       (search->fd[0] >= 0 && now - search->since_ns[0] > silence_ns);
}

static ddp_status connect_port(struct search *search, int index)
{
	ddp_status status = ddp_rendezvous_connect(search->rendezvous, index,
	                                           index == 0 ? connect_timeout_ns : own_timeout_ns,
	                                           search->deadline_ns, &search->fd[index]);

	if (status != DDP_OK) {
		search->fd[index] = -1;
		if (index == 0 && !search->foreign[0])
			snprintf(search->reason, sizeof(search->reason), "%s", ddp_last_error());
		return status == DDP_ERR_PEER ? DDP_OK : status;
	}
	search->since_ns[index] = ddp_now_ns();
	if (!search->rendezvous->same_user || ddp_socket_is_same_user(search->fd[index]))
		return DDP_OK;
	return ddp_fail(DDP_ERR_AUTH, "%s belongs to another user's process", search->rendezvous->where);
}

static ddp_status connect_ports(struct search *search)
{
	ddp_status status = DDP_OK;

	for (int i = 0; i < search->rendezvous->ports.count && status == DDP_OK; i++)
		if (search->fd[i] < 0 && is_wanted(search, i))
			status = connect_port(search, i);
	return status;
}

/* Waits until a connection can be read, or `pause_ns` has passed; its index, or -1. */
static int wait_for_answer(const struct search *search, uint64_t pause_ns)
{
	struct pollfd ready[DDP_RENDEZVOUS_PORTS];
	const int count = search->rendezvous->ports.count;

	for (int i = 0; i < count; i++)
		ready[i] = (struct pollfd){ .fd = search->fd[i], .events = POLLIN };
	if (poll(ready, (nfds_t)count, ddp_poll_ms(search->deadline_ns, (int)(pause_ns / 1000000u))) <= 0)
		return -1;
	for (int i = 0; i < count; i++)
		if (ready[i].revents != 0)
			return i;
	return -1;
}

/* What an error of the handshake at a port means for the search: DDP_ERR_PEER: go on. */
static ddp_status judge(struct search *search, int index, ddp_status status, bool foreign)
{
	const uint64_t now = ddp_now_ns();

	if (status == DDP_ERR_PEER || status == DDP_ERR_TIMEOUT)
		return DDP_ERR_PEER;
	if (status != DDP_ERR_AUTH)
		return status;
	search->foreign[index] = true;
	snprintf(search->reason, sizeof(search->reason), "%s", ddp_last_error());
	if (foreign)
		return DDP_ERR_PEER;
	if (search->refused_ns == 0)
		search->refused_ns = now;
	const bool master = index == 0 && search->rendezvous->ports.master_first;
	return master || now - search->refused_ns > refusals_ns ? status : DDP_ERR_PEER;
}

/* One round; DDP_ERR_PEER: another one may succeed. */
static ddp_status search_once(struct search *search, struct leaf *leaf, const ddp_key *key,
                              uint64_t pause_ns)
{
	uint64_t until_ns = ddp_now_ns() + handshake_timeout_ns;
	char where[DDP_WHERE_MAX];
	bool foreign = false;
	ddp_status status = connect_ports(search);

	if (status != DDP_OK)
		return status;
	search->round++;
	const int index = wait_for_answer(search, pause_ns);
	if (index < 0)
		return DDP_ERR_PEER;
	leaf->fd = search->fd[index];
	search->fd[index] = -1;
	status = shake_hands(leaf, key, ddp_rendezvous_where(search->rendezvous, index, where),
	                     until_ns < search->deadline_ns ? until_ns : search->deadline_ns, &foreign);
	if (status == DDP_OK)
		return DDP_OK;
	close(leaf->fd);
	leaf->fd = -1;
	return judge(search, index, status, foreign);
}

static void search_end(struct search *search)
{
	for (int i = 0; i < search->rendezvous->ports.count; i++)
		if (search->fd[i] >= 0)
			close(search->fd[i]);
}

static ddp_status not_found(const struct search *search, const ddp_job *job)
{
	const ddp_rendezvous *rendezvous = search->rendezvous;
	char own[64] = "", where[DDP_WHERE_MAX];
	bool answered = false;

	for (int i = 0; i < rendezvous->ports.count; i++)
		answered |= search->foreign[i];
	if (rendezvous->ports.count > 1)
		snprintf(own, sizeof(own), " (or to %d, %d, ...)", rendezvous->ports.port[1],
		         rendezvous->ports.port[2]);
	return ddp_fail(answered ? DDP_ERR_AUTH : DDP_ERR_TIMEOUT, "rank %d on %s: rank 0 did not come to "
	                "%s%s within %.1f s: %s; %s",
	                job->rank, job->hostname, ddp_rendezvous_where(rendezvous, 0, where), own,
	                ddp_seconds_since(search->start_ns),
	                search->fd[0] >= 0 && !answered ? "what listens there says nothing"
	                                                : search->reason,
	                rendezvous->addresses[0].ss_family == AF_UNIX
	                ? "did rank 0 call ddp_init() as often as this rank? Each ddp_init() is one of all ranks"
	                : "did rank 0 start, and does a firewall stand between?");
}

static ddp_status join(struct leaf *leaf, const ddp_key *key, const ddp_rendezvous *rendezvous,
                       uint64_t deadline_ns)
{
	struct search search = { .rendezvous = rendezvous, .start_ns = ddp_now_ns(),
	                         .deadline_ns = deadline_ns };
	uint64_t pause_ns = first_pause_ns;
	ddp_status status;

	for (int i = 0; i < DDP_RENDEZVOUS_PORTS; i++)
		search.fd[i] = -1;
	/* Rank 0 may start later than we do. */
	while ((status = search_once(&search, leaf, key, pause_ns)) == DDP_ERR_PEER &&
	       ddp_now_ns() < deadline_ns)
		pause_ns = pause_ns * 2 < longest_pause_ns ? pause_ns * 2 : longest_pause_ns;
	if (status == DDP_ERR_PEER)
		status = not_found(&search, leaf->base.job);
	search_end(&search);
	return status;
}

/* The present error, with who lost whom. */
static ddp_status lost_centre(const struct leaf *leaf, ddp_status status, uint64_t start_ns)
{
	if (status == DDP_ERR_TIMEOUT)
		return ddp_fail(status, "rank %d on %s: rank 0 on %s has not gathered all ranks after %.1f s",
		                leaf->base.job->rank, leaf->base.job->hostname, leaf->centre_host,
		                ddp_seconds_since(start_ns));
	return ddp_fail_context(status, "rank %d on %s lost rank 0 on %s during wire-up",
	                        leaf->base.job->rank, leaf->base.job->hostname, leaf->centre_host);
}

static ddp_status read_frame(struct leaf *leaf, ddp_frame_reader *reader, uint64_t deadline_ns)
{
	bool complete = false;

	while (!complete) {
		void *at;
		size_t bytes;
		ddp_status status = ddp_frame_room(reader, &at, &bytes);
		if (status == DDP_OK)
			status = ddp_socket_read_some(leaf->fd, at, bytes, deadline_ns, &bytes);
		if (status == DDP_OK)
			status = ddp_frame_filled(reader, bytes, &complete);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static ddp_status send_blob(struct leaf *leaf, const void *blob, size_t bytes, uint64_t deadline_ns)
{
	unsigned char header[DDP_FRAME_HEADER_BYTES];

	ddp_frame_header(header, DDP_FRAME_BLOB, leaf->sequence, bytes);
	ddp_status status = ddp_socket_write(leaf->fd, header, sizeof(header), deadline_ns);
	return status == DDP_OK ? ddp_socket_write(leaf->fd, blob, bytes, deadline_ns) : status;
}

static ddp_status take_answer(struct leaf *leaf, const ddp_frame_reader *reader, void **blobs,
                              size_t *sizes)
{
	if (reader->kind == DDP_FRAME_ERROR)
		return ddp_frame_raise_error(reader->payload, reader->bytes);
	if (reader->kind != DDP_FRAME_ALL || reader->sequence != leaf->sequence)
		return ddp_fail(DDP_ERR_FORMAT, "rank 0 answers exchange %u with message %u of exchange %u",
		                leaf->sequence, reader->kind, reader->sequence);
	return ddp_frame_unpack_all(reader->payload, reader->bytes, leaf->base.job->world_size, blobs,
	                            sizes);
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
	ddp_status status = send_blob(leaf, blob, bytes, deadline_ns);
	/* Rank 0 may have closed, but have said why before. */
	if (status == DDP_OK || status == DDP_ERR_PEER)
		status = read_frame(leaf, &reader, deadline_ns + grace_ns);
	status = status == DDP_OK ? take_answer(leaf, &reader, blobs, sizes)
	                          : lost_centre(leaf, status, start_ns);
	ddp_frame_reset(&reader);
	return status;
}

static void leaf_close(ddp_wireup *wireup)
{
	struct leaf *leaf = (struct leaf *)wireup;

	if (leaf->fd >= 0)
		close(leaf->fd);
	free(leaf);
}

/* Two names for one behaviour: by which way the ranks met. */
static const ddp_wireup_ops tcp_ops = { "tcp", leaf_exchange, leaf_close };
static const ddp_wireup_ops local_ops = { "local", leaf_exchange, leaf_close };

ddp_status ddp_star_leaf_open(bool local, const ddp_job *job, const ddp_key *key,
                              const ddp_rendezvous *rendezvous, uint64_t deadline_ns,
                              ddp_wireup **wireup)
{
	struct leaf *leaf = calloc(1, sizeof(*leaf));

	if (leaf == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	leaf->base.ops = local ? &local_ops : &tcp_ops;
	leaf->base.job = job;
	leaf->fd = -1;
	ddp_status status = join(leaf, key, rendezvous, deadline_ns);
	if (status != DDP_OK) {
		leaf_close(&leaf->base);
		return status;
	}
	*wireup = &leaf->base;
	return DDP_OK;
}
