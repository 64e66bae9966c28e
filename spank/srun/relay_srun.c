/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/relay_srun.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/release.h"
#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/slurmctld/requeue_judge.h"
#include "spank/srun/links.h"
#include "spank/srun/pace_step.h"
#include "spank/srun/peers.h"
#include "spank/srun/presence.h"
#include "spank/srun/requests.h"
#include "spank/srun/step.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/timeline.h"

enum { FIXED = 4 }; /* descriptors for poll(2), beside the peers' */

static struct {
	struct relay relay;
	struct relay_actions actions;
	struct step step;
	struct replay_guard replay_guard;
	struct links links;
	uint32_t generation; /* in a step that is restarted; 0: none has begun */
	struct first_failure first;
	struct requests requests;
	struct pace_step pace;
	struct worker worker;
	atomic_int wait_status; /* the step's, for who does not wait for the worker */
	pid_t process; /* 0: not open */
	int listener, wake;
	struct peers peers;
	atomic_bool closing;
	atomic_bool launching;
	struct presence_policy presence_policy; /* set before */
} server = { .listener = -1, .wake = -1 };

/* The thread's, and from relay_close() on the caller's. */
static struct presence presence;
static struct releases releases;

static atomic_bool was_stopping;
static _Atomic uint64_t failed_at;
static atomic_bool has_survived;

static bool restarts(void)
{
	return server.actions.restart != NULL;
}

/* NULL: not known. A spare has the ranks of the node whose place it took. */
static const char *host_of(uint32_t rank)
{
	const char *host = restarts() ? server.actions.restart->host(rank) : NULL;

	return host == NULL && rank < presence.tasks ? presence.task[rank].host : host;
}

/* Names the node of a rank that others miss and have never met. */
static void add_node(struct relay_news *news, char text[RELAY_TEXT_MAX + 1])
{
	char copy[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, RELAY_TEXT_MAX + 1);
	const char *place;
	uint32_t rank;

	snprintf(copy, sizeof(copy), "%.*s", RELAY_TEXT_MAX, news->text);
	place = judge_is_hearsay(&news->facts) ? blame_place_of_node(copy, &rank) : NULL;
	if (place == NULL || host_of(rank) == NULL)
		return;
	sink_add(&sink, "%.*s on %s%s", (int)(place - copy), copy, host_of(rank), place);
	news->text = text;
}

static void take_held(bool node_failed)
{
	char text[RELAY_TEXT_MAX + 1];
	struct held_news held;
	struct relay_news news;

	if (!requests_take_held(&server.requests, &held))
		return;
	news = relay_read(&held.message);
	add_node(&news, text);
	news.facts.node_failed = node_failed;
	step_take(&server.step, &news, held.alone, held.taken_ns);
}

/* Waits so long for slurmctld's answer, if a request is under way. */
static void take_controller_answer(int ms)
{
	bool answer = false;

	switch (requests_await_answer(&server.requests, ms, &answer)) {
	case REQUEST_NODE_FAILED:
		take_held(answer);
		break;
	case REQUEST_SLURM_ENDS_IT:
		step_answer(&server.step, answer);
		break;
	case REQUEST_LOSE_NODES:
	case REQUEST_END_STEP:
	case REQUEST_NONE:
		break;
	}
	requests_go_on(&server.requests, &server.links);
}

/* Also for the job's comment. */
static void say_failure(enum event_kind kind, int wait_status, const char *node, const char *text)
{
	struct event event = event_begin(kind);

	event.wait_status = wait_status;
	event.node = node;
	event.text = text;
	if (kind != EVENT_NOTHING && server.actions.note != NULL)
		server.actions.note(&event);
	printer_print(server.actions.say, text);
}

/* If a job ends because a node failed, Slurm asks all tasks to stop. */
static void say_lost_node(void)
{
	char node[HOST_NAME_MAX_BYTES], text[HOST_NAME_MAX_BYTES + 64];
	struct sink sink = sink_on(text, sizeof(text));

	if (!server.step.stopping || server.step.said || server.actions.lost_node == NULL || !server.actions.lost_node(node))
		return;
	sink_add(&sink, node[0] != '\0' ? "node " : "a node of the job");
	sink_add_untrusted(&sink, node, sizeof(node));
	sink_add(&sink, " has failed, and SLURM has ended the job for it");
	say_failure(EVENT_NODE, 0, node, text);
}

