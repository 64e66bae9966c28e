/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hex.h"
#include "spank/base/bytes.h"
#include "spank/base/release.h"
#include "spank/base/text.h"
#include "spank/wire/timeline.h"

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

bool relay_address(const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		*bytes = sizeof(*v4);
		return true;
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) != 1)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(port);
	*bytes = sizeof(*v6);
	return true;
}

/* A connected socket, or -1. */
static int connect_to(const char *text, uint16_t port)
{
	struct sockaddr_storage address;
	socklen_t bytes, error_bytes = sizeof(int);
	struct pollfd ready = { .events = POLLOUT };
	int error = 0;

	if (!relay_address(text, port, &address, &bytes))
		return -1;
	ready.fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (ready.fd < 0)
		return -1;
	channel_tune(ready.fd, CONNECT_MS + REPLY_MS);
	if (connect(ready.fd, (struct sockaddr *)&address, bytes) == 0)
		return ready.fd;
	/* A signal counts as an end of the wait: the node then speaks itself. */
	if (errno == EINPROGRESS && poll(&ready, 1, CONNECT_MS) == 1 &&
	    getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0)
		return ready.fd;
	close(ready.fd);
	return -1;
}

/* Whether the socket is ready before the time is up. */
static bool wait_ready(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd ready = { .fd = fd, .events = events };
		uint64_t now = ddp_now_ns();
		int left_ms = now < deadline_ns ? (int)((deadline_ns - now + 999999) / 1000000) : 0;
		int count = poll(&ready, 1, left_ms);
		if (count > 0)
			return true;
		if (count == 0 || errno != EINTR)
			return false;
	}
}

static bool send_all(int fd, const void *data, size_t bytes, uint64_t deadline_ns)
{
	const char *p = data;

	while (bytes > 0) {
		ssize_t moved = send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (moved < 0 && errno != EINTR && errno != EAGAIN)
			return false;
		if (moved > 0) {
			p += moved;
			bytes -= (size_t)moved;
		} else if (!wait_ready(fd, POLLOUT, deadline_ns)) {
			return false;
		}
	}
	return true;
}

static bool receive_all(int fd, void *data, size_t bytes, uint64_t deadline_ns)
{
	char *p = data;

	while (bytes > 0) {
		ssize_t moved;
		if (!wait_ready(fd, POLLIN, deadline_ns))
			return false;
		moved = recv(fd, p, bytes, MSG_DONTWAIT);
		if (moved == 0 || (moved < 0 && errno != EINTR && errno != EAGAIN))
			return false;
		if (moved > 0) {
			p += moved;
			bytes -= (size_t)moved;
		}
	}
	return true;
}

struct relay_sender *relay_start_sender(struct relay_sender *sender)
{
	return getrandom(sender->mark, sizeof(sender->mark), 0) == (ssize_t)sizeof(sender->mark) ? sender : NULL;
}

bool relay_make_nonce(struct relay_sender *sender, unsigned char nonce[RELAY_NONCE_BYTES])
{
	uint64_t number;

	if (sender == NULL)
		return getrandom(nonce, RELAY_NONCE_BYTES, 0) == (ssize_t)RELAY_NONCE_BYTES;
	number = atomic_fetch_add(&sender->number, 1) + 1;
	memcpy(nonce, sender->mark, RELAY_MARK_BYTES);
	for (int i = RELAY_MARK_BYTES; i < RELAY_NONCE_BYTES; i++, number >>= 8)
		nonce[i] = (unsigned char)number;
	return true;
}

bool relay_tell_here(const struct relay *relay, const char *address, uint32_t rank, const char *node)
{
	const struct relay_news news = { .text = release_own(), .here = true, .rank = rank, .node = node };

	return relay_tell(relay, address, &news) || relay_tell(relay, address, &news);
}

bool relay_tell(const struct relay *relay, const char *address, const struct relay_news *news)
{
	struct relay_message message = { .end = 0 };
	unsigned char wanted[SIPHASH_BYTES], got[SIPHASH_BYTES];
	uint64_t deadline_ns;
	bool taken;
	int fd = relay->port != 0 ? connect_to(address, relay->port) : -1;

	if (fd < 0)
		return false;
	/* Just before it is sent: another message of the node may overtake it. */
	if (!relay_make_nonce(relay->sender, message.nonce)) {
		close(fd);
		return false;
	}
	relay_write(&message, news);
	relay_sign(relay, &message, message.tag);
	relay_sign_answer(relay, &message, wanted);
	deadline_ns = ddp_now_ns() + (uint64_t)relay->reply_ms * 1000000;
	taken = send_all(fd, &message, sizeof(message), deadline_ns) &&
	        receive_all(fd, got, sizeof(got), deadline_ns) &&
	        memcmp(got, wanted, sizeof(got)) == 0;
	close(fd);
	return taken;
}

/* ---- notes ---- */

/* A text of up to `bytes` bytes, which comes printable, and with a terminator behind it. */
static void codec_text(struct codec *codec, char *text, size_t bytes)
{
	struct sink sink;

	if (codec->reads) {
		sink = sink_on(text, bytes + 1);
		sink_add_untrusted(&sink, (const char *)codec->at, bytes);
	} else {
		memset(codec->at, 0, bytes);
		memcpy(codec->at, text, strnlen(text, bytes));
	}
	codec->at += bytes;
}

