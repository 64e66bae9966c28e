/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"

void lease_begin(struct lease *lease, uint64_t now_ns)
{
	*lease = (struct lease){ .renewed_ns = now_ns };
}

void lease_reconnect(struct lease *lease)
{
	lease->count = 0;
}

void lease_write(struct lease *lease, uint64_t written, uint64_t now_ns)
{
	if (lease->count > 0 && lease->marks[lease->count - 1].written >= written)
		return;
	/* Without room, later bytes count as written with the last mark, so that the lease is older than it seems,
	   and never younger. */
	if (lease->count == LEASE_MARKS)
		lease->marks[LEASE_MARKS - 1].written = written;
	else
		lease->marks[lease->count++] = (struct lease_mark){ written, now_ns };
}

void lease_acknowledge(struct lease *lease, uint64_t acknowledged)
{
	int gone = 0;

	while (gone < lease->count && lease->marks[gone].written <= acknowledged)
		gone++;
	if (gone == 0)
		return;
	if (lease->marks[gone - 1].ns > lease->renewed_ns)
		lease->renewed_ns = lease->marks[gone - 1].ns;
	lease->count -= gone;
	memmove(&lease->marks[0], &lease->marks[gone], (size_t)lease->count * sizeof(lease->marks[0]));
}

uint64_t lease_waits_ns(const struct lease *lease, uint64_t now_ns)
{
	return lease->count > 0 && now_ns > lease->marks[0].ns ? now_ns - lease->marks[0].ns : 0;
}

enum {
	BEATS = 20,           /* in a time of silence */
	BEAT_MIN_MS = 100, BEAT_MAX_MS = 1000,
	STUCK_MS = 1000,      /* without an acknowledgement */
	AGAIN_CONNECT_MS = 500, /* after so long a new attempt, */
	OFTEN = 120,          /* so often, */
	SELDOM_MS = 10000,    /* and then this seldom: srun is probably gone */
	ANSWER_MS = 10000,    /* srun may be stopped, or be busy with many nodes */
};

static uint32_t beat_ms(const struct link *link)
{
	uint32_t ms = link->facts.silence_ms / BEATS;

	return ms < BEAT_MIN_MS ? BEAT_MIN_MS : ms > BEAT_MAX_MS ? BEAT_MAX_MS : ms;
}

uint32_t link_fence_ms(uint32_t silence_ms)
{
	uint32_t margin_ms = silence_ms / 5 > 1000 ? silence_ms / 5 : 1000;

	return silence_ms > 2 * margin_ms ? silence_ms - margin_ms : silence_ms / 2;
}

static void close_line(struct link_line *line)
{
	channel_end(&line->channel);
	line->state = LINE_NONE;
}

void link_start(struct link *link, const struct link_facts *facts)
{
	*link = (struct link){ .facts = *facts, .relay = *facts->relay,
		               .now = { .channel = { .fd = -1 } }, .next = { .channel = { .fd = -1 } } };
	snprintf(link->address, sizeof(link->address), "%s", facts->address);
	link->facts.relay = &link->relay;
	link->facts.address = link->address;
	lease_begin(&link->lease, ddp_now_ns());
}

bool link_is_started(const struct link *link)
{
	return link->facts.silence_ms != 0;
}

bool link_was_open(const struct link *link)
{
	return link->was_open;
}

bool link_is_refused(const struct link *link)
{
	return link->refused;
}

bool link_is_cut_off(const struct link *link)
{
	return link->cut_off;
}

/* Nobody listens where srun was. Only a refusal proves this: a connection may also end because packets were lost. */
static void note_refusal(struct link *link)
{
	link->cut_off |= link->was_open && !link->left && link_lease_ms(link) >= link->facts.silence_ms;
}

/* ---- opening ------------------------------------------------------------------------- */

static void start_line(struct link *link, struct link_line *line, uint64_t now_ns)
{
	struct sockaddr_storage address;
	socklen_t bytes;
	int fd;

	link->tries++;
	link->retry_ns = now_ns + (link->tries < OFTEN ? AGAIN_CONNECT_MS : SELDOM_MS) * NS_PER_MS;
	if (!relay_address(link->address, link->relay.port, &address, &bytes))
		return;
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return;
	channel_tune(fd, 2 * link->facts.silence_ms);
	if (connect(fd, (struct sockaddr *)&address, bytes) != 0 && errno != EINPROGRESS) {
		if (errno == ECONNREFUSED)
			note_refusal(link);
		close(fd);
		return;
	}
	*line = (struct link_line){ .state = LINE_CONNECTS, .channel = { .fd = fd }, .since_ns = now_ns };
}

