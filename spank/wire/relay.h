/* SPDX-License-Identifier: Apache-2.0 */
/* The messages by which nodes tell srun what has failed. All nodes send what they know to the user's srun, so a
   failure is reported once and ends the step once, however many nodes see it (step.h).

   While the step runs, srun listens on a port of its own. The nodes get port and secret in the environment, as
   they get the step's key. A node sends one message of fixed size, and srun answers with a tag. Both are
   authenticated with the secret, and neither side uses a message before it has checked that. If srun does not
   answer, the node itself reports the failure and ends the step. This file has the form of the messages, and how a
   node sends them; srun takes them (srun/relay_srun.h). libc only.

   Each srun has its own secret, so messages of other steps do not count. Each message counts once (peers.h). Its
   nonce shows which message it is: the node's mark, and a number that grows from message to message. The answer
   is the tag of the nonce, so it cannot answer another message. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "spank/identity/nodelist.h"
#include "spank/wire/channel.h"
#include "spank/wire/judge.h"

enum {
	RELAY_TEXT_MAX = 1023,
	RELAY_MARK_BYTES = 8,
	RELAY_NONCE_BYTES = RELAY_MARK_BYTES + 8,
	RELAY_SPEC_MAX = 48,
};

/* Numbers a node's messages. The node's processes that tell srun something share it. */
struct relay_sender {
	unsigned char mark[RELAY_MARK_BYTES]; /* of the node, at random */
	_Atomic uint64_t number;              /* of its last message; 0: none */
};

/* Where srun listens; as text "PORT:SECRET", the secret in hexadecimal. */
struct relay {
	uint16_t port; /* 0: nowhere */
	int reply_ms;  /* how long a node waits for srun's answer */
	unsigned char secret[SIPHASH_KEY_BYTES];
	struct relay_sender *sender; /* NULL: each message is a node's only one */
};

/* Reads the text, with REPLY_MS; NULL, or anything that is none, gives port 0. */
struct relay relay_parse(const char *text);

struct relay_news {
	const char *text;
	uint32_t age_ms;        /* since it happened; of more than a minute, a minute is told */
	uint32_t generation;    /* in which it happened (wire/deal.h); 0: the step has none. At most UINT16_MAX */
	int wait_status;        /* of the task, as wait(2) gives it */
	struct end_facts facts; /* as the node sees them; srun has its own policy */
	const char *node;       /* on which it happened; NULL or "": not told */
	bool here;              /* instead of all this except the node: it has the plugin, and this task: */
	uint32_t rank;
	const unsigned char *stall; /* instead of all this: a node's note, as stall_pack() gives
	                               it; NULL: none */
	const unsigned char *pace;  /* instead of all this: a node's note, as pace_pack() gives it; NULL: none */
	const unsigned char *opening; /* instead of all this: the node opens its link, and says this, as
	                                 opening_pack() gives it; NULL: it does not */
};

/* On the wire. All members are bytes: it has no holes. Numbers are little-endian. */
struct relay_message {
	unsigned char nonce[RELAY_NONCE_BYTES]; /* mark and number of the sender */
	unsigned char age_ms[2];
	unsigned char generation[2];
	unsigned char wait_status[4];
	unsigned char end, sent, flags; /* of the facts */
	char text[RELAY_TEXT_MAX]; /* and behind its end the node's name, if there is room */
	unsigned char tag[SIPHASH_BYTES];
};

/* Without nonce and tag. */
void relay_write(struct relay_message *message, const struct relay_news *news);
/* Text and note stay the message's; the text may lack an end. */
struct relay_news relay_read(const struct relay_message *message);

void relay_sign(const struct relay *relay, const struct relay_message *message,
                unsigned char tag[SIPHASH_BYTES]);
/* Makes the tag of srun's answer to the message. */
void relay_sign_answer(const struct relay *relay, const struct relay_message *message,
                       unsigned char tag[SIPHASH_BYTES]);

/* Chooses the mark; returns the sender, or NULL if the kernel gives no random bytes. */
struct relay_sender *relay_start_sender(struct relay_sender *sender);

/* Gives the address of a port of srun. False if the text is no numeric address: names are not resolved, because root
   calls this, too. */
bool relay_address(const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes);

/* The nonce of the sender's next message; false if the kernel gives no random bytes. */
bool relay_make_nonce(struct relay_sender *sender, unsigned char nonce[RELAY_NONCE_BYTES]);

/* A node: true if srun has it now, and does what is to be done. `address` is
   numeric: nothing is resolved. Takes CONNECT_MS and reply_ms at most. */
bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news);

/* A node that has the plugin tells so, with its name and the rank of one of its tasks. An srun
   of a release that knows no such message takes it for the end of a task that has done well.
   Tries it twice, should the network lose the first packet; true if srun has answered. */
bool relay_tell_here(const struct relay *relay, const char *address, uint32_t rank, const char *node);