/* Who knows the step's secret has the plugin, whatever the message is about. */
static void note_presence(const struct relay_news *news)
{
	struct stall_note note;

	if (news->here)
		releases_note(&releases, release_own(), news->node, news->text, RELAY_TEXT_MAX);
	if (news->pace != NULL)
		return;
	if (news->stall == NULL)
		presence_report(&presence, news->here ? news->rank : UINT32_MAX, news->node);
	else if (stall_unpack(news->stall, &note))
		presence_report(&presence, note.lowest, "");
}

/* A node that falls silent is a failure like others, except that no task tells of it. */
static void take_silence(uint32_t node)
{
	const struct links_node *of = links_node(&server.links, node);
	uint64_t now_ns = ddp_now_ns();
	char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));
	const struct relay_news news = { .text = text, .node = of->opening.node, .wait_status = W_EXITCODE(1, 0),
		                         .age_ms = (uint32_t)((now_ns - of->heard_ns) / 1000000),
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING, .silent = true } };

	silence_describe(of, &presence, now_ns, &sink);
	step_take(&server.step, &news, false, now_ns);
}

static void say_all_silent(void)
{
	char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));

	silence_describe_all(&server.links, ddp_now_ns(), &sink);
	if (!server.step.over)
		printer_print(server.actions.say, text);
}

static void act(const struct step_action *action)
{
	uint64_t at = server.step.wait_status != 0 ? requeue_step_in(action->text) : 0;

	if (at > 0)
		atomic_store(&failed_at, at);
	if (action->kill && server.step.policy.restarts) {
		server.actions.restart->fail(action);
		return;
	}
	atomic_store(&server.wait_status, server.step.wait_status);
	if (action->text[0] != '\0')
		say_failure(action->kind, action->wait_status, action->node, action->text);
	if (action->ask)
		requests_ask_end(&server.requests);
	if (action->kill)
		requests_end_step(&server.requests, &server.links);
	else
		requests_go_on(&server.requests, &server.links);
}

/* A failure that a node told before it fell silent goes first. */
static void act_before_silence(const struct links_node *of)
{
	uint64_t now_ns = ddp_now_ns();
	struct step_action action;
	struct sink sink;

	if (!step_act_before(&server.step, of->opening.node, of->heard_ns, now_ns, &action))
		return;
	/* The dealer adds the silence itself. */
	if (!restarts()) {
		sink = sink_behind(action.text, sizeof(action.text));
		sink_add(&sink, "; ");
		silence_describe(of, &presence, now_ns, &sink);
	}
	act(&action);
}

static void take_link_event(uint32_t node, enum links_event event)
{
	if (event == LINK_SILENT)
		act_before_silence(links_node(&server.links, node));
	if (server.actions.take_link != NULL)
		server.actions.take_link(node, event);
	/* The dealer decides what follows, until it has ended the step. */
	if (server.step.policy.restarts)
		return;
	if (event == LINK_SILENT && !server.step.over)
		take_silence(node);
	else if (event == LINK_SILENT)
		requests_end_step(&server.requests, &server.links);
	/* The ranks on srun's own host do not reach the others either, so there is nothing to wait for. */
	if (event == LINK_ALL_SILENT && links_hears_own(&server.links, ddp_now_ns()))
		links_give_up(&server.links, ddp_now_ns());
	else if (event == LINK_ALL_SILENT)
		say_all_silent();
}

struct links *relay_links(void)
{
	return &server.links;
}

/* True if the connection is a node's link from now on. */
static bool take_link(const struct relay_message *message, const struct relay_news *news, int fd)
{
	struct link_opening opening;

	if (!opening_unpack(news->opening, &opening))
		return false;
	presence_report(&presence, opening.rank, opening.node);
	releases_note(&releases, release_own(), opening.node, opening.release, sizeof(opening.release));
	return links_adopt(&server.links, fd, &server.relay, message, ddp_now_ns());
}

/* What a node tells of an older generation does not count, except that Slurm has asked the step to stop. Before the
   first generation a node names none. */
