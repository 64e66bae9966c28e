/* comm/net over UCX: what its files share. */
#ifndef DDP_COMM_NET_UCX_H
#define DDP_COMM_NET_UCX_H

#include <ucp/api/ucp.h>

#include "comm/net/listener.h"
#include "comm/net/net.h"
#include "comm/net/secret.h"

/* ---- what travels: headers of active messages ------------------------------------- */

enum { DDP_AM_DATA, DDP_AM_FAILURE, DDP_AM_HANDSHAKE, DDP_AM_INQUIRY, DDP_AM_CREDIT, DDP_AM_IDS };

/* Begins each; nothing else of a message is read unless the token is that of
   its source. */
typedef struct seal {
	ddp_token token;
	int32_t source;
	uint32_t unused;
} seal;

typedef struct data_header {
	seal seal;
	ddp_envelope envelope;
	uint64_t charge; /* of the window that it is sent in (comm/net/ucx_window); 0: none */
} data_header;

typedef struct failure_header {
	seal seal;
	ddp_failure failure;
} failure_header;

/* The first messages of a connection. User memory is handed to UCX when both
   sides know that the other hears them, as UCX 1.13 cannot give up a
   connection that is being made. */
typedef struct handshake_header {
	seal seal;
	uint32_t heard; /* the sender has had a handshake of the receiver's */
	uint32_t ready; /* the sender's connections are made (comm/group/handshake) */
} handshake_header;

/* Of comm/wait/verdict: a question, or the answer. */
typedef struct inquiry_header {
	seal seal;
	uint32_t asks;
	uint32_t waits;
	int32_t names;
	uint32_t unused;
} inquiry_header;

/* Of all that the receiver of this has sent: how much was taken. */
typedef struct credit_header {
	seal seal;
	uint64_t taken_bytes;
} credit_header;

/* ---- state ---------------------------------------------------------------------------- */

/* A message whose receiver has not asked for it yet. */
typedef struct kept_message {
	ddp_unexpected message;
	struct kept_message *next;
	void *data;        /* of UCX, or a copy */
	bool rendezvous;   /* data is a handle, to be received */
	bool behind;       /* came while an earlier one with its tag was waiting */
	bool copied;
	uint64_t charge;   /* of the sender's window */
} kept_message;

/* What it holds of this process's memory. */
static inline size_t ddp_unexpected_weight(const kept_message *a)
{
	return sizeof(*a) + (a->rendezvous ? 0 : a->message.bytes);
}

/* A request of UCX's. It outlives the transfer if the communicator breaks. */
typedef struct ticket {
	struct ticket *next, **link;
	ddp_transfer *transfer; /* NULL: nobody is interested any more */
	int peer;
	union {
		data_header header;
		inquiry_header inquiry;
		credit_header credit;
	};
} ticket;

typedef struct connection {
	struct ddp_net *net;
	int peer;
	ucp_ep_h ep;
	void *address;
	ddp_token ours, theirs; /* before messages to, and from the peer */
	ucs_status_t lost;      /* UCS_OK: it is not */
	bool hears_us, settled; /* settled: both hear each other */
	bool handshake_due, handshake_sent, heard_sent;
	bool ready;             /* so says the peer */
	bool inquired;          /* an inquiry of the peer's is to be answered */
	ddp_answer answer;      /* of the peer's, to an inquiry of ours */
	uint64_t sent_bytes, credited_bytes; /* to the peer, in windows; and taken, as it tells */
	uint64_t taken_bytes, told_bytes;    /* of the peer's; and as it was told */
	bool credit_due;        /* it is to be told */
	handshake_header handshakes[3]; /* of requests that may be under way */
} connection;

typedef struct ddp_net {
	ddp_comm *comm;
	ucp_context_h context;
	ucp_worker_h worker;
	uint64_t sent_bytes;   /* of all transfers */
	int event_fd;          /* of UCX */
	atomic_int poll_fd;    /* the same; -1 once the communicator is broken */
	ddp_listeners listeners;
	int unfiltered;        /* an errno: why the kernel does not filter them; 0: it does */
	ddp_place *peer_listeners; /* of the ranks of other nodes */
	ddp_own_sockets own_sockets;
	bool announced;
	ddp_share share;
	connection *peers;     /* [size] */
	bool handshakes_due;
	bool inquired;         /* by some peer */
	bool credits_due;      /* to some peer */
	ddp_transfer *posted;
	ddp_transfer *held;    /* sends to peers that are not settled */
	ticket *tickets;       /* of requests under way */
	kept_message *unexpected;     /* in order */
	kept_message **unexpected_end;
	size_t kept_bytes;     /* of kept_message */
	bool misfits;          /* a message did not fit: */
	ddp_misfit misfit;
	int flooding;          /* the peer whose message could not be kept, or DDP_NOBODY */
	bool out_of_memory;    /* for a message of the peer `flooding` that was asked for */
	int unauthentic;         /* messages without a right token */
	bool refusing;         /* broken: only messages of comm/group/agreement are taken */
	bool down;             /* after ddp_net_shut_down() */
	bool failure_came;
	ddp_failure failure;   /* that came */
	failure_header *failures; /* [size]: that are sent */
	void **requests;       /* [size]: of UCX, while peers are told or connections are closed */
} ddp_net;

#endif
