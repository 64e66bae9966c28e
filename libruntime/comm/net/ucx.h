/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/ucx: what a network over UCX is made of, and what its files call of each other; for these files only.
   message.c makes and sends messages, receive.c takes those with data, connect.c makes connections, failure.c has what
   ranks tell each other of failures, and net.c lets all of it move. open.c and close.c begin and end it. */
#pragma once

#include <ucp/api/ucp.h>

#include "comm/net/guard.h"
#include "comm/net/net.h"

/* ---- what travels: headers of active messages ------------------------------------- */

enum { DDP_AM_DATA, DDP_AM_FAILURE, DDP_AM_HANDSHAKE, DDP_AM_INQUIRY, DDP_AM_CREDIT, DDP_AM_CLOSED,
       DDP_AM_SILENCE, DDP_AM_UNUSED, DDP_AM_IDS };

/* Begins each; nothing else of a message is read unless the token is that of its source. */
typedef struct seal {
	ddp_token token;
	int32_t source; /* rank in the world */
	uint32_t unused;
} seal;

enum { DDP_SEAL_BYTES = DDP_TOKEN_BYTES + sizeof(int32_t) }; /* that are used */

/* ddp_ucx_header_write() tells how it travels; those below travel as they are. */
typedef struct data_header {
	seal seal;
	uint64_t id; /* of the communicator, as in those below */
	ddp_envelope envelope;
	uint64_t charge; /* of the credit that it is sent on; 0: none */
} data_header;

enum {
	DDP_HEADER_WORDS = 7,
	DDP_HEADER_MIN = DDP_SEAL_BYTES + (DDP_HEADER_WORDS + 1) / 2,
	DDP_HEADER_MAX = DDP_HEADER_MIN + DDP_HEADER_WORDS * 8
};

typedef struct failure_header {
	seal seal;
	uint64_t id;
	ddp_failure failure;
} failure_header;

/* The first messages of a connection, and the last ones. User memory is handed to UCX when both sides know that the
   other hears them, as UCX 1.13 cannot give up a connection that is being made. */
typedef struct handshake_header {
	seal seal;
	uint32_t heard; /* the sender has had a handshake of the receiver's */
	uint32_t ready; /* the sender's connections are made (comm/group/build) */
	uint32_t leaves; /* this is the sender's last message */
	uint32_t released; /* the sender has had the receiver's last one */
} handshake_header;

/* A question of comm/wait/verdict, or the answer. */
typedef struct inquiry_header {
	seal seal;
	uint64_t id;
	int32_t rank; /* the sender's */
	uint32_t asks;
	uint32_t waits;
	int32_t names;
} inquiry_header;

/* Says how much was taken of all that the receiver of this has sent. */
typedef struct credit_header {
	seal seal;
	uint64_t taken_bytes;
} credit_header;

/* The sender has closed the communicator, or never had it. */
typedef struct closed_header {
	seal seal;
	uint64_t id;
} closed_header;

/* The sender knows that this rank's node is silent (comm/core/silence). */
typedef struct silence_header {
	seal seal;
	int32_t rank; /* in the job */
	int32_t silent_ms;
} silence_header;

/* Messages without data come whole. */
typedef union control_header {
	failure_header failure;
	handshake_header handshake;
	inquiry_header inquiry;
	credit_header credit;
	closed_header closed;
	silence_header silence;
} control_header;

/* ---- state of the process, under worker.lock --------------------------------------- */

/* A request of UCX's. It outlives the transfer if the communicator breaks. */
typedef struct ticket {
	struct ticket *next, **link;
	ddp_transfer *transfer; /* NULL: nobody is interested any more */
	struct connection *to;
	bool of_data;           /* it may refer to memory of the program's */
	alignas(8) unsigned char header[]; /* that is sent */
} ticket;

/* Why a connection is lost that was not begun: there was no descriptor for it here. */
#define DDP_UCX_NO_DESCRIPTOR UCS_ERR_EXCEEDS_LIMIT