static bool is_past(const struct relay_news *news)
{
	if (!restarts() || news->generation == server.generation || news->generation == 0)
		return false;
	server.step.stopping |= news->stall == NULL && news->pace == NULL && news->facts.sent == SENT_STOP;
	return true;
}

static void take_pace(const unsigned char *note)
{
	char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));

	if (!pace_step_take(&server.pace, note))
		return;
	for (; pace_step_say(&server.pace, &sink); sink = sink_on(text, sizeof(text)))
		if (!server.step.over && !server.step.stopping)
			printer_print(server.actions.say, text);
}

/* True if the connection is kept. */
static bool take_message(const struct relay_message *message, int fd)
{
	struct relay_news news = relay_read(message);
	unsigned char tag[SIPHASH_BYTES];
	char text[RELAY_TEXT_MAX + 1];
	struct held_news held;
	bool alone;

	relay_sign(&server.relay, message, tag);
	/* A note is the node's present state, so an older one is none. Its node tells it again. */
	if (memcmp(tag, message->tag, sizeof(tag)) != 0 ||
	    !replay_guard_accept(&server.replay_guard, message->nonce, news.stall != NULL || news.pace != NULL))
		return false;
	/* A node that has hung up has waited too long, and acts itself. */
	alone = recv(fd, tag, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
	if (!alone && news.opening != NULL && take_link(message, &news, fd))
		return true;
	relay_sign_answer(&server.relay, message, tag);
	/* An empty socket has room for it. */
	if (!alone)
		send(fd, tag, sizeof(tag), MSG_NOSIGNAL | MSG_DONTWAIT);
	note_presence(&news);
	if (news.here || news.opening != NULL || is_past(&news))
		return false;
	/* No node ends a step that may be restarted. */
	alone &= !restarts();
	held = (struct held_news){ *message, alone, ddp_now_ns() };
	add_node(&news, text);
	if (news.pace != NULL)
		take_pace(news.pace);
	else if (news.stall != NULL)
		step_take_stall(&server.step, news.stall, ddp_now_ns());
	else if (!requests_hold(&server.requests, &server.step, &held))
		step_take(&server.step, &news, alone, held.taken_ns);
	return false;
}

/* Until something is due, or for good. */
static int wait_ms(void)
{
	uint64_t now = ddp_now_ns(), look = presence_due(&presence, now);
	uint64_t due = requests_await_end(&server.requests) ? UINT64_MAX : step_due(&server.step);

	if (look < due)
		due = look;
	if (links_due(&server.links, now) < due)
		due = links_due(&server.links, now);
	if (restarts() && server.actions.restart->due() < due)
		due = server.actions.restart->due();
	if (peers_due(&server.peers) < due)
		due = peers_due(&server.peers);
	if (controller_has_answer())
		return 0;
	if (due == UINT64_MAX)
		return -1;
	due = now < due ? (due - now + 999999) / 1000000 : 0;
	return due < INT_MAX ? (int)due : INT_MAX;
}

void relay_say(const char *text)
{
	printer_print(server.actions.say, text);
}

void relay_begin_generation(uint32_t generation)
{
	step_begin_again(&server.step);
	pace_step_end(&server.pace);
	first_failure_begin_again(&server.first, &server.links);
	server.generation = generation;
	requests_begin_again(&server.requests);
	atomic_store(&server.wait_status, 0);
}

void relay_end_step(const char *text, int wait_status)
{
	step_end(&server.step, wait_status, ddp_now_ns());
	atomic_store(&server.wait_status, wait_status);
	if (text[0] != '\0')
		say_failure(EVENT_RESTARTS, wait_status, "", text);
	requests_end_step(&server.requests, &server.links);
}

bool relay_take_rest(struct step_action *action)
{
	return step_finish(&server.step, action);
}

/* It is in the step's way of ending, so that all else that goes wrong is said no more. */
static void say_silent(uint64_t now_ns)
{
	char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));
	const struct relay_news news = { .text = text, .wait_status = W_EXITCODE(1, 0),
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
	bool any_reported;

	presence_silent(&presence, &any_reported);
	presence_describe(&presence, PRESENCE_RUNS, &sink);
	/* No report at all: all plugins are older, or nodes do not reach this port. */
	if ((presence.policy.refuse || restarts()) && !presence.policy.unsure && any_reported)
		step_take(&server.step, &news, false, now_ns);
	else
		printer_print(server.actions.say, text);
}

