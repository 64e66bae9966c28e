/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/links.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/bytes.h"

enum {
	AWAY_MS = 1000,       /* srun's thread did not run for so long */
	LOOKS = 20,           /* in a time of silence */
	LOOK_MIN_MS = 50, LOOK_MAX_MS = 1000,
	QUIET_PARTS = 4,      /* a node is in doubt after this part of silence=, */
	QUIET_MIN_MS = 750,   /* and not before */
	EVENTS_AT_ONCE = 64,
	SPARE_DESCRIPTORS = 512,
	PORTS_BYTES = UINT16_MAX / 8 + 1, /* a bit for each port */
};

void links_start(struct links *links, const unsigned char secret[SIPHASH_KEY_BYTES], uint32_t silence_ms,
                 const struct links_actions *actions)
{
	*links = (struct links){ .silence_ms = silence_ms, .actions = *actions, .ready = -1 };
	memcpy(links->secret, secret, sizeof(links->secret));
}

void links_end(struct links *links)
{
	for (uint32_t i = 0; i < links->count; i++) {
		channel_end(&links->nodes[i]->channel);
		session_end(&links->nodes[i]->session);
		free(links->nodes[i]);
	}
	free(links->nodes);
	if (links->ready >= 0)
		close(links->ready);
	*links = (struct links){ .ready = -1 };
}

const struct links_node *links_node(const struct links *links, uint32_t node)
{
	return node < links->count ? links->nodes[node] : NULL;
}

static void raise_event(const struct links *links, uint32_t node, enum links_event event)
{
	if (links->actions.event != NULL)
		links->actions.event(node, event);
}

/* ---- a node comes ------------------------------------------------------------------------ */

/* Each node takes a descriptor as long as the step runs. */
static void raise_limit(const struct links *links)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max ||
	    links->count + SPARE_DESCRIPTORS < limit.rlim_cur)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

static struct links_node *find_node_of_mark(const struct links *links, uint64_t mark, uint32_t *node)
{
	for (uint32_t i = 0; i < links->count; i++) {
		if (links->nodes[i]->mark == mark) {
			*node = i;
			return links->nodes[i];
		}
	}
	return NULL;
}

/* NULL without memory. */
static struct links_node *add_node_of_mark(struct links *links, uint64_t mark, uint32_t *node)
{
	struct links_node **larger, *added;
	uint32_t room = links->room > 0 ? links->room : 16;

	if (links->count == links->room) {
		room *= 2;
		larger = realloc(links->nodes, room * sizeof(*larger));
		if (larger == NULL)
			return NULL;
		links->nodes = larger;
		links->room = room;
	}
	added = calloc(1, sizeof(*added));
	if (added == NULL)
		return NULL;
	*added = (struct links_node){ .mark = mark, .channel = { .fd = -1 } };
	*node = links->count;
	links->nodes[links->count++] = added;
	return added;
}

static bool await(struct links *links, uint32_t node, int operation)
{
	struct channel *channel = &links->nodes[node]->channel;
	struct epoll_event event = { .events = EPOLLIN | (channel_has_pending(channel) ? EPOLLOUT : 0u),
		                     .data = { .u32 = node } };

	return epoll_ctl(links->ready, operation, channel->fd, &event) == 0;
}

static void close_channel(struct links_node *node)
{
	channel_end(&node->channel);
	node->open = false;
}

static void answer(struct links *links, uint32_t node, const struct relay *relay,
                   const struct relay_message *message)
{
	struct links_node *of = links->nodes[node];
	unsigned char tag[SIPHASH_BYTES];

	relay_sign_answer(relay, message, tag);
	channel_put_bytes(&of->channel, tag, sizeof(tag));
	channel_put(&of->channel, FRAME_OPENED, of->session.read, NULL, 0);
	channel_flush(&of->channel);
	session_forget(&of->session, of->opening.read);
	session_send_again(&of->session, &of->channel);
	/* The question may have been lost with the last connection. */
	if (of->asked != 0)
		channel_put_question(&of->channel, FRAME_ASK, of->session.read, of->asked);
	channel_flush(&of->channel);
}

