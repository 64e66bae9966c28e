/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/requests.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/srun/step.h"

/* A request that slurmctld does not answer goes on when srun no longer listens. */
static struct {
	struct relay_actions actions;
	enum controller_request request; /* until its answer is taken */
	char *nodes;
	bool answer;
	bool runs; /* its thread was not joined */
	struct worker worker;
} controller;

static void run_request(void)
{
	switch (controller.request) {
	case REQUEST_NODE_FAILED:
		controller.answer = controller.actions.node_failed(controller.nodes);
		break;
	case REQUEST_SLURM_ENDS_IT:
		controller.answer = controller.actions.slurm_ends_it();
		break;
	case REQUEST_LOSE_NODES:
		controller.actions.lose_nodes(controller.nodes);
		break;
	case REQUEST_END_STEP:
		controller.actions.end_step();
		break;
	case REQUEST_NONE:
		break;
	}
}

/* Starts one; without a thread for it, it is done before the call returns. False if an earlier
   request is still under way, or there is no memory. `nodes`: of REQUEST_NODE_FAILED one, of REQUEST_LOSE_NODES all of
   them with commas, otherwise "". */
static bool controller_start(const struct relay_actions *actions, enum controller_request request, const char *nodes)
{
	char *copy = controller.runs ? NULL : strdup(nodes);

	if (copy == NULL)
		return false;
	free(controller.nodes);
	controller.nodes = copy;
	controller.actions = *actions;
	controller.request = request;
	controller.answer = false;
	controller.runs = worker_start(&controller.worker, run_request);
	if (!controller.runs)
		run_request();
	return true;
}

int controller_descriptor(void)
{
	return controller.runs ? controller.worker.done : -1;
}

bool controller_has_answer(void)
{
	return !controller.runs && controller.request != REQUEST_NONE;
}

bool controller_finish(int ms, enum controller_request *request, bool *answer)
{
	if (controller.runs && !worker_join(&controller.worker, ms))
		return false;
	controller.runs = false;
	*request = controller.request;
	*answer = controller.answer;
	controller.request = REQUEST_NONE;
	return true;
}

void losses_add(struct losses *losses, uint32_t node)
{
	uint32_t room = losses->room > 0 ? 2 * losses->room : 16, *larger;

	for (uint32_t i = 0; i < losses->count; i++)
		if (losses->nodes[i] == node)
			return;
	if (losses->count == losses->room) {
		larger = realloc(losses->nodes, room * sizeof(*larger));
		if (larger == NULL)
			return;
		losses->nodes = larger;
		losses->room = room;
	}
	losses->nodes[losses->count++] = node;
}

void losses_add_all(struct losses *losses, const struct links *links)
{
	const struct links_node *node;

	for (uint32_t i = 0; (node = links_node(links, i)) != NULL; i++)
		if ((node->silent || node->lost) && !node->bye)
			losses_add(losses, i);
}

bool losses_any_new(const struct losses *losses)
{
	return losses->asked < losses->count;
}

static const char *name_of(const struct losses *losses, const struct links *links, uint32_t index)
{
	return links_node(links, losses->nodes[index])->opening.node;
}

char *losses_names(const struct losses *losses, const struct links *links)
{
	size_t bytes = 0;
	char *names, *end;

	for (uint32_t i = losses->asked; i < losses->count; i++)
		bytes += strlen(name_of(losses, links, i)) + 1;
	names = bytes > 0 ? malloc(bytes) : NULL;
	end = names;
	for (uint32_t i = losses->asked; names != NULL && i < losses->count; i++) {
		end = stpcpy(end, name_of(losses, links, i));
		*end++ = i + 1 < losses->count ? ',' : '\0';
	}
	return names;
}

void losses_note_request(struct losses *losses)
{
	losses->asked = losses->count;
}

void losses_end(struct losses *losses)
{
	free(losses->nodes);
	*losses = (struct losses){ .nodes = NULL };
}

void requests_start(struct requests *requests, const struct relay_actions *actions)
{
	*requests = (struct requests){ .actions = actions };
}

void requests_end(struct requests *requests)
{
	losses_end(&requests->losses);
}

void requests_begin_again(struct requests *requests)
{
	requests->holds = requests->asked = requests->asks_end = false;
}

bool requests_hold(struct requests *requests, const struct step *step, const struct held_news *held)
{
	const struct relay_news news = relay_read(&held->message);

	if (step->over || step->stopping || requests->actions->node_failed == NULL || requests->holds ||
	    news.node[0] == '\0' || !judge_may_be_node(&news.facts) ||
	    (requests->asked && !step->policy.outlives_nodes) ||
	    !controller_start(requests->actions, REQUEST_NODE_FAILED, news.node))
		return false;
	requests->asked = requests->holds = true;
	requests->held = *held;
	return true;
}

/* Whether there are news that are held. */
static bool requests_hold_any(const struct requests *requests)
{
	return requests->holds;
}

bool requests_take_held(struct requests *requests, struct held_news *held)
{
	if (!requests->holds)
		return false;
	requests->holds = false;
	*held = requests->held;
	return true;
}

void requests_ask_end(struct requests *requests)
{
	requests->asks_end = true;
}

bool requests_await_end(const struct requests *requests)
{
	return requests->asks_end;
}

void requests_end_step(struct requests *requests, const struct links *links)
{
	losses_add_all(&requests->losses, links);
	requests->ends_step = true;
	requests_go_on(requests, links);
}

/* False: there is no such request. */
static bool lose_nodes(struct requests *requests, const struct links *links)
{
	char *names = requests->actions->lose_nodes != NULL ? losses_names(&requests->losses, links) : NULL;

	if (names == NULL)
		return false;
	if (controller_start(requests->actions, REQUEST_LOSE_NODES, names))
		losses_note_request(&requests->losses);
	free(names);
	return true;
}