static void look_for_nodes(void)
{
	uint64_t now = ddp_now_ns();

	if (presence.tasks == 0 && atomic_load(&server.launching)) {
		presence.policy = server.presence_policy;
		presence.policy.port = server.relay.port;
		presence_begin(&presence, presence_tasks_of_table(), now);
	}
	if (presence_due(&presence, now) == UINT64_MAX)
		return;
	presence_read_table(&presence, now);
	if (!server.step.over && presence_is_late(&presence, now))
		say_silent(now);
}

/* Woken up: by relay_close() or relay_expect(). */
static bool is_closing(void)
{
	uint64_t times;

	return read(server.wake, &times, sizeof(times)) == (ssize_t)sizeof(times) && atomic_load(&server.closing);
}

static void serve_links(void)
{
	struct timespec boot = { .tv_sec = 0 };

	if (links_due(&server.links, 0) == UINT64_MAX && links_descriptor(&server.links) < 0)
		return;
	links_read(&server.links, ddp_now_ns());
	(void)clock_gettime(CLOCK_BOOTTIME, &boot);
	links_judge(&server.links, ddp_now_ns(), (uint64_t)boot.tv_sec * 1000000000u + (uint64_t)boot.tv_nsec);
	/* Otherwise srun would wait for the tasks of nodes that it has already called silent. */
	if ((server.step.said || server.step.stopping) && !server.step.over && !server.step.policy.restarts &&
	    silence_is_all_that_is_left(&server.links, &presence)) {
		step_end(&server.step, server.step.wait_status, ddp_now_ns());
		requests_end_step(&server.requests, &server.links);
	} else if (requests_any_waits(&server.requests)) {
		requests_go_on(&server.requests, &server.links);
	}
}

/* Lets nodes leave whose tasks have ended. Slurm completes a step when its last node leaves, and only then: lost nodes
   have to leave the job before, and srun, which waits for their tasks, hears of the step's end only while there is the
   step. */
static void release_nodes(void)
{
	uint64_t now_ns = ddp_now_ns(), spoke_ns;
	enum links_rest rest;

	if (!links_any_waits(&server.links))
		return;
	rest = links_rest(&server.links, restarts(), now_ns, &spoke_ns);
	/* A node that spoke before another one's good-bye may have lost its power since. */
	if (rest == REST_RUNS)
		links_let_go(&server.links, spoke_ns);
	else if (rest == REST_NONE ||
	         (requests_have_ended_step(&server.requests) && links_doubt_until(&server.links, now_ns) == 0))
		links_let_go(&server.links, UINT64_MAX);
}

static void serve(void)
{
	static struct pollfd ready[FIXED + PEERS_MAX];
	struct step_action action;

	for (;;) {
		int peers = peers_poll(&server.peers, ready + FIXED), count;
		ready[0] = (struct pollfd){ .fd = server.wake, .events = POLLIN };
		ready[1] = (struct pollfd){ .fd = server.listener, .events = POLLIN };
		ready[2] = (struct pollfd){ .fd = controller_descriptor(), .events = POLLIN };
		ready[3] = (struct pollfd){ .fd = links_descriptor(&server.links), .events = POLLIN };
		count = poll(ready, (nfds_t)(FIXED + peers), wait_ms());
		if (count > 0 && ready[0].revents != 0 && is_closing())
			break;
		take_controller_answer(0);
		look_for_nodes();
		if (count >= 0)
			peers_serve(&server.peers, ready + FIXED, peers, take_message);
		if (count > 0 && ready[1].revents != 0)
			peers_accept(&server.peers, server.listener, take_message);
		serve_links();
		first_failure_update(&server.first, &server.step, &server.links, &presence, &server.requests, ddp_now_ns());
		if (first_failure_needs_held(&server.first, &server.step, ddp_now_ns()))
			take_held(false);
		atomic_store(&was_stopping, server.step.stopping);
		while (!requests_await_end(&server.requests) && step_act(&server.step, ddp_now_ns(), &action))
			act(&action);
		if (restarts())
			server.actions.restart->act(ddp_now_ns());
		release_nodes();
	}
	take_controller_answer(JOIN_MS / 2);
	take_held(false);
	say_lost_node();
	atomic_store(&has_survived, step_has_survived(&server.step));
	if (step_finish(&server.step, &action))
		act(&action);
	atomic_store(&server.wait_status, server.step.wait_status);
}