/* ---- notes, in which a node tells srun its present state, as structures and as bytes: pure ---- */

/* For stall=: whether its ranks make progress, which rank is furthest behind, and which ranks wait. */
enum { STALL_WHO_MAX = 127, STALL_DOING_MAX = 255, STALL_WAIT_MAX = 95, STALL_RANGES_MAX = 16, STALL_PROGRAM_MAX = 31 };

/* Why a rank does not come to where others wait for it: the likelier cause first. */
enum stall_kind {
	STALL_STOPPED, /* by a signal or a debugger */
	STALL_RUNS,
	STALL_LEFT,    /* by ddp_finalize(), and has not ended */
	STALL_ENDED,   /* with code 0 */
	STALL_WAITS,   /* itself */
	STALL_FAILED,  /* which was reported as that */
	STALL_KINDS
};

/* Why stall= cannot see what some ranks do, so that it never sees their step stall. */
enum stall_unseen {
	STALL_SEEN,
	STALL_NO_PYTHON, /* Python runs without slurm_ddp, which python= was to start */
	STALL_NO_PAGE,   /* they use neither libddp nor slurm_ddp nor, with watch=, NCCL */
	STALL_STARTS,    /* they have used slurm_ddp since their start, and have told of no step */
	STALL_UNSEEN_KINDS
};

struct stall_range {
	uint32_t first, last;
};

struct stall_note {
	bool stalled;        /* false: a rank goes on; of the rest, there is `ranks` to `world_size`,
	                        and, where one keeps others waiting, `kind` to `doing` */
	uint32_t ranks;      /* how many the node has, */
	uint32_t lowest;     /* and the lowest of them, by which srun knows the node */
	uint32_t world_size;
	uint32_t at_work;    /* how many have not ended; who has left counts only where its own end is known */
	uint32_t absent;     /* of them, how many do not wait */
	uint32_t quiet_ms;   /* nothing has changed for so long */
	/* The rank that is furthest behind. */
	enum stall_kind kind;
	uint32_t rank;
	uint32_t since_ms;   /* since it left or ended */
	uint64_t collective; /* its last one, or progress_text_place() */
	char who[STALL_WHO_MAX + 1];     /* "rank 3 of 4 on n1" */
	char doing[STALL_DOING_MAX + 1]; /* "in forward of step 4 for 32.0 s" */
	/* The ranks that wait. */
	uint32_t range_count;
	bool cut;            /* there are more ranges */
	struct stall_range ranges[STALL_RANGES_MAX];
	uint32_t wait_ms;    /* of the one that has got furthest, and in what: */
	uint64_t wait_collective;
	char wait[STALL_WAIT_MAX + 1];   /* "collective #6 all_reduce f32[10] sum" */
	/* A node of release 0.2 does not tell the rest. A rank that waits in another operation under the same
	   number: */
	uint32_t odd;                    /* 1 + the rank; 0: there is none */
	char odd_wait[STALL_WAIT_MAX + 1];
	/* Instead of a stall, once: the ranks in `ranges` are not seen. */
	enum stall_unseen unseen;
	uint32_t unseen_ms;              /* for so long, since their start */
	char program[STALL_PROGRAM_MAX + 1]; /* of one of them: "python3.11"; "": not known */
};

enum {
	STALL_NOTE_BYTES = 3 + 4 * 10 + 8 * 2 + STALL_RANGES_MAX * 8 + STALL_WHO_MAX + STALL_DOING_MAX +
	                   STALL_WAIT_MAX + 4 + STALL_WAIT_MAX + 1 + 4 + STALL_PROGRAM_MAX
};

/* Whether two waits of one collective's number are waits in different operations: "collective #6 barrier" and
   "collective #6 all_reduce f32[10]". In some operations, such as a gather, ranks have tensors of different sizes. */
bool stall_differs(const char *wait, const char *other);

/* Behind the number of a collective: "all_reduce f32[10] sum"; NULL: the wait is in no collective of all ranks, or it
   is not known in which. */
const char *stall_operation(const char *wait);

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES]);

/* Texts come printable. False: it is no such note. */
bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note);

/* For slow=: how long its ranks computed in a step, on average over some steps. */
enum { PACE_RANKS_MAX = 60, PACE_WORLD_MAX = 1 << 20 };
enum { PACE_NOTE_BYTES = 3 * 4 + HOST_NAME_MAX_BYTES + PACE_RANKS_MAX * 12 };

struct pace_rank_note {
	uint32_t rank;
	uint32_t host_us; /* that it computed in a step, by the wall clock, */
	uint32_t own_us;  /* and without the time in which it waited for a processor */
};

struct pace_note {
	uint32_t world_size, steps; /* the average is over so many steps */
	uint32_t count;
	char node[HOST_NAME_MAX_BYTES];
	struct pace_rank_note ranks[PACE_RANKS_MAX];
};

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES]);

/* The name comes printable. False: it is no such note. */
bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note);