static void note_sign_of_life(struct links *links, uint32_t node, uint64_t now_ns)
{
	struct links_node *of = links->nodes[node];
	bool was_silent = of->silent;

	of->heard_ns = now_ns;
	of->silent = false;
	if (was_silent)
		raise_event(links, node, LINK_SPOKE);
}

/* The address of an end of a connection, which `of` (getsockname() or getpeername()) tells, as IPv6 has it, and its
   port. */
static bool address_of(int fd, int (*of)(int, struct sockaddr *, socklen_t *), unsigned char address[16],
                       uint16_t *port)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct sockaddr_storage end = { .ss_family = AF_UNSPEC };
	socklen_t bytes = sizeof(end);

	if (of(fd, (struct sockaddr *)&end, &bytes) != 0)
		return false;
	/* Both families have it in one place. */
	*port = ntohs(((struct sockaddr_in *)&end)->sin_port);
	if (end.ss_family == AF_INET6) {
		memcpy(address, &((struct sockaddr_in6 *)&end)->sin6_addr, 16);
	} else {
		memcpy(address, mapped, sizeof(mapped));
		memcpy(address + sizeof(mapped), &((struct sockaddr_in *)&end)->sin_addr, 4);
	}
	return end.ss_family == AF_INET || end.ss_family == AF_INET6;
}

/* Whether both ends of a connection have the same address. Notes that of the other one. */
static bool is_own_host(int fd, unsigned char there[16])
{
	unsigned char here[16];
	uint16_t port;

	memset(there, 0, 16);
	return address_of(fd, getpeername, there, &port) && address_of(fd, getsockname, here, &port) &&
	       memcmp(here, there, 16) == 0;
}

static bool knows_question(const struct links_node *node)
{
	return node->opening.protocol >= 1;
}

static void read_node(struct links *links, uint32_t node, uint64_t now_ns);

bool links_adopt(struct links *links, int fd, const struct relay *relay, const struct relay_message *message,
                 uint64_t now_ns)
{
	const struct relay_news news = relay_read(message);
	uint64_t mark = bytes_get64(message->nonce), number = bytes_get64(message->nonce + RELAY_MARK_BYTES);
	struct link_opening opening;
	struct links_node *of;
	bool is_new;
	uint32_t node;

	if (links->silence_ms == 0 || news.opening == NULL || !opening_unpack(news.opening, &opening))
		return false;
	if (links->ready < 0)
		links->ready = epoll_create1(EPOLL_CLOEXEC);
	of = find_node_of_mark(links, mark, &node);
	is_new = of == NULL;
	if (links->ready < 0 || (of != NULL && (of->lost || number < of->number)))
		return false;
	if (is_new)
		of = add_node_of_mark(links, mark, &node);
	if (of == NULL)
		return false;
	/* The bytes that the old connection has brought count as read. */
	if (of->open)
		read_node(links, node, now_ns);
	close_channel(of);
	raise_limit(links);
	channel_tune(fd, 2 * links->silence_ms);
	channel_begin(&of->channel, fd, links->secret, message->nonce, FRAME_OF_SRUN);
	of->opening = opening;
	of->number = number;
	of->open = true;
	of->bye = of->let_go = false;
	of->own = is_own_host(fd, of->address);
	if (is_new) {
		of->heard_ns = now_ns;
		of->asked = links->asks && knows_question(of) ? links->question : 0;
	}
	answer(links, node, relay, message);
	if (!await(links, node, EPOLL_CTL_ADD)) {
		close_channel(of);
		return true;
	}
	if (is_new)
		raise_event(links, node, LINK_THERE);
	note_sign_of_life(links, node, now_ns);
	return true;
}

/* ---- what nodes say ----------------------------------------------------------------------- */