static void close_sockets(void)
{
	if (server.listener >= 0)
		close(server.listener);
	if (server.wake >= 0)
		close(server.wake);
	server.listener = server.wake = -1;
}

static bool listen_and_start(uint16_t low, uint16_t high)
{
	const struct links_actions link_actions = { .event = take_link_event, .take = server.actions.take_frame };
	struct sockaddr_storage address;
	socklen_t bytes = sizeof(address);

	server.listener = listener_open(low, high);
	server.wake = eventfd(0, EFD_CLOEXEC);
	if (server.listener < 0 || server.wake < 0 ||
	    getsockname(server.listener, (struct sockaddr *)&address, &bytes) < 0 ||
	    getrandom(server.relay.secret, sizeof(server.relay.secret), 0) != (ssize_t)sizeof(server.relay.secret))
		return false;
	/* The port is at the same place in both families' addresses. */
	server.relay.port = ntohs(((struct sockaddr_in *)&address)->sin_port);
	channel_tune(server.listener, CONNECT_MS + REPLY_MS);
	links_start(&server.links, server.relay.secret, server.step.policy.silence_ms, &link_actions);
	return worker_start(&server.worker, serve);
}

bool relay_open(uint16_t low, uint16_t high, const struct step_policy *policy, const struct relay_actions *actions,
                char spec[RELAY_SPEC_MAX], struct error *error)
{
	struct sink sink = sink_on(spec, RELAY_SPEC_MAX);

	if (server.process == 0) {
		server.actions = *actions;
		presence_end(&presence);
		step_start(&server.step, policy);
		server.pace.percent = policy->slow_percent;
		requests_start(&server.requests, &server.actions);
		if (!listen_and_start(low, high)) {
			error_set(error, "cannot listen for the nodes' reports: %s", strerror(errno));
			close_sockets();
			return false;
		}
		server.process = getpid();
	}
	sink_add(&sink, "%u:", server.relay.port);
	for (int i = 0; i < SIPHASH_KEY_BYTES; i++)
		sink_add(&sink, "%02x", server.relay.secret[i]);
	return true;
}

void relay_expect(const struct presence_policy *policy)
{
	if (server.process != getpid() || atomic_load(&server.launching))
		return;
	server.presence_policy = *policy;
	atomic_store(&server.launching, true);
	if (!eventfd_raise(server.wake))
		atomic_store(&server.launching, false);
}

struct presence *relay_presence(void)
{
	return server.process == 0 ? &presence : NULL;
}

bool relay_has_other_releases(char text[RELAY_TEXT_MAX + 1])
{
	struct sink sink = sink_on(text, RELAY_TEXT_MAX + 1);

	return server.process == 0 && releases_describe(&releases, release_own(), &sink);
}

bool relay_was_stopping(void)
{
	return atomic_load(&was_stopping);
}

uint64_t relay_failed_at(void)
{
	return atomic_load(&failed_at);
}

int relay_close(void)
{
	int wait_status;
	bool ended;

	if (server.process != getpid())
		return 0;
	atomic_store(&server.closing, true);
	/* It may be asking a controller that does not answer. */
	ended = eventfd_raise(server.wake) && worker_join(&server.worker, JOIN_MS);
	printer_finish();
	if (!ended)
		return atomic_load(&server.wait_status);
	wait_status = atomic_load(&server.wait_status);
	peers_end(&server.peers);
	close_sockets();
	replay_guard_end(&server.replay_guard);
	pace_step_end(&server.pace);
	links_end(&server.links);
	requests_end(&server.requests);
	memset(&server, 0, sizeof(server));
	server.listener = server.wake = -1;
	return wait_status;
}

bool relay_has_survived(void)
{
	return atomic_load(&has_survived);
}