/* Sends the opening, once the line is connected. */
static void send_opening(struct link *link, struct link_line *line, uint64_t now_ns)
{
	unsigned char opening[OPENING_BYTES];
	const struct relay_news news = { .text = "", .opening = opening };
	struct relay_message message = { .end = 0 };
	int fd = line->channel.fd;

	link->facts.opening.read = link->session.read;
	opening_pack(&link->facts.opening, opening);
	if (!relay_make_nonce(link->relay.sender, message.nonce)) {
		close_line(line);
		return;
	}
	relay_write(&message, &news);
	relay_sign(&link->relay, &message, message.tag);
	relay_sign_answer(&link->relay, &message, line->answer);
	channel_begin(&line->channel, fd, link->relay.secret, message.nonce, FRAME_OF_NODE);
	channel_put_bytes(&line->channel, &message, sizeof(message));
	channel_flush(&line->channel);
	line->state = LINE_ASKS;
	line->since_ns = now_ns;
}

static void finish_connect(struct link *link, struct link_line *line, uint64_t now_ns)
{
	struct pollfd ready = { .fd = line->channel.fd, .events = POLLOUT };
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (poll(&ready, 1, 0) == 1) {
		if (getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
			error = EIO;
		if (error == ECONNREFUSED)
			note_refusal(link);
		if (error == 0)
			send_opening(link, line, now_ns);
		else
			close_line(line);
		return;
	}
	/* The kernel repeats a lost packet after a second, and then more and more seldom: a new attempt is quicker. */
	if (now_ns - line->since_ns >= AGAIN_CONNECT_MS * NS_PER_MS)
		close_line(line);
}

/* srun answers with the tag first, as it answers every message. */
static void take_answer(struct link_line *line)
{
	while (line->answered < SIPHASH_BYTES && !line->channel.broken && !line->channel.ended) {
		unsigned char byte;
		ssize_t got = recv(line->channel.fd, &byte, 1, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return;
		line->channel.ended |= got == 0;
		line->channel.broken |= got < 0 || (got == 1 && byte != line->answer[line->answered]);
		line->answered += got == 1;
	}
}

/* srun has taken the connection: it replaces the one before. */
static void open_line(struct link *link, struct link_line *line, uint64_t srun_read, uint64_t now_ns)
{
	struct link_line opened = *line;

	*line = (struct link_line){ .channel = { .fd = -1, .broken = true } };
	if (line != &link->now)
		close_line(&link->now);
	else
		close_line(&link->next);
	link->now = opened;
	link->now.state = LINE_OPEN;
	link->was_open = true;
	link->left = false;
	link->tries = 0;
	link->beat_ns = now_ns;
	lease_reconnect(&link->lease);
	session_forget(&link->session, srun_read);
	session_send_again(&link->session, &link->now.channel);
	/* srun takes a node that opens a connection for one whose tasks run. */
	if (link->said_bye)
		channel_put(&link->now.channel, FRAME_BYE, link->session.read, NULL, 0);
}

static void read_answer(struct link *link, struct link_line *line, uint64_t now_ns)
{
	uint64_t limit_ms = channel_acknowledged(&line->channel) < line->channel.written ? STUCK_MS : ANSWER_MS;
	struct frame frame;

	channel_flush(&line->channel);
	take_answer(line);
	if (line->answered == SIPHASH_BYTES) {
		channel_fill(&line->channel);
		if (frame_next(&line->channel.in, &frame)) {
			if (frame.type == FRAME_OPENED) {
				open_line(link, line, frame.number, now_ns);
				return;
			}
			line->channel.broken = true;
		}
		/* srun has taken the message, and does not know links. */
		link->refused |= line->channel.ended && !link->was_open;
	}
	if (line->channel.broken || line->channel.ended || now_ns - line->since_ns >= limit_ms * NS_PER_MS)
		close_line(line);
}

/* ---- the open line ------------------------------------------------------------------- */

static void serve(struct link *link, uint64_t now_ns)
{
	struct channel *channel = &link->now.channel;
	bool any_numbered = false;
	struct frame frame;

	lease_acknowledge(&link->lease, channel_acknowledged(channel));
	channel_fill(channel);
	while (channel_next(channel, &link->session, &frame)) {
		link->may_leave |= frame.type == FRAME_LEAVE;
		if (frame.type == FRAME_ASK)
			link->asked = frame_question(&frame);
		if (frame.type < FRAME_NEWS)
			continue;
		any_numbered = true;
		if (link->facts.take != NULL)
			link->facts.take(link->facts.about, &frame);
	}
	/* No beat is added while the kernel has not taken the last one. */
	if (any_numbered || (now_ns >= link->beat_ns && !channel_has_pending(channel)))
		channel_put(channel, FRAME_BEAT, link->session.read, NULL, 0);
	if (now_ns >= link->beat_ns)
		link->beat_ns = now_ns + beat_ms(link) * NS_PER_MS;
	channel_flush(channel);
	lease_write(&link->lease, channel->written, now_ns);
	if (channel->broken || channel->ended) {
		close_line(&link->now);
		link->left = link_lease_ms(link) < link->facts.silence_ms;
	}
}

static void advance(struct link *link, struct link_line *line, uint64_t now_ns)
{
	if (line->state == LINE_CONNECTS)
		finish_connect(link, line, now_ns);
	if (line->state == LINE_ASKS)
		read_answer(link, line, now_ns);
}

static bool wants_another(const struct link *link, uint64_t now_ns)
{
	if (link->refused || link->next.state != LINE_NONE || now_ns < link->retry_ns)
		return false;
	return link->now.state != LINE_OPEN || lease_waits_ns(&link->lease, now_ns) >= STUCK_MS * NS_PER_MS;
}

int link_tick(struct link *link)
{
	uint64_t now_ns = ddp_now_ns(), due_ns;

	if (!link_is_started(link) || link->refused)
		return -1;
	if (link->now.state == LINE_OPEN)
		serve(link, now_ns);
	advance(link, &link->next, now_ns);
	/* srun's host answers on the first connection again. */
	if (link->now.state == LINE_OPEN && link->next.state == LINE_CONNECTS &&
	    lease_waits_ns(&link->lease, now_ns) < STUCK_MS * NS_PER_MS)
		close_line(&link->next);
	if (wants_another(link, now_ns)) {
		start_line(link, &link->next, now_ns);
		advance(link, &link->next, now_ns);
	}
	if (link->refused)
		return -1;
	due_ns = link->now.state == LINE_OPEN ? link->beat_ns : link->retry_ns;
	if (link->next.state != LINE_NONE && due_ns > now_ns + BEAT_MIN_MS * NS_PER_MS)
		due_ns = now_ns + BEAT_MIN_MS * NS_PER_MS;
	now_ns = ddp_now_ns();
	return due_ns > now_ns ? (int)((due_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

static struct pollfd wait_for(const struct link_line *line)
{
	struct pollfd ready = { .fd = line->state != LINE_NONE ? line->channel.fd : -1, .events = POLLIN };

	if (line->state == LINE_CONNECTS)
		ready.events = POLLOUT;
	else if (line->state != LINE_NONE && channel_has_pending(&line->channel))
		ready.events |= POLLOUT;
	return ready;
}

void link_poll(const struct link *link, struct pollfd ready[LINK_FDS])
{
	ready[0] = link_is_started(link) ? wait_for(&link->now) : (struct pollfd){ .fd = -1 };
	ready[1] = link_is_started(link) ? wait_for(&link->next) : (struct pollfd){ .fd = -1 };
}

bool link_send(struct link *link, uint32_t type, const void *payload, size_t bytes)
{
	bool open = link_is_started(link) && link->now.state == LINE_OPEN;

	/* link_start() would forget it. */
	if (!link_is_started(link) || !session_send(&link->session, open ? &link->now.channel : NULL, type, payload, bytes))
		return false;
	if (open)
		lease_write(&link->lease, link->now.channel.written, ddp_now_ns());
	return true;
}

uint32_t link_lease_ms(const struct link *link)
{
	uint64_t now_ns = ddp_now_ns(), age_ms;

	if (!link_is_started(link) || now_ns <= link->lease.renewed_ns)
		return 0;
	age_ms = (now_ns - link->lease.renewed_ns) / NS_PER_MS;
	return age_ms < UINT32_MAX ? (uint32_t)age_ms : UINT32_MAX;
}

uint64_t link_asked(const struct link *link)
{
	return link->asked;
}

/* srun asks again over a new connection. */
void link_answer(struct link *link)
{
	uint64_t question = link->asked;

	link->asked = 0;
	if (!link_is_started(link) || link->now.state != LINE_OPEN)
		return;
	channel_put_question(&link->now.channel, FRAME_TOLD, link->session.read, question);
	channel_flush(&link->now.channel);
	lease_write(&link->lease, link->now.channel.written, ddp_now_ns());
}

void link_say_bye(struct link *link)
{
	if (!link_is_started(link) || link->said_bye)
		return;
	link->said_bye = true;
	link->facts.take = NULL;
	if (link->now.state != LINE_OPEN)
		return;
	channel_put(&link->now.channel, FRAME_BYE, link->session.read, NULL, 0);
	channel_flush(&link->now.channel);
}

bool link_was_let_go(const struct link *link)
{
	return link->may_leave;
}

bool link_may_leave(const struct link *link)
{
	return link->may_leave || link->now.state != LINE_OPEN;
}

void link_end(struct link *link)
{
	if (!link_is_started(link))
		return;
	link_say_bye(link);
	close_line(&link->now);
	close_line(&link->next);
	session_end(&link->session);
	*link = (struct link){ .now = { .channel = { .fd = -1 } }, .next = { .channel = { .fd = -1 } } };
}