typedef struct connection {
	struct ddp_worker *worker;
	int peer;               /* rank in the world */
	ucp_ep_h ep;
	void *address;          /* NULL: it is on this node */
	ddp_token ours, theirs; /* before messages to, and from the peer */
	atomic_int lost;        /* a ucs_status_t; UCS_OK: it is not */
	atomic_bool settled;    /* both hear each other */
	atomic_bool ready;      /* so says the peer */
	bool begun, made;       /* UCX makes its sockets to the peer; it has made them */
	bool hears_us, heard_sent, ready_said;
	bool released;          /* the peer has had all that was sent to it */
	bool silence_told;      /* the peer is its node's first rank, and others were told that the node is silent */
	/* These are sent when UCX's callbacks have ended: */
	struct connection *next_due;
	bool listed;            /* among worker.due */
	bool first_due, handshake_due, credit_due, release_due;
	uint64_t closed_due;    /* the id of a communicator that is not open here; 0: none */
	uint64_t sent_bytes, credited_bytes; /* to the peer, on credit; and taken, as it tells */
	uint64_t taken_bytes, told_bytes;    /* of the peer's; and as it was told */
	handshake_header handshakes[5]; /* of requests that may be under way */
} connection;

/* Takes an authentic header of this size from its source. */
typedef struct control {
	struct ddp_worker *worker;
	size_t bytes;
	void (*arrived)(connection *c, const control_header *header);
} control;

enum {
	DDP_NET_BUCKETS = 64,
	DDP_NET_SPARES = 32,
	DDP_NET_SPARE_BYTES = 4096 /* what a node of 8 ranks tells in comm/group/agreement among 1,000 ranks */
};

typedef struct ddp_worker {
	pthread_mutex_t lock;
	ddp_roster *roster;
	int users;             /* communicators, */
	atomic_int working;    /* and those among them that are not down */
	atomic_int making;     /* connections whose sockets UCX makes */
	ucp_context_h context;
	ucp_worker_h worker;
	atomic_bool ended;     /* there is no worker of UCX's any more */
	bool broken;           /* some communicator was */
	int event_fd;          /* of UCX */
	ddp_listeners listeners;
	int unfiltered;        /* an errno: why the kernel does not filter them; 0: it does */
	ddp_guard *guard;      /* of the listeners */
	const char *unguarded; /* why it cannot guard them; NULL: it can */
	ddp_place *peer_listeners; /* of the ranks of other nodes */
	ddp_own_sockets own_sockets;
	bool announced;
	ddp_share share;
	control controls[DDP_AM_IDS];
	int descriptors;       /* that connections with two ranks of each other node may take, and some */
	connection *due;
	ticket *tickets;       /* of no communicator, or of closed ones */
	size_t kept_bytes;     /* of kept_message */
	int unauthentic;       /* messages without a right token */
	alignas(16) unsigned char spares[DDP_NET_SPARES][DDP_NET_SPARE_BYTES]; /* of ddp_ucx_memory() */
	uint32_t spares_used;  /* a bit of each */
	struct ddp_beats *beats; /* NULL: nodes are not watched for silence */
	int silences;          /* silent nodes whose connections are lost here */
	struct ddp_net *nets[DDP_NET_BUCKETS]; /* by id */
	bool inquired, deferred; /* so is one of them */
	const struct ddp_net *current; /* whose thread lets messages move; NULL: none's */
	bool news, alarm;      /* something came, or went wrong, for another */
	bool came;             /* something came, in the present turns of UCX's progress */
	connection peers[];    /* [size of the world] */
} ddp_worker;

/* ---- state of a communicator, under worker.lock unless it says otherwise ------------- */

/* A message whose receiver has not asked for it yet. */
typedef struct kept_message {
	ddp_unexpected message;
	struct kept_message *next;           /* of the same sender */
	struct kept_message *before, *after; /* of all */
	void *data;        /* of UCX, or a copy behind this */
	bool rendezvous;   /* data is a handle, to be received */
	bool behind;       /* came while an earlier one with its tag was waiting */
	bool copied;
	uint64_t charge;   /* of the sender's credit */
} kept_message;

/* The memory of this process that it holds. */
static inline size_t ddp_unexpected_weight(const kept_message *a)
{
	return sizeof(*a) + (a->rendezvous ? 0 : a->message.bytes);
}

/* A rank of the communicator. */
typedef struct member {
	ddp_transfer *posted, **posted_end;
	kept_message *unexpected, **unexpected_end;
	struct member *next_deferred;
	bool deferred;         /* what is kept may have its receiver */
	bool inquired;         /* an inquiry of this rank's is to be answered */
	_Atomic uint64_t closed_ns; /* when it told that it has closed the communicator; 0: not */
	ddp_answer answer;     /* to an inquiry of ours */
} member;

