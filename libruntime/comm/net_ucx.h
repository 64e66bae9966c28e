/* comm/net over UCX: what its files share. */
#ifndef DDP_COMM_NET_UCX_H
#define DDP_COMM_NET_UCX_H

#include <ucp/api/ucp.h>

#include "comm/net.h"
#include "comm/net_door.h"
#include "comm/net_secret.h"

/* ---- what travels: headers of active messages ------------------------------------- */

enum { DDP_AM_DATA, DDP_AM_FAILURE, DDP_AM_HELLO, DDP_AM_INQUIRY, DDP_AM_CREDIT, DDP_AM_IDS };

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
	uint64_t charge; /* of the window that it is sent in (net_ucx_window.c); 0: none */
} data_header;

typedef struct failure_header {
	seal seal;
	ddp_failure failure;
} failure_header;

/* The first messages of a connection. User memory is handed to UCX when both
   sides know that the other hears them, as UCX 1.13 cannot give up a
   connection that is being made. */
typedef struct hello_header {
	seal seal;
	uint32_t heard; /* the sender has had a hello of the receiver's */
	uint32_t ready; /* the sender's connections are made (comm/net_greet) */
} hello_header;

/* Of comm/verdict: a question, or the answer. */
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
typedef struct arrival {
	struct arrival *next;
	ddp_envelope envelope;
	void *data;        /* of UCX, or a copy */
	size_t bytes;
	bool rendezvous;   /* data is a handle, to be received */
	bool behind;       /* came while an earlier one with its tag was waiting */
	bool copied;
	uint64_t charge;   /* of the sender's window */
} arrival;

/* What it holds of this process's memory. */
static inline size_t ddp_arrival_weight(const arrival *a)
{
	return sizeof(*a) + (a->rendezvous ? 0 : a->bytes);
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
	ddp_net *net;
	int peer;
	ucp_ep_h ep;
	void *address;
	ddp_token ours, theirs; /* before messages to, and from the peer */
	ucs_status_t lost;      /* UCS_OK: it is not */
	bool hears_us, settled; /* settled: both hear each other */
	bool hello_due, hello_sent, heard_sent;
	bool ready;             /* so says the peer */
	bool inquired;          /* an inquiry of the peer's is to be answered */
	ddp_answer answer;      /* of the peer's, to an inquiry of ours */
	uint64_t sent_bytes, credited_bytes; /* to the peer, in windows; and taken, as it tells */
	uint64_t taken_bytes, told_bytes;    /* of the peer's; and as it was told */
	bool credit_due;        /* it is to be told */
	hello_header hellos[3]; /* of requests that may be under way */
} connection;

struct ddp_net {
	ddp_comm *comm;
	ucp_context_h context;
	ucp_worker_h worker;
	uint64_t sent_bytes;   /* of all transfers */
	int event_fd;          /* of UCX */
	atomic_int poll_fd;    /* the same; -1 once the communicator is broken */
	int bell[2];           /* this rank's doorbell: read and write end */
	int *bells;            /* [node size]: write ends */
	ddp_doors doors;
	int unfiltered;        /* an errno: why the kernel does not filter them; 0: it does */
	ddp_place *peer_doors; /* of the ranks of other nodes */
	ddp_kinship kinship;
	bool announced;
	ddp_share share;
	connection *peers;     /* [size] */
	bool hellos_due;
	bool inquired;         /* by some peer */
	bool credits_due;      /* to some peer */
	ddp_transfer *posted;
	ddp_transfer *held;    /* sends to peers that are not settled */
	ticket *tickets;       /* of requests under way */
	arrival *arrivals;     /* in order */
	arrival **arrivals_end;
	size_t kept_bytes;     /* of arrivals */
	bool unfit;            /* a message did not fit: */
	ddp_envelope unfit_have, unfit_want;
	size_t unfit_have_bytes, unfit_want_bytes;
	ddp_transfer question; /* see ask() */
	uint64_t ask_ns, asked_sequence;
	int flooding;          /* the peer whose message could not be kept, or DDP_NOBODY */
	bool out_of_memory;    /* for a message of the peer `flooding` that was asked for */
	int strangers;         /* messages without a right token */
	bool refusing;         /* broken: only messages of comm/shrink are taken */
	bool down;             /* after ddp_net_shut_down() */
	bool failure_came;
	ddp_failure failure;   /* that came */
	failure_header *farewells; /* [size]: that are sent */
	void **requests;       /* [size]: of UCX, while peers are told or connections are closed */
};

/* The endpoint to a peer, made at its first use; an error has broken the
   communicator. */
ddp_status ddp_net_connect(ddp_net *net, int peer, ucp_ep_h *ep);
/* Sends the hellos that are due, and what was held back for peers that have
   settled; true if there were any. */
bool ddp_net_answer(ddp_net *net);
/* Tells the peer that this rank's connections are made. */
void ddp_net_say_ready(ddp_net *net, int peer);

/* The source of an authentic message, or DDP_NOBODY. */
int ddp_net_source(ddp_net *net, const void *header, size_t header_bytes, size_t expected_bytes);

/* Sends a message without data, whose header begins with a seal that is filled in,
   and holds no more than a ticket has room for; false if that is not possible now. */
bool ddp_net_notify(ddp_net *net, int peer, unsigned int id, const void *header, size_t bytes);

/* Does a transfer's data fit in the window of its peer? If not, it is only to be
   announced. *charge is what the receiver gives back with ddp_net_taken(). */
bool ddp_net_charge(ddp_net *net, const ddp_transfer *transfer, uint64_t *charge);
void ddp_net_taken(ddp_net *net, int source, uint64_t charge);
/* Tells peers what was taken of what they sent. */
void ddp_net_send_credits(ddp_net *net);

/* Answers what has come. */
void ddp_net_answer_inquiries(ddp_net *net);

/* Hands a transfer's data to UCX. */
ddp_status ddp_net_begin_send(ddp_net *net, ddp_transfer *transfer);

/* Releases an arrival that is off the list; a rendezvous is refused, which
   completes it for its sender. */
void ddp_net_drop(ddp_net *net, arrival *a);

/* Handlers of the kinds of active message. */
ucs_status_t ddp_net_data_arrived(void *argument, const void *header, size_t header_bytes,
                                  void *data, size_t bytes, const ucp_am_recv_param_t *param);
ucs_status_t ddp_net_failure_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param);
ucs_status_t ddp_net_hello_arrived(void *argument, const void *header, size_t header_bytes,
                                   void *data, size_t bytes, const ucp_am_recv_param_t *param);
ucs_status_t ddp_net_inquiry_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *param);
ucs_status_t ddp_net_credit_arrived(void *argument, const void *header, size_t header_bytes,
                                    void *data, size_t bytes, const ucp_am_recv_param_t *param);

#endif
