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

#include "spank/wire/channel.h"
#include "spank/wire/judge.h"
#include "spank/wire/notes.h"

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