typedef struct ddp_net {
	ddp_worker *worker;
	ddp_comm *comm;
	uint64_t id;           /* 0: not joined */
	struct ddp_net *next;  /* in its bucket */
	uint64_t sent_bytes;   /* of all transfers; for who holds run.lock */
	member *deferred;
	bool inquired;         /* by some member */
	ddp_transfer *held;    /* sends to peers that are not settled */
	ticket *tickets;       /* of requests under way */
	kept_message *first, *last;
	atomic_int unexpected; /* number of kept messages */
	atomic_bool trouble;   /* one of these is to be looked at: */
	bool misfits;          /* a message did not fit: */
	ddp_misfit misfit;
	int flooding;          /* the rank whose message could not be kept, or DDP_NOBODY */
	bool out_of_memory;    /* for a message of the rank `flooding` that was asked for */
	bool failure_came;
	ddp_failure failure;   /* that came */
	bool refusing;         /* broken: only messages of comm/group/agreement are taken */
	atomic_bool down;      /* after ddp_net_shut_down() */
	member members[];      /* [size] */
} ddp_net;

static inline connection *ddp_ucx_connection(const ddp_net *net, int rank)
{
	return &net->worker->peers[net->comm->topology.world_ranks[rank]];
}

/* It is lost for this reason, unless it was lost before. */
static inline void ddp_ucx_lose(connection *c, ucs_status_t why)
{
	int none = UCS_OK;

	atomic_compare_exchange_strong(&c->lost, &none, why);
}

/* Something is to be sent on it, after the callbacks. */
static inline void ddp_ucx_due(connection *c)
{
	if (c->listed)
		return;
	c->listed = true;
	c->next_due = c->worker->due;
	c->worker->due = c;
}

/* Something has come for a communicator: threads that wait for it are woken when the lock is given up. */
static inline void ddp_ucx_news(const ddp_net *net)
{
	net->worker->came = true;
	net->worker->news = net->worker->news || net != net->worker->current;
}

/* Something that breaks it, also if none of its ranks waits. */
static inline void ddp_ucx_trouble(ddp_net *net)
{
	atomic_store(&net->trouble, true);
	net->worker->alarm = net->worker->alarm || net != net->worker->current;
	ddp_ucx_news(net);
}

/* ---- message.c ------------------------------------------------------------------------- */

/* Memory for messages. If the process has none left, small messages take what the worker keeps for them. By small
   messages ranks agree on what all of them do or none does: a rank that has said yes must hear the others. NULL:
   there is none. */
void *ddp_ucx_memory(ddp_worker *worker, size_t bytes);
void ddp_ucx_memory_free(ddp_worker *worker, void *memory);

/* Makes the seal of a message of this rank to a peer. */
seal ddp_ucx_seal(const connection *c);
/* The source of an authentic message, or NULL; and what to do with one whose content cannot be its source's. */
connection *ddp_ucx_source(ddp_worker *worker, const void *header, size_t header_bytes, size_t expected_bytes);
void ddp_ucx_unauthentic(ddp_worker *worker);

/* Adds a ticket to a list, for a request with the peer. `transfer` may be NULL. The caller writes the header, of
   header_bytes. NULL: there is no memory. */
ticket *ddp_ucx_ticket(ticket **list, connection *c, ddp_transfer *transfer, size_t header_bytes);
/* Takes what UCX returned for the request of a ticket. */
void ddp_ucx_begun(ticket *t, void *request);
/* UCX calls this when a request to receive has ended. */
void ddp_ucx_received(void *request, ucs_status_t status, size_t length, void *user);
/* Sends a header alone, which begins with a seal, to a peer that has settled; false if it cannot be sent now. */
bool ddp_ucx_notify(ticket **list, connection *c, unsigned int id, const void *header, size_t bytes);

/* Each pair of processes has a credit of bytes. What a rank sends goes out at once as long as its receiver has taken
   all but a credit's bytes of what was sent before; so a rank keeps at most that of each other one's messages that it
   has not asked for yet, however late it is. Beyond, a message is only announced (a rendezvous of UCX's), and its data
   goes when it is asked for: in whatever order that is, nobody waits for what stands behind a credit that is used
   up. */
/* Gives a message's charge back to its sender, also if nobody will ever ask for the message. */
void ddp_ucx_return_credit(connection *c, uint64_t charge);
/* Tells the peer what was taken of what it sent; false if that cannot be sent now. */
bool ddp_ucx_send_credit(connection *c);
void ddp_ucx_credit_arrived(connection *c, const control_header *header);

/* Writes the header in the form in which it travels, and gives its bytes. On a narrow link a small message takes as
   long as its bytes do, so those that are 0 stay behind: the header of a small sum in the world takes 35 bytes or
   so, not 72. */
