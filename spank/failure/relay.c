/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/relay.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "spank/base/bytes.h"
#include "spank/failure/timeline.h"

_Static_assert((int)OPENING_BYTES <= (int)RELAY_TEXT_MAX, "an opening fits where the text is");
_Static_assert((int)PACE_NOTE_BYTES <= (int)RELAY_TEXT_MAX, "a note fits where the text is");
_Static_assert((int)STALL_NOTE_BYTES <= (int)RELAY_TEXT_MAX, "a note fits where the text is");

struct relay relay_parse(const char *text)
{
	const struct relay none = { .port = 0 };
	struct relay relay = none;
	unsigned long port;
	char *end;

	if (text == NULL || text[0] < '1' || text[0] > '9')
		return none;
	port = strtoul(text, &end, 10);
	/* Just as srun's side writes it, so no capitals. */
	if (port > UINT16_MAX || *end != ':' || strpbrk(end, "ABCDEF") != NULL ||
	    !ddp_parse_hex(end + 1, relay.secret, SIPHASH_KEY_BYTES))
		return none;
	relay.port = (uint16_t)port;
	relay.reply_ms = REPLY_MS;
	return relay;
}

void relay_sign(const struct relay *relay, const struct relay_message *message,
                unsigned char tag[SIPHASH_BYTES])
{
	siphash(relay->secret, message, offsetof(struct relay_message, tag), tag);
}

/* The text has another length than a message, so that neither tag passes for the other. */
void relay_sign_answer(const struct relay *relay, const struct relay_message *message,
                       unsigned char tag[SIPHASH_BYTES])
{
	siphash(relay->secret, message->nonce, sizeof(message->nonce), tag);
}

static void put_short(unsigned char bytes[2], uint32_t number)
{
	if (number > UINT16_MAX)
		number = UINT16_MAX;
	bytes[0] = (unsigned char)number;
	bytes[1] = (unsigned char)(number >> 8);
}

static uint32_t get_short(const unsigned char bytes[2])
{
	return bytes[0] | (uint32_t)bytes[1] << 8;
}

enum {
	LONE = 1, ALL_KILLED = 2, OTHER_FAILED = 4, BLAMES_PEER = 8, OUT_OF_MEMORY = 16,
	CAUSE_LATE = 32, NAMES_PEER = 64, STALL = 128,
};

/* Beside an enum task_end. */
enum { SURVIVED = 0x80 };

/* Instead of an enum slurm_sent. */
enum { HERE = 0x80, LINK = 0x81, PACE = 0x82 };

static void write_text(char text[RELAY_TEXT_MAX], const struct relay_news *news)
{
	size_t used = strnlen(news->text, RELAY_TEXT_MAX), name = news->node != NULL ? strlen(news->node) : 0;

	memcpy(text, news->text, used);
	if (name > 0 && used + name + 2 <= RELAY_TEXT_MAX)
		memcpy(text + used + 1, news->node, name);
}

/* Behind the text's end; "" if it has none there. */
static const char *node_of(const struct relay_message *message)
{
	size_t used = strnlen(message->text, RELAY_TEXT_MAX) + 1;

	return used < RELAY_TEXT_MAX && memchr(message->text + used, '\0', RELAY_TEXT_MAX - used) != NULL
	       ? message->text + used : "";
}

void relay_write(struct relay_message *message, const struct relay_news *news)
{
	const struct end_facts *facts = &news->facts;

	put_short(message->age_ms, news->age_ms);
	put_short(message->generation, news->generation);
	bytes_put32(message->wait_status, (uint32_t)news->wait_status);
	message->end = (unsigned char)((unsigned int)facts->end | (facts->survived ? SURVIVED : 0));
	message->sent = (unsigned char)facts->sent;
	message->flags = (unsigned char)((facts->lone ? LONE : 0) | (facts->all_killed ? ALL_KILLED : 0) |
	                                 (facts->other_failed ? OTHER_FAILED : 0) |
	                                 (facts->blames_peer ? BLAMES_PEER : 0) |
	                                 (facts->out_of_memory ? OUT_OF_MEMORY : 0) |
	                                 (facts->cause_late ? CAUSE_LATE : 0) |
	                                 (facts->names_peer ? NAMES_PEER : 0) |
	                                 (news->stall != NULL ? STALL : 0));
	if (news->here) {
		bytes_put32(message->wait_status, news->rank);
		message->end = END_FINE;
		message->sent = HERE;
	}
	memset(message->text, 0, sizeof(message->text));
	if (news->opening != NULL) {
		message->end = END_FINE;
		message->sent = LINK;
		memcpy(message->text, news->opening, OPENING_BYTES);
		return;
	}
	if (news->pace != NULL) {
		message->end = END_FINE;
		message->sent = PACE;
		memcpy(message->text, news->pace, PACE_NOTE_BYTES);
		return;
	}
	if (news->stall != NULL)
		memcpy(message->text, news->stall, STALL_NOTE_BYTES);
	else
		write_text(message->text, news);
}

struct relay_news relay_read(const struct relay_message *message)
{
	bool link = message->sent == LINK, here = message->sent == HERE;
	bool stall = !link && (message->flags & STALL) != 0;

	if (link)
		return (struct relay_news){ .text = "", .node = "", .opening = (const unsigned char *)message->text };
	if (message->sent == PACE)
		return (struct relay_news){ .text = "", .node = "", .generation = get_short(message->generation),
			                    .pace = (const unsigned char *)message->text };
	return (struct relay_news){
		.text = stall ? "" : message->text,
		.node = stall ? "" : node_of(message),
		.stall = stall ? (const unsigned char *)message->text : NULL,
		.age_ms = get_short(message->age_ms),
		.generation = get_short(message->generation),
		.here = here,
		.rank = here ? bytes_get32(message->wait_status) : 0,
		.wait_status = here ? 0 : (int)bytes_get32(message->wait_status),
		.facts = {
			.end = (enum task_end)(message->end & ~SURVIVED),
			.survived = (message->end & SURVIVED) != 0,
			.sent = here ? SENT_UNKNOWN : (enum slurm_sent)message->sent,
			.lone = (message->flags & LONE) != 0,
			.all_killed = (message->flags & ALL_KILLED) != 0,
			.other_failed = (message->flags & OTHER_FAILED) != 0,
			.blames_peer = (message->flags & BLAMES_PEER) != 0,
			.out_of_memory = (message->flags & OUT_OF_MEMORY) != 0,
			.cause_late = (message->flags & CAUSE_LATE) != 0,
			.names_peer = (message->flags & NAMES_PEER) != 0,
		},
	};
}