static void read_node(struct links *links, uint32_t node, uint64_t now_ns)
{
	struct links_node *of = links->nodes[node];
	bool had_pending = channel_has_pending(&of->channel), any = false, any_numbered = false;
	struct frame frame;

	channel_fill(&of->channel);
	while (of->open && channel_next(&of->channel, &of->session, &frame)) {
		any = true;
		if (frame.type == FRAME_BYE && !of->bye) {
			of->bye = links->any_waits = true;
			of->bye_ns = now_ns;
			raise_event(links, node, LINK_BYE);
		}
		if (frame.type == FRAME_TOLD && frame_question(&frame) == of->asked)
			of->asked = 0;
		if (frame.type < FRAME_NEWS)
			continue;
		any_numbered = true;
		if (links->actions.take != NULL)
			links->actions.take(node, &frame);
	}
	if (any)
		note_sign_of_life(links, node, now_ns);
	if (!of->open)
		return;
	if (any_numbered)
		channel_put(&of->channel, FRAME_READ, of->session.read, NULL, 0);
	channel_flush(&of->channel);
	if (of->channel.broken || of->channel.ended) {
		of->cut = !of->channel.ended;
		close_channel(of);
		if (!of->bye)
			raise_event(links, node, LINK_CLOSED);
	} else if (had_pending != channel_has_pending(&of->channel)) {
		await(links, node, EPOLL_CTL_MOD);
	}
}

int links_descriptor(const struct links *links)
{
	return links->silence_ms != 0 ? links->ready : -1;
}

void links_read(struct links *links, uint64_t now_ns)
{
	struct epoll_event events[EVENTS_AT_ONCE];
	uint32_t left = links->count;
	int count;

	if (links->silence_ms == 0 || links->ready < 0)
		return;
	do {
		count = epoll_wait(links->ready, events, EVENTS_AT_ONCE, 0);
		for (int i = 0; i < count; i++)
			if (links->nodes[events[i].data.u32]->open)
				read_node(links, events[i].data.u32, now_ns);
		left -= count > 0 && (uint32_t)count < left ? (uint32_t)count : left;
	} while (count == EVENTS_AT_ONCE && left > 0);
}

/* ---- who is silent -------------------------------------------------------------------------- */

static bool counts(const struct links_node *node)
{
	return node->open && !node->bye && !node->lost;
}

static uint64_t look_ns(const struct links *links)
{
	uint32_t ms = links->silence_ms / LOOKS;

	return (ms < LOOK_MIN_MS ? LOOK_MIN_MS : ms > LOOK_MAX_MS ? LOOK_MAX_MS : ms) * NS_PER_MS;
}

uint64_t links_due(const struct links *links, uint64_t now_ns)
{
	for (uint32_t i = 0; i < links->count; i++)
		if (counts(links->nodes[i]))
			return links->judged_ns + look_ns(links) > now_ns ? links->judged_ns + look_ns(links) : now_ns;
	return UINT64_MAX;
}

/* Whether this thread, or the machine, has stood still since the last look. */
static bool was_away(const struct links *links, uint64_t now_ns, uint64_t boot_ns)
{
	uint64_t longest_ns = look_ns(links) + AWAY_MS * NS_PER_MS;

	return links->judged_ns == 0 || now_ns - links->judged_ns > longest_ns ||
	       boot_ns - links->slept_ns > longest_ns;
}

/* Counts the nodes that may be silent next, and says whether all of them say nothing. A node on srun's host shows no
   network, so it counts only without others; and beside one other node it shows that the other one alone is silent. */
static uint32_t count_nodes(const struct links *links, uint64_t now_ns, bool *all_quiet)
{
	uint32_t count[2] = { 0, 0 }, quiet[2] = { 0, 0 }; /* of other hosts, and of srun's */
	bool any_waits[2] = { false, false }, own_speaks;

	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		bool says_nothing = now_ns - node->heard_ns >= links->silence_ms * NS_PER_MS / 2;
		/* A node that waits until it may leave speaks, too. */
		any_waits[node->own] |= node->open && node->bye && !says_nothing;
		if (!counts(node) || node->silent)
			continue;
		count[node->own]++;
		quiet[node->own] += says_nothing;
	}
	own_speaks = any_waits[1] || quiet[1] < count[1];
	if (count[0] == 0) {
		*all_quiet = count[1] > 0 && !own_speaks && !any_waits[0];
		return count[1];
	}
	*all_quiet = quiet[0] == count[0] && !any_waits[0] && (count[0] > 1 || !own_speaks);
	return count[0];
}

