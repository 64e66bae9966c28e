/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/channel.h"

#include <ctype.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "spank/base/bytes.h"

static uint64_t load(const unsigned char *bytes, size_t count)
{
	uint64_t word = 0;

	for (size_t i = 0; i < count; i++)
		word |= (uint64_t)bytes[i] << (8 * i);
	return word;
}

static uint64_t rotate(uint64_t x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
	while (rounds-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[2] = rotate(v[2], 32);
	}
}

void siphash(const unsigned char key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             unsigned char tag[SIPHASH_BYTES])
{
	const uint64_t k0 = load(key, 8), k1 = load(key + 8, 8);
	const unsigned char *p = data, *whole = p + (bytes & ~(size_t)7);
	uint64_t v[4] = { k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du,
	                  k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u };
	uint64_t word;

	for (; p < whole; p += 8) {
		word = load(p, 8);
		v[3] ^= word;
		mix(v, 2);
		v[0] ^= word;
	}
	word = load(p, bytes & 7) | (uint64_t)bytes << 56;
	v[3] ^= word;
	mix(v, 2);
	v[0] ^= word;
	v[2] ^= 0xff;
	mix(v, 4);
	word = v[0] ^ v[1] ^ v[2] ^ v[3];
	for (int i = 0; i < SIPHASH_BYTES; i++)
		tag[i] = (unsigned char)(word >> (8 * i));
}

/* Where the parts of a header are. */
enum { AT_TYPE = 0, AT_LENGTH = 4, AT_SEQUENCE = 8, AT_NUMBER = 16 };

/* The text has another length than every other text that is signed with the secret. */
void frame_begin(struct frame_stream *stream, const unsigned char secret[SIPHASH_KEY_BYTES],
                 const unsigned char nonce[FRAME_NONCE_BYTES], enum frame_side side)
{
	unsigned char text[2 + FRAME_NONCE_BYTES] = { (unsigned char)side };

	memcpy(text + 2, nonce, FRAME_NONCE_BYTES);
	for (unsigned char half = 0; half < 2; half++) {
		text[1] = half;
		siphash(secret, text, sizeof(text), stream->key + half * SIPHASH_BYTES);
	}
	stream->sequence = 0;
}

size_t frame_size(size_t payload_bytes)
{
	return FRAME_HEADER_BYTES + payload_bytes + SIPHASH_BYTES;
}

void frame_write(struct frame_stream *stream, const struct frame *frame, unsigned char *bytes)
{
	bytes_put32(bytes + AT_TYPE, frame->type);
	bytes_put32(bytes + AT_LENGTH, (uint32_t)frame->bytes);
	bytes_put64(bytes + AT_SEQUENCE, ++stream->sequence);
	bytes_put64(bytes + AT_NUMBER, frame->number);
	if (frame->bytes > 0)
		memcpy(bytes + FRAME_HEADER_BYTES, frame->payload, frame->bytes);
	siphash(stream->key, bytes, FRAME_HEADER_BYTES + frame->bytes, bytes + FRAME_HEADER_BYTES + frame->bytes);
}

/* Room grows with what has come, and not with the length that a header claims. */
static bool make_room(struct frame_reader *reader, size_t count)
{
	size_t held = reader->end - reader->begin, room = reader->room > 0 ? reader->room : 512;
	unsigned char *larger;

	if (reader->begin > 0) {
		memmove(reader->bytes, reader->bytes + reader->begin, held);
		reader->begin = 0;
		reader->end = held;
	}
	while (room < held + count)
		room *= 2;
	if (room == reader->room)
		return true;
	larger = realloc(reader->bytes, room);
	if (larger == NULL)
		return false;
	reader->bytes = larger;
	reader->room = room;
	return true;
}

void frame_add(struct frame_reader *reader, const void *bytes, size_t count)
{
	if (reader->broken || count == 0)
		return;
	if (!make_room(reader, count)) {
		reader->broken = true;
		return;
	}
	memcpy(reader->bytes + reader->end, bytes, count);
	reader->end += count;
}

/* Compares in a time that does not depend on where the tags differ. */
static bool is_same(const unsigned char *one, const unsigned char *other)
{
	unsigned char differs = 0;

	for (int i = 0; i < SIPHASH_BYTES; i++)
		differs |= one[i] ^ other[i];
	return differs == 0;
}

bool frame_next(struct frame_reader *reader, struct frame *frame)
{
	size_t held = reader->end - reader->begin, length;
	unsigned char tag[SIPHASH_BYTES];
	const unsigned char *bytes;

	if (reader->broken || held < FRAME_HEADER_BYTES)
		return false;
	bytes = reader->bytes + reader->begin;
	length = bytes_get32(bytes + AT_LENGTH);
	if (length > FRAME_PAYLOAD_MAX) {
		reader->broken = true;
		return false;
	}
	if (held < frame_size(length))
		return false;
	siphash(reader->stream.key, bytes, FRAME_HEADER_BYTES + length, tag);
	if (!is_same(tag, bytes + FRAME_HEADER_BYTES + length) ||
	    bytes_get64(bytes + AT_SEQUENCE) != reader->stream.sequence + 1) {
		reader->broken = true;
		return false;
	}
	reader->stream.sequence++;
	*frame = (struct frame){ .type = bytes_get32(bytes + AT_TYPE), .number = bytes_get64(bytes + AT_NUMBER),
		                 .payload = bytes + FRAME_HEADER_BYTES, .bytes = length };
	reader->begin += frame_size(length);
	return true;
}