const char *stall_operation(const char *wait)
{
	static const char begin[] = "collective #";
	const char *space;

	if (strncmp(wait, begin, strlen(begin)) != 0)
		return NULL;
	space = strchr(wait + strlen(begin), ' ');
	return space != NULL && space[1] != '\0' ? space + 1 : NULL;
}

bool stall_differs(const char *wait, const char *other)
{
	static const char *const same_sizes[] = { "all_reduce ", "NCCL all_reduce ", "broadcast ", "NCCL broadcast " };
	static const char nccl[] = "NCCL ";
	const char *a = stall_operation(wait), *b = stall_operation(other);
	size_t name;

	/* The same number comes first in both. */
	if (a == NULL || b == NULL || a - wait != b - other || memcmp(wait, other, (size_t)(a - wait)) != 0)
		return false;
	for (size_t i = 0; i < sizeof(same_sizes) / sizeof(same_sizes[0]); i++)
		if (strncmp(a, same_sizes[i], strlen(same_sizes[i])) == 0)
			return strcmp(a, b) != 0;
	name = strncmp(a, nccl, strlen(nccl)) == 0 ? strlen(nccl) : 0;
	name += strcspn(a + name, " ");
	return strncmp(a, b, name) != 0 || (b[name] != ' ' && b[name] != '\0');
}

/* False: a value that was read is none of its kind. */
static bool stall_fields(struct codec *codec, struct stall_note *note)
{
	uint32_t stalled = note->stalled, kind = note->kind, cut = note->cut, unseen = note->unseen;
	uint32_t *const numbers[] = { &note->ranks, &note->lowest, &note->world_size, &note->at_work, &note->absent,
		                      &note->quiet_ms, &note->rank, &note->since_ms, &note->range_count, &note->wait_ms };

	codec_8(codec, &stalled);
	codec_8(codec, &kind);
	codec_8(codec, &cut);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		codec_32(codec, numbers[i]);
	codec_64(codec, &note->collective);
	codec_64(codec, &note->wait_collective);
	for (int i = 0; i < STALL_RANGES_MAX; i++) {
		codec_32(codec, &note->ranges[i].first);
		codec_32(codec, &note->ranges[i].last);
	}
	codec_text(codec, note->who, STALL_WHO_MAX);
	codec_text(codec, note->doing, STALL_DOING_MAX);
	codec_text(codec, note->wait, STALL_WAIT_MAX);
	codec_32(codec, &note->odd);
	codec_text(codec, note->odd_wait, STALL_WAIT_MAX);
	codec_8(codec, &unseen);
	codec_32(codec, &note->unseen_ms);
	codec_text(codec, note->program, STALL_PROGRAM_MAX);
	note->stalled = stalled != 0;
	note->kind = (enum stall_kind)kind;
	note->cut = cut != 0;
	note->unseen = (enum stall_unseen)unseen;
	return stalled <= 1 && cut <= 1 && kind < STALL_KINDS && unseen < STALL_UNSEEN_KINDS;
}

void stall_pack(const struct stall_note *note, unsigned char bytes[STALL_NOTE_BYTES])
{
	struct codec codec = { .at = bytes };
	struct stall_note copy = *note;

	(void)stall_fields(&codec, &copy);
}

static bool is_sound(const struct stall_note *note)
{
	if (note->ranks == 0 || note->ranks > note->world_size || note->lowest >= note->world_size ||
	    note->at_work > note->ranks || note->absent > note->at_work ||
	    note->range_count > STALL_RANGES_MAX || note->odd > note->world_size)
		return false;
	for (uint32_t i = 0; i < note->range_count; i++)
		if (note->ranges[i].first > note->ranges[i].last ||
		    note->ranges[i].last >= note->world_size)
			return false;
	return true;
}

bool stall_unpack(const unsigned char bytes[STALL_NOTE_BYTES], struct stall_note *note)
{
	struct codec codec = { .at = (unsigned char *)(uintptr_t)bytes, .reads = true };

	*note = (struct stall_note){ .stalled = false };
	return stall_fields(&codec, note) && is_sound(note);
}

/* False: it is no such note. */
static bool pace_fields(struct codec *codec, struct pace_note *note)
{
	codec_32(codec, &note->world_size);
	codec_32(codec, &note->steps);
	codec_32(codec, &note->count);
	codec_text(codec, note->node, HOST_NAME_MAX_BYTES - 1);
	codec->at++; /* the terminator */
	if (note->steps == 0 || note->count == 0 || note->count > PACE_RANKS_MAX || note->world_size > PACE_WORLD_MAX)
		return false;
	for (uint32_t i = 0; i < note->count; i++) {
		struct pace_rank_note *rank = &note->ranks[i];
		codec_32(codec, &rank->rank);
		codec_32(codec, &rank->host_us);
		codec_32(codec, &rank->own_us);
		if (rank->rank >= note->world_size || rank->own_us > rank->host_us)
			return false;
	}
	return true;
}

void pace_pack(const struct pace_note *note, unsigned char bytes[PACE_NOTE_BYTES])
{
	struct codec codec = { .at = bytes };
	struct pace_note copy = *note;

	memset(bytes, 0, PACE_NOTE_BYTES);
	(void)pace_fields(&codec, &copy);
}

bool pace_unpack(const unsigned char bytes[PACE_NOTE_BYTES], struct pace_note *note)
{
	struct codec codec = { .at = (unsigned char *)(uintptr_t)bytes, .reads = true };

	*note = (struct pace_note){ .count = 0 };
	return pace_fields(&codec, note);
}
