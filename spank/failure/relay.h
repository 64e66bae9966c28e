/*
 * What goes wrong in a step is said once, whatever number of nodes see it: they
 * hand their sentence to the user's srun, which says one.
 *
 * srun listens on a port of its own while the step runs; port and secret travel
 * with the environment, as the step's key does. A node sends one message of
 * fixed size, and gets a tag back; both are authenticated with the secret, and
 * nothing is looked at before. A node that srun does not answer speaks itself.
 * libc only.
 */
#ifndef SPANK_RELAY_H
#define SPANK_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/fault.h"
#include "spank/siphash.h"

enum {
	RELAY_TEXT_MAX = 1023,
	RELAY_NONCE_BYTES = 16,
	RELAY_SPEC_MAX = 48,
	RELAY_CONNECT_MS = 150, /* no more, where nobody listens */
	RELAY_REPLY_MS = 500,   /* of an srun that listens, but is kept from running */
	RELAY_HOLD_MS = 250,    /* for news of an earlier failure */
};

/* Where srun listens; as text "PORT:SECRET", the secret in hexadecimal. */
struct relay {
	uint16_t port; /* 0: nowhere */
	int reply_ms;  /* how long a node waits for srun's answer */
	unsigned char secret[SIPHASH_KEY_BYTES];
};

/* Reads the text, with RELAY_REPLY_MS; NULL, or anything that is none, gives port 0. */
struct relay relay_parse(const char *text);

struct relay_news {
	const char *text;
	uint32_t age_ms; /* since it happened */
	bool hearsay;    /* another failure's consequence: said for want of better */
};

/* On the wire. All members are bytes: it has no holes. */
struct relay_message {
	unsigned char nonce[RELAY_NONCE_BYTES];
	unsigned char age_ms[4]; /* little-endian */
	unsigned char hearsay;
	char text[RELAY_TEXT_MAX];
	unsigned char tag[SIPHASH_BYTES];
};

void relay_sign(const struct relay *relay, const struct relay_message *message,
                unsigned char tag[SIPHASH_BYTES]);
/* Of srun's answer to the message. */
void relay_sign_answer(const struct relay *relay, const struct relay_message *message,
                       unsigned char tag[SIPHASH_BYTES]);

/* Moves `bytes` within `wait_ms` through a socket, one way. */
bool relay_send(int fd, const void *data, size_t bytes, int wait_ms);
bool relay_receive(int fd, void *data, size_t bytes, int wait_ms);

/*
 * A node: true if srun has it now, and will say it unless something else came
 * first. `address` is numeric: nothing is resolved. Takes RELAY_CONNECT_MS and
 * twice reply_ms at most.
 */
bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news);

/*
 * srun: listens on a port from `low` to `high`, or on any if they are 0, in a
 * thread that blocks all signals; a second call only tells the same spec. Of the
 * news that come within `hold_ms` of the first, `say` gets what happened first,
 * in that thread, in printable bytes; of what comes later it hears nothing.
 */
bool relay_open(uint16_t low, uint16_t high, int hold_ms, void (*say)(const char *text),
                char spec[RELAY_SPEC_MAX], struct fault *fault);
/* Says what is held, and ends the thread. Does nothing in a forked child. */
void relay_close(void);

#endif