uint64_t frame_question(const struct frame *frame)
{
	return frame->bytes == FRAME_QUESTION_BYTES ? bytes_get64(frame->payload) : 0;
}

void frame_end(struct frame_reader *reader)
{
	free(reader->bytes);
	*reader = (struct frame_reader){ .broken = true };
}

/* ---- the node's opening ---- */

enum { FORM = 1, AT_FORM = 0, AT_NODE_ID = 4, AT_RANK = 8, AT_TASKS = 12, AT_READ = 16, AT_NODE = 24,
       AT_RELEASE = AT_NODE + HOST_NAME_MAX_BYTES, AT_PROTOCOL = AT_RELEASE + OPENING_RELEASE_BYTES };

void opening_pack(const struct link_opening *opening, unsigned char bytes[OPENING_BYTES])
{
	memset(bytes, 0, OPENING_BYTES);
	bytes_put32(bytes + AT_FORM, FORM);
	bytes_put32(bytes + AT_NODE_ID, opening->node_id);
	bytes_put32(bytes + AT_RANK, opening->rank);
	bytes_put32(bytes + AT_TASKS, opening->tasks);
	bytes_put64(bytes + AT_READ, opening->read);
	memcpy(bytes + AT_NODE, opening->node, strnlen(opening->node, HOST_NAME_MAX_BYTES - 1));
	memcpy(bytes + AT_RELEASE, opening->release, strnlen(opening->release, OPENING_RELEASE_BYTES - 1));
	bytes_put32(bytes + AT_PROTOCOL, opening->protocol);
}

bool opening_unpack(const unsigned char bytes[OPENING_BYTES], struct link_opening *opening)
{
	const char *node = (const char *)bytes + AT_NODE;
	size_t length = strnlen(node, HOST_NAME_MAX_BYTES);

	if (bytes_get32(bytes + AT_FORM) != FORM || length == 0 || length == HOST_NAME_MAX_BYTES)
		return false;
	for (size_t i = 0; i < length; i++)
		if (!isgraph((unsigned char)node[i]))
			return false;
	*opening = (struct link_opening){ .node_id = bytes_get32(bytes + AT_NODE_ID),
		                          .rank = bytes_get32(bytes + AT_RANK),
		                          .tasks = bytes_get32(bytes + AT_TASKS),
		                          .read = bytes_get64(bytes + AT_READ),
		                          .protocol = bytes_get32(bytes + AT_PROTOCOL) };
	memcpy(opening->node, node, length);
	memcpy(opening->release, bytes + AT_RELEASE, strnlen((const char *)bytes + AT_RELEASE, OPENING_RELEASE_BYTES - 1));
	return true;
}

/* ---- a connection, and its numbered frames ---- */

enum {
	KEPT_MAX = 16 << 20,    /* bytes for a side that does not read */
	PENDING_MAX = 32 << 20,
	READ_AT_ONCE = 65536,
};

struct kept_frame {
	struct kept_frame *next;
	uint64_t number;
	uint32_t type;
	size_t bytes;
	unsigned char payload[];
};