static void begin_anew(struct links *links, uint64_t now_ns)
{
	for (uint32_t i = 0; i < links->count; i++)
		links->nodes[i]->heard_ns = now_ns;
}

static void tell_silent(struct links *links, uint64_t now_ns, uint64_t limit_ns, bool several)
{
	for (uint32_t i = 0; i < links->count; i++) {
		struct links_node *node = links->nodes[i];
		if (!counts(node) || node->silent || now_ns - node->heard_ns < limit_ns)
			continue;
		if (several) {
			links->told_all = true;
			raise_event(links, i, LINK_ALL_SILENT);
			return;
		}
		node->silent = true;
		raise_event(links, i, LINK_SILENT);
	}
}

void links_judge(struct links *links, uint64_t now_ns, uint64_t boot_ns)
{
	bool away = was_away(links, now_ns, boot_ns), were_quiet = links->all_quiet;
	uint32_t count = count_nodes(links, now_ns, &links->all_quiet);

	links->judged_ns = now_ns;
	links->slept_ns = boot_ns;
	if (away || (were_quiet && !links->all_quiet && count > 1)) {
		begin_anew(links, now_ns);
		links->all_quiet = links->told_all = false;
	}
	if (!links->all_quiet)
		tell_silent(links, now_ns, links->silence_ms * NS_PER_MS, false);
	else if (!links->told_all)
		tell_silent(links, now_ns, ALL_SILENT * links->silence_ms * NS_PER_MS, count > 1);
}

bool links_hears_own(const struct links *links, uint64_t now_ns)
{
	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		if (node->own && node->open && now_ns - node->heard_ns < links->silence_ms * NS_PER_MS / 2)
			return true;
	}
	return false;
}

void links_give_up(struct links *links, uint64_t now_ns)
{
	tell_silent(links, now_ns, links->silence_ms * NS_PER_MS, false);
}

/* Whether the node has missed some beats. */
static bool is_quiet(const struct links *links, const struct links_node *node, uint64_t now_ns)
{
	uint64_t quiet_ms = links->silence_ms / QUIET_PARTS;

	return now_ns - node->heard_ns >= (quiet_ms > QUIET_MIN_MS ? quiet_ms : QUIET_MIN_MS) * NS_PER_MS;
}

uint64_t links_doubt_until(const struct links *links, uint64_t now_ns)
{
	uint64_t latest_ns = 0;

	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		uint64_t silent_ns = node->heard_ns + links->silence_ms * NS_PER_MS;
		if (!links->all_quiet && counts(node) && !node->silent && is_quiet(links, node, now_ns) &&
		    silent_ns > latest_ns)
			latest_ns = silent_ns;
	}
	return latest_ns;
}

void links_ask(struct links *links)
{
	links->asks = true;
	links->question++;
	for (uint32_t i = 0; i < links->count; i++) {
		struct links_node *node = links->nodes[i];
		if (node->bye || node->lost || node->silent || !knows_question(node))
			continue;
		node->asked = links->question;
		/* A node that opens a connection again is asked then. */
		if (!node->open)
			continue;
		channel_put_question(&node->channel, FRAME_ASK, node->session.read, node->asked);
		channel_flush(&node->channel);
		await(links, i, EPOLL_CTL_MOD);
	}
}

void links_ask_no_more(struct links *links)
{
	links->asks = false;
}

bool links_any_untold(const struct links *links)
{
	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		/* A node may have left an earlier question without an answer, and have been silent at the last one. */
		if (node->asked != 0 && node->asked == links->question && counts(node) && !node->silent)
			return true;
	}
	return false;
}

bool links_send(struct links *links, uint32_t node, uint32_t type, const void *payload, size_t bytes)
{
	struct links_node *of = node < links->count ? links->nodes[node] : NULL;
	bool had_pending;

	if (of == NULL || of->lost)
		return false;
	had_pending = channel_has_pending(&of->channel);
	if (!session_send(&of->session, of->open ? &of->channel : NULL, type, payload, bytes))
		return false;
	if (of->open && had_pending != channel_has_pending(&of->channel))
		await(links, node, EPOLL_CTL_MOD);
	return true;
}