size_t ddp_ucx_header_write(const data_header *header, unsigned char to[DDP_HEADER_MAX]);
/* Reads it; false if these bytes are no header. */
bool ddp_ucx_header_read(const void *from, size_t bytes, data_header *header);

/* Sends a transfer's data; the peer's connection is settled. */
ddp_status ddp_ucx_begin_send(ddp_net *net, ddp_transfer *transfer);

/* ---- receive.c ------------------------------------------------------------------------- */

/* The communicators of the process, by the id that messages carry. */
void ddp_ucx_add(ddp_net *net);
void ddp_ucx_remove(ddp_net *net);
/* NULL: not here, or not any more. */
ddp_net *ddp_ucx_find(const ddp_worker *worker, uint64_t id);
void ddp_ucx_for_each(ddp_worker *worker, void (*visit)(ddp_net *net));
/* Is `rank` of the communicator the process at the other end? And which rank is it, or DDP_NOBODY? */
bool ddp_ucx_is_rank(const ddp_net *net, int rank, const connection *c);
int ddp_ucx_rank_of(const ddp_net *net, const connection *c);

/* UCX calls this when a message with data has arrived. */
ucs_status_t ddp_ucx_data_arrived(void *argument, const void *header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param);
/* Gives a transfer the first message that has arrived for it, or lets it wait. */
void ddp_ucx_receive(ddp_net *net, ddp_transfer *transfer);
/* Receives what could not be in UCX's callback; true if there was any. */
bool ddp_ucx_receive_deferred(ddp_worker *worker);
/* Takes messages that nobody has asked for off, and releases them: one of a rank's, all, or all but those of
   comm/group/agreement. A rendezvous is refused, which completes it for its sender. */
void ddp_ucx_drop(ddp_net *net, int rank, uint64_t tag);
void ddp_ucx_drop_all(ddp_net *net, bool agreement);

/* ---- connect.c ------------------------------------------------------------------------- */

/* Makes the endpoint to a peer at its first use; false if it cannot be: the connection is lost. */
bool ddp_ucx_connect(connection *c);
/* Raises the soft limit of descriptors, where it is too low for connections with two ranks of each other node. UCX 1.13
   closes its listener for good when it cannot accept one. */
void ddp_ucx_make_room(ddp_worker *worker, int nodes);
/* Raises the limit again, and lets connections begin that lacked descriptors. */
void ddp_ucx_try_again(ddp_net *net);
/* Sends the handshakes that are due, and what was held back for a peer that has settled. */
void ddp_ucx_answer_handshake(connection *c);
/* Tells the peer that this rank's connections are made. */
void ddp_ucx_say_ready(connection *c);
/* Tells the peer that nothing follows; its answer is that it has had all. */
void ddp_ucx_say_leaving(connection *c);
void ddp_ucx_handshake_arrived(connection *c, const control_header *header);

/* ---- failure.c ------------------------------------------------------------------------- */

/* Tells all that this rank is connected with that the communicator has failed, or that this rank has closed it. */
void ddp_ucx_send_failure(ddp_net *net);
void ddp_ucx_send_closed(ddp_net *net);
/* Answers a message of a communicator that is not open here. */
void ddp_ucx_answer_closed(connection *c);
void ddp_ucx_failure_arrived(connection *c, const control_header *header);
void ddp_ucx_closed_arrived(connection *c, const control_header *header);

/* Asks a rank what it waits for; and answers what has come. */
void ddp_ucx_inquire(ddp_net *net, int rank);
void ddp_ucx_answer_inquiries(ddp_worker *worker);
void ddp_ucx_inquiry_arrived(connection *c, const control_header *header);

/* Ends the connections with the nodes that have fallen silent since the last call (comm/core/silence), and tells the
   ranks of other nodes, each of which tells others. Not from UCX's callbacks. */
void ddp_ucx_end_silent(ddp_worker *worker);
void ddp_ucx_silence_arrived(connection *c, const control_header *header);

/* ---- net.c ----------------------------------------------------------------------------- */

/* The lock is taken for a communicator, or for none (NULL). When the lock is given up, it wakes other communicators for
   which something came meanwhile. */
void ddp_ucx_lock(ddp_worker *worker, const ddp_net *net);
void ddp_ucx_unlock(ddp_worker *worker);
/* Lets messages move; true if some did. The lock is held. */
bool ddp_ucx_progress(ddp_worker *worker);
ucs_status_t ddp_ucx_set_handlers(ddp_worker *worker);