/* Silent nodes leave the job before the step ends: Slurm keeps a step that has ended before as long as such a node
   does not answer. */
void requests_go_on(struct requests *requests, const struct links *links)
{
	if (controller_descriptor() >= 0 || lose_nodes(requests, links))
		return;
	if (requests->ends_step)
		requests->ends_step = !controller_start(requests->actions, REQUEST_END_STEP, "");
	else if (requests->asks_end)
		controller_start(requests->actions, REQUEST_SLURM_ENDS_IT, "");
}

enum controller_request requests_await_answer(struct requests *requests, int ms, bool *answer)
{
	enum controller_request request;

	if (!controller_finish(ms, &request, answer))
		return REQUEST_NONE;
	requests->ended_step |= request == REQUEST_END_STEP;
	if (request == REQUEST_SLURM_ENDS_IT && !requests->asks_end)
		return REQUEST_NONE;
	if (request == REQUEST_SLURM_ENDS_IT)
		requests->asks_end = false;
	return request;
}

bool requests_any_waits(const struct requests *requests)
{
	return losses_any_new(&requests->losses) || requests->ends_step;
}

bool requests_have_ended_step(const struct requests *requests)
{
	return requests->ended_step && !requests_any_waits(requests) && controller_descriptor() < 0;
}

/* ---- which failure was the first one ---- */

static uint64_t wait_ns(const struct step *step)
{
	return step->policy.ask_ms * 1000000ull;
}

/* Until when srun may still hear of a failure that was before the one that is held; 0: it cannot. */
static uint64_t untold_until(const struct first_failure *first, const struct step *step, const struct links *links,
                             struct presence *presence, const struct requests *requests)
{
	if (first->asked_ns == 0)
		return 0;
	if (links_any_untold(links) || requests_hold_any(requests))
		return first->asked_ns + wait_ns(step);
	return presence_untold_until(presence, first->asked_ns, wait_ns(step));
}

void first_failure_begin_again(struct first_failure *first, struct links *links)
{
	first->asked_ns = 0;
	links_ask_no_more(links);
}

void first_failure_update(struct first_failure *first, struct step *step, struct links *links,
                          struct presence *presence, const struct requests *requests, uint64_t now_ns)
{
	uint64_t until_ns;

	if (!step_holds(step)) {
		first_failure_begin_again(first, links);
	} else if (first->asked_ns == 0 && step->policy.ask_ms > 0) {
		first->asked_ns = now_ns;
		links_ask(links);
	}
	step->doubt_ns = links_doubt_until(links, now_ns);
	until_ns = untold_until(first, step, links, presence, requests);
	if (until_ns > step->doubt_ns)
		step->doubt_ns = until_ns;
}

bool first_failure_needs_held(const struct first_failure *first, const struct step *step, uint64_t now_ns)
{
	return first->asked_ns != 0 && now_ns >= first->asked_ns + wait_ns(step) && step_due(step) <= now_ns;
}

/* ---- sentences ---- */

enum { SENTENCES_MAX = 8 };

struct sentence {
	void (*say)(const char *text);
	char text[STEP_TEXT_MAX];
};

static struct {
	pthread_mutex_t lock;
	struct sentence waiting[SENTENCES_MAX]; /* the oldest first */
	int count;
	bool works;  /* the thread will look for more before it ends */
	bool started; /* it has been started, and not joined */
	struct worker worker;
} printer = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static void drop_first(void)
{
	printer.count--;
	memmove(&printer.waiting[0], &printer.waiting[1], (size_t)printer.count * sizeof(printer.waiting[0]));
}

static bool take_sentence(struct sentence *sentence)
{
	bool any;

	pthread_mutex_lock(&printer.lock);
	any = printer.count > 0;
	if (any) {
		*sentence = printer.waiting[0];
		drop_first();
	}
	printer.works = any;
	pthread_mutex_unlock(&printer.lock);
	return any;
}

/* SLURM's log drops a line that stderr does not take within 5 s. */
static void wait_for_reader(void)
{
	struct pollfd error_output = { .fd = STDERR_FILENO, .events = POLLOUT };

	while (poll(&error_output, 1, -1) < 0 && errno == EINTR)
		continue;
}

static void print_all(void)
{
	struct sentence sentence;

	while (take_sentence(&sentence)) {
		wait_for_reader();
		sentence.say(sentence.text);
	}
}

/* With the lock. True if there is no thread to say what waits. */
static bool start_printer(void)
{
	if (printer.works)
		return false;
	if (printer.started)
		worker_join(&printer.worker, INT_MAX); /* it is about to end */
	printer.started = printer.works = worker_start(&printer.worker, print_all);
	return !printer.started;
}

void printer_print(void (*say)(const char *text), const char *text)
{
	struct sink sink;
	bool alone;

	pthread_mutex_lock(&printer.lock);
	if (printer.count == SENTENCES_MAX)
		drop_first();
	printer.waiting[printer.count].say = say;
	sink = sink_on(printer.waiting[printer.count].text, sizeof(printer.waiting[0].text));
	sink_add(&sink, "%s", text);
	printer.count++;
	alone = start_printer();
	pthread_mutex_unlock(&printer.lock);
	if (alone)
		print_all();
}

void printer_finish(void)
{
	bool started;

	pthread_mutex_lock(&printer.lock);
	started = printer.started;
	printer.started = false;
	pthread_mutex_unlock(&printer.lock);
	while (started && !worker_join(&printer.worker, INT_MAX))
		continue;
}