void channel_tune(int fd, uint32_t ms)
{
	const int yes = 1;
	const unsigned int timeout = ms;

	/* If a kernel does not know an option, the connection is only slower. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &yes, sizeof(yes));
}

void channel_begin(struct channel *channel, int fd, const unsigned char secret[SIPHASH_KEY_BYTES],
                   const unsigned char nonce[FRAME_NONCE_BYTES], enum frame_side side)
{
	*channel = (struct channel){ .fd = fd };
	frame_begin(&channel->out, secret, nonce, side);
	frame_begin(&channel->in.stream, secret, nonce, side == FRAME_OF_NODE ? FRAME_OF_SRUN : FRAME_OF_NODE);
}

void channel_end(struct channel *channel)
{
	if (channel->fd >= 0)
		close(channel->fd);
	frame_end(&channel->in);
	free(channel->pending);
	*channel = (struct channel){ .fd = -1, .broken = true };
}

/* Makes room for so many more bytes. NULL: there is no memory, or the other side takes nothing. */
static unsigned char *make_room_behind(struct channel *channel, size_t count)
{
	size_t held = channel->end - channel->begin, room = channel->room > 0 ? channel->room : 256;
	unsigned char *larger;

	if (channel->broken || channel->fd < 0 || held + count > PENDING_MAX)
		return NULL;
	if (channel->begin > 0)
		memmove(channel->pending, channel->pending + channel->begin, held);
	channel->begin = 0;
	channel->end = held;
	while (room < held + count)
		room *= 2;
	if (room > channel->room) {
		larger = realloc(channel->pending, room);
		if (larger == NULL)
			return NULL;
		channel->pending = larger;
		channel->room = room;
	}
	channel->end += count;
	return channel->pending + held;
}

void channel_put_bytes(struct channel *channel, const void *bytes, size_t count)
{
	unsigned char *to = make_room_behind(channel, count);

	if (to == NULL)
		channel->broken = true;
	else
		memcpy(to, bytes, count);
}

void channel_put(struct channel *channel, uint32_t type, uint64_t number, const void *payload, size_t bytes)
{
	const struct frame frame = { .type = type, .number = number, .payload = payload, .bytes = bytes };
	unsigned char *to = make_room_behind(channel, frame_size(bytes));

	if (to == NULL)
		channel->broken = true;
	else
		frame_write(&channel->out, &frame, to);
}

void channel_put_question(struct channel *channel, uint32_t type, uint64_t read, uint64_t question)
{
	unsigned char payload[FRAME_QUESTION_BYTES];

	bytes_put64(payload, question);
	channel_put(channel, type, read, payload, sizeof(payload));
}

void channel_flush(struct channel *channel)
{
	while (!channel->broken && channel->begin < channel->end) {
		ssize_t moved = send(channel->fd, channel->pending + channel->begin, channel->end - channel->begin,
		                     MSG_NOSIGNAL | MSG_DONTWAIT);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0 && errno == EAGAIN)
			return;
		if (moved < 0) {
			channel->broken = true;
			return;
		}
		channel->begin += (size_t)moved;
		channel->written += (uint64_t)moved;
	}
}

bool channel_has_pending(const struct channel *channel)
{
	return channel->begin < channel->end;
}

/* The other side may send faster than this side takes frames. No more bytes than those of the largest frame wait
   here, and the rest waits in the kernel. */
static bool has_room(const struct channel *channel)
{
	return channel->in.end - channel->in.begin < frame_size(FRAME_PAYLOAD_MAX);
}

void channel_fill(struct channel *channel)
{
	unsigned char bytes[READ_AT_ONCE];

	while (!channel->broken && !channel->ended && has_room(channel)) {
		ssize_t got = recv(channel->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno != EAGAIN)
			channel->broken = true;
		if (got == 0)
			channel->ended = true;
		if (got > 0)
			frame_add(&channel->in, bytes, (size_t)got);
		if (got < (ssize_t)sizeof(bytes))
			return;
	}
}

uint64_t channel_acknowledged(const struct channel *channel)
{
	int waiting = 0;

	if (channel->fd < 0 || ioctl(channel->fd, SIOCOUTQ, &waiting) != 0 || waiting < 0 ||
	    (uint64_t)waiting > channel->written)
		return 0;
	return channel->written - (uint64_t)waiting;
}

bool channel_next(struct channel *channel, struct session *session, struct frame *frame)
{
	while (frame_next(&channel->in, frame)) {
		if (frame->type < FRAME_NEWS) {
			session_forget(session, frame->number);
			return true;
		}
		if (frame->number <= session->read)
			continue;
		/* Any other number means that a frame was left out. */
		if (frame->number == session->read + 1) {
			session->read++;
			return true;
		}
		channel->in.broken = true;
	}
	channel->broken |= channel->in.broken;
	return false;
}

bool session_send(struct session *session, struct channel *channel, uint32_t type, const void *payload, size_t bytes)
{
	struct kept_frame *kept;

	if (type < FRAME_NEWS || bytes > FRAME_PAYLOAD_MAX || session->kept_bytes + sizeof(*kept) + bytes > KEPT_MAX)
		return false;
	kept = malloc(sizeof(*kept) + bytes);
	if (kept == NULL)
		return false;
	*kept = (struct kept_frame){ .number = ++session->sent, .type = type, .bytes = bytes };
	if (bytes > 0)
		memcpy(kept->payload, payload, bytes);
	if (session->last != NULL)
		session->last->next = kept;
	else
		session->first = kept;
	session->last = kept;
	session->kept_bytes += sizeof(*kept) + bytes;
	if (channel == NULL || channel->fd < 0)
		return true;
	channel_put(channel, type, kept->number, payload, bytes);
	channel_flush(channel);
	return true;
}

void session_forget(struct session *session, uint64_t read)
{
	while (session->first != NULL && session->first->number <= read) {
		struct kept_frame *gone = session->first;
		session->first = gone->next;
		session->kept_bytes -= sizeof(*gone) + gone->bytes;
		free(gone);
	}
	if (session->first == NULL)
		session->last = NULL;
}

void session_send_again(struct session *session, struct channel *channel)
{
	for (const struct kept_frame *kept = session->first; kept != NULL; kept = kept->next)
		channel_put(channel, kept->type, kept->number, kept->payload, kept->bytes);
	channel_flush(channel);
}

void session_end(struct session *session)
{
	session_forget(session, UINT64_MAX);
}