bool links_any_waits(const struct links *links)
{
	return links->any_waits;
}

enum links_rest links_rest(const struct links *links, bool closed, uint64_t now_ns, uint64_t *spoke_ns)
{
	bool any_missing = false;

	*spoke_ns = 0;
	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *node = links->nodes[i];
		if (node->bye || (!node->open && !node->silent && !node->lost && !closed))
			continue;
		any_missing = true;
		if (counts(node) && !node->silent && !is_quiet(links, node, now_ns) && node->heard_ns > *spoke_ns)
			*spoke_ns = node->heard_ns;
	}
	return *spoke_ns > 0 ? REST_RUNS : any_missing ? REST_MISSING : REST_NONE;
}

void links_let_go(struct links *links, uint64_t before_ns)
{
	links->any_waits = false;
	for (uint32_t i = 0; i < links->count; i++) {
		struct links_node *node = links->nodes[i];
		if (!node->bye || !node->open || node->let_go)
			continue;
		if (node->bye_ns >= before_ns) {
			links->any_waits = true;
			continue;
		}
		node->let_go = true;
		channel_put(&node->channel, FRAME_LEAVE, node->session.read, NULL, 0);
		channel_flush(&node->channel);
		await(links, i, EPOLL_CTL_MOD);
	}
}

void links_lose(struct links *links, uint32_t node)
{
	struct links_node *of = node < links->count ? links->nodes[node] : NULL;

	if (of == NULL)
		return;
	of->lost = true;
	close_channel(of);
	session_end(&of->session);
}

static bool is_link(const struct links *links, int fd)
{
	for (uint32_t i = 0; i < links->count; i++)
		if (links->nodes[i]->open && links->nodes[i]->channel.fd == fd)
			return true;
	return false;
}

static bool is_shared(const struct links *links, const struct links_node *of, bool (*is_away)(uint32_t node))
{
	for (uint32_t i = 0; i < links->count; i++) {
		const struct links_node *other = links->nodes[i];
		if (other->opening.node_id != of->opening.node_id && !is_away(other->opening.node_id) &&
		    memcmp(other->address, of->address, sizeof(of->address)) == 0)
			return true;
	}
	return false;
}

static void note_listener(int fd, unsigned char ports[PORTS_BYTES])
{
	unsigned char address[16];
	int listens = 0;
	socklen_t bytes = sizeof(listens);
	uint16_t port;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0 &&
	    address_of(fd, getsockname, address, &port))
		ports[port / 8] |= (unsigned char)(1u << port % 8);
}

/* Whether somebody at this address has connected to one of these ports. */
static bool was_accepted(int fd, const unsigned char ports[PORTS_BYTES], const unsigned char address[16])
{
	unsigned char here[16], there[16];
	uint16_t port;

	return address_of(fd, getpeername, there, &port) && memcmp(there, address, sizeof(there)) == 0 &&
	       address_of(fd, getsockname, here, &port) && (ports[port / 8] >> port % 8 & 1) != 0;
}

bool links_end_srun(const struct links *links, uint32_t node, bool (*is_away)(uint32_t node))
{
	const struct links_node *of = links_node(links, node);
	unsigned char ports[PORTS_BYTES] = { 0 }; /* on which this process listens */
	struct dirent *entry;
	DIR *folder;

	if (of == NULL || of->own)
		return true;
	folder = is_shared(links, of, is_away) ? NULL : opendir("/proc/self/fd");
	if (folder == NULL)
		return false;
	while ((entry = readdir(folder)) != NULL)
		note_listener(atoi(entry->d_name), ports);
	rewinddir(folder);
	while ((entry = readdir(folder)) != NULL) {
		int fd = atoi(entry->d_name);
		if (fd > STDERR_FILENO && !is_link(links, fd) && was_accepted(fd, ports, of->address))
			(void)shutdown(fd, SHUT_RDWR);
	}
	closedir(folder);
	return true;
}
