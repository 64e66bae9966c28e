/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/ends.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/node/generation.h"
#include "spank/wire/timeline.h"

enum {
	LOOK_MS = 50,       /* how often, where the kernel gives no descriptor of a process, */
	LOOK_MAX_MS = 1000, /* and how often in the end, if nothing happens */
	BESIDE_TASKS = 3 + LINK_FDS, /* descriptors */
	STATUS_MS = 2, /* how often Slurm is asked for the status of a task that it has just reaped, */
	STATUS_LOOKS = 500, /* and after that many times as seldom as if it still ran */
};

static struct {
	struct node *node;
	void (*act)(enum end_delay delay);
	pthread_mutex_t lock; /* of the node, while the thread runs */
	struct worker worker;
	bool running;
	bool acted;         /* a request to end the step may be under way */
	uint32_t callbacks; /* Slurm's, for tasks that it has reaped */
	enum {
		REST_LATER,   /* the thread watches the tasks */
		REST_BEGUN,   /* it has ended the witness, and tells srun of the end */
		REST_LEFT     /* for who ends the thread */
	} rest;
	pthread_cond_t rest_changed;
	struct generation generation; /* of a step with restart= */
	int wake;
	atomic_bool finishes; /* ends_finish() waits for the thread */
	struct pollfd *ready; /* by local task; behind them `wake`, the witness or its keeper, the
	                         agents' news, and the link */
	int asked;            /* how often for the status of a task that is gone */
	int untold;           /* how often such a task has put off the answer to srun */
	int look_ms;          /* of LOOK_MS */
	int witness_ms;       /* of LOOK_MS, until there is a witness */
	uint64_t lost_ns;     /* when the thread saw that the witness and its keeper are gone; 0: not yet */
	uint64_t lose_ns;     /* when it is to take them for lost again, as srun has not heard of it, */
	int losses;           /* and how often it has done so in vain */
	bool witness_done;    /* nobody has to look at them any more */
} ends = { .lock = PTHREAD_MUTEX_INITIALIZER, .rest = REST_LEFT, .rest_changed = PTHREAD_COND_INITIALIZER };

/* The process of the task, or of its agent. */
static pid_t slurms_process(const struct supervise *supervise, uint32_t local_task)
{
	return supervise->agents.shared != NULL ? supervise->agents.pids[local_task] : supervise->pids[local_task];
}

static void forget_process(uint32_t local_task)
{
	if (ends.ready[local_task].fd >= 0)
		close(ends.ready[local_task].fd);
	ends.ready[local_task].fd = -1;
}

static void task_ended(const struct node_task *task)
{
	enum end_delay delay = node_take_end(ends.node, task);

	ends.look_ms = LOOK_MS;
	if (ends.generation.node != NULL)
		generation_done(&ends.generation, task->local_id);
	/* srun alone decides what follows from the end of a program that can be started again. */
	else if (delay != DELAY_NEVER) {
		ends.acted = true;
		ends.act(delay);
	}
}

int ends_next_look_ms(int look_ms)
{
	int next_ms = look_ms + look_ms / 8;

	return next_ms < LOOK_MAX_MS ? next_ms : LOOK_MAX_MS;
}

/* Takes what has ended, and tells after how long to look again; -1: when a descriptor is ready. */
static int take_ended(void)
{
	struct supervise *supervise = &ends.node->supervise;
	bool all_watched = true, any_gone = false, has_agents = ends.generation.node != NULL;

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		const struct supervise_task *shared = &supervise->shared->task[i];
		struct node_task task = { .local_id = i, .global_id = shared->rank };
		enum task_state state = supervise_state(supervise, i, &task.wait_status);
		if (has_agents ? agents_agent_runs(&supervise->agents, i) : state == TASK_RUNS)
			all_watched &= ends.ready[i].fd >= 0;
		else
			forget_process(i);
		if (state == TASK_RUNS || supervise->pids[i] == 0)
			continue;
		/* Slurm's own callback knows more of a task that failed before its program began. */
		if (!has_agents && atomic_load(&shared->start_ns) == 0)
			continue;
		if (state == TASK_ENDED)
			task_ended(&task);
		any_gone |= state == TASK_GONE;
	}
	ends.asked = any_gone ? ends.asked + 1 : 0;
	if (any_gone && ends.asked < STATUS_LOOKS)
		return STATUS_MS;
	if (all_watched && !any_gone)
		return -1;
	ends.look_ms = ends_next_look_ms(ends.look_ms);
	return ends.look_ms;
}

/* Returns the shorter of two times to wait. A time of -1 is for ever. */
static int sooner(int one_ms, int other_ms)
{
	return one_ms < 0 || (other_ms >= 0 && other_ms < one_ms) ? other_ms : one_ms;
}

/* Notices when somebody kills the witness and its keeper, at once and not at the next task's end: what
   Slurm kills, it kills together. Tells after how long to look again; -1: when a descriptor is ready. */
static int watch_witness(struct pollfd *ready)
{
	const struct witness *witness = &ends.node->supervise.shared->witness;
	pid_t present = witness_present(witness);
	uint64_t now_ns = ddp_now_ns();

	if (ready->fd >= 0 && ready->revents != 0) {
		close(ready->fd);
		ready->fd = -1;
	}
	if (ends.witness_done)
		return -1;
	if (present > 0 && ready->fd < 0)
		ready->fd = handle_open(present);
	if (present > 0 && ready->fd >= 0)
		return -1;
	/* There is none yet, or the kernel gives no descriptor. */
	if (present > 0 || !witness_was_killed(witness)) {
		ends.witness_ms = ends_next_look_ms(ends.witness_ms);
		return ends.witness_ms;
	}
	if (ends.lost_ns == 0)
		ends.lost_ns = now_ns;
	if (now_ns - ends.lost_ns < LOSS_MS * 1000000ull)
		return SETTLE_MS;
	if (now_ns < ends.lose_ns)
		return (int)((ends.lose_ns - now_ns) / 1000000) + 1;
	ends.witness_done = node_lose_witness(ends.node) || ++ends.losses >= SILENT_MS / REPORT_MS;
	ends.lose_ns = now_ns + REPORT_MS * 1000000ull;
	return ends.witness_done ? -1 : REPORT_MS;
}

static bool send_to_srun(uint32_t type, const void *payload, size_t bytes)
{
	return link_send(&ends.node->link, type, payload, bytes);
}

static uint32_t lease_ms(void)
{
	return link_lease_ms(&ends.node->link);
}

static void take_frame(void *about, const struct frame *frame)
{
	generation_take(about, frame->type, frame->payload, frame->bytes);
}

/* False without memory for it. */
static bool begin_generations(void)
{
	const struct generation_facts facts = { .node_id = ends.node->node_id, .silence_ms = ends.node->silence_ms,
		                                .fence_ms = link_fence_ms(ends.node->silence_ms),
		                                .send = send_to_srun, .lease_ms = lease_ms,
		                                .find_address = ends.node->find_address };

	if (ends.node->supervise.agents.shared == NULL)
		return true;
	ends.node->take_frame = take_frame;
	ends.node->about_frames = &ends.generation;
	return generation_start(&ends.generation, ends.node, &facts);
}

static void note_rest(int rest)
{
	pthread_mutex_lock(&ends.lock);
	ends.rest = rest;
	pthread_cond_broadcast(&ends.rest_changed);
	pthread_mutex_unlock(&ends.lock);
}

/* What follows the last end takes milliseconds, and Slurm may wait longer than that before it reaps the last task.
   Whoever asks for the end of the step looks at the witness until then. */
static void end_after_last_task(void)
{
	if (ends.acted || supervise_processes(&ends.node->supervise) > 0) {
		note_rest(REST_LEFT);
		return;
	}
	node_end_witness(ends.node);
	note_rest(REST_BEGUN);
	node_tell_end(ends.node);
}

/* srun holds a failure until it knows of all earlier ones. `asked`: the question that srun had asked before the last
   look at the tasks. Tells after how long to look again; -1: srun does not ask, or was answered. */
static int answer_srun(uint64_t asked)
{
	struct link *link = &ends.node->link;

	if (link_asked(link) == 0)
		return -1;
	if (link_asked(link) != asked)
		return 0;
	/* Slurm or an agent has yet to tell how a task has ended that is gone. srun does not wait for long. */
	if ((ends.asked > 0 || supervise_any_untold(&ends.node->supervise)) && ++ends.untold < STATUS_LOOKS)
		return STATUS_MS;
	ends.untold = 0;
	link_answer(link);
	return -1;
}

/* Slurm may be calling other plugins, or an epilog, for longer than silence=. So the good-bye goes out now, even if
   the link opens only now or breaks. */
static void serve_rest(void)
{
	struct pollfd ready[1 + LINK_FDS] = { { .fd = ends.wake, .events = POLLIN } };
	struct link *link = &ends.node->link;
	uint64_t times;
	int wait_ms = 0;

	while (wait_ms >= 0 && !link_was_let_go(link) && !atomic_load(&ends.finishes)) {
		pthread_mutex_lock(&ends.lock);
		wait_ms = link_tick(link);
		link_poll(link, ready + 1);
		pthread_mutex_unlock(&ends.lock);
		if (poll(ready, 1 + LINK_FDS, wait_ms) > 0 && ready[0].revents != 0 &&
		    read(ends.wake, &times, sizeof(times)) < 0 && errno != EINTR)
			return;
	}
}

static void watch_ends(void)
{
	struct supervise *supervise = &ends.node->supervise;
	uint32_t count = supervise->local_tasks;
	uint64_t asked;
	bool asked_to_end = false, has_agents = ends.generation.node != NULL;
	int wait_ms;

	pthread_mutex_lock(&ends.lock);
	for (uint32_t i = 0; i < count; i++)
		ends.ready[i] = (struct pollfd){ .events = POLLIN,
			.fd = slurms_process(supervise, i) != 0 ? handle_open(slurms_process(supervise, i)) : -1 };
	pthread_mutex_unlock(&ends.lock);
	ends.ready[count] = (struct pollfd){ .fd = ends.wake, .events = POLLIN };
	ends.ready[count + 1] = (struct pollfd){ .fd = -1, .events = POLLIN };
	ends.ready[count + 2] = (struct pollfd){ .fd = has_agents ? supervise->agents.news : -1, .events = POLLIN };
	while (!asked_to_end) {
		pthread_mutex_lock(&ends.lock);
		agents_take_news(&supervise->agents);
		asked = link_asked(&ends.node->link);
		wait_ms = sooner(take_ended(), node_serve_link(ends.node));
		wait_ms = sooner(wait_ms, answer_srun(asked));
		wait_ms = sooner(wait_ms, node_report_again(ends.node));
		if (has_agents)
			wait_ms = sooner(wait_ms, generation_advance(&ends.generation));
		asked_to_end = supervise_processes(supervise) == 0;
		if (!asked_to_end)
			wait_ms = sooner(wait_ms, watch_witness(&ends.ready[count + 1]));
		link_poll(&ends.node->link, &ends.ready[count + 3]);
		pthread_mutex_unlock(&ends.lock);
		if (!asked_to_end && poll(ends.ready, count + BESIDE_TASKS, wait_ms) > 0)
			asked_to_end = ends.ready[count].revents != 0;
	}
	pthread_mutex_lock(&ends.lock);
	take_ended();
	for (uint32_t i = 0; i < count; i++)
		forget_process(i);
	if (ends.ready[count + 1].fd >= 0)
		close(ends.ready[count + 1].fd);
	link_say_bye(&ends.node->link);
	pthread_mutex_unlock(&ends.lock);
	end_after_last_task();
	serve_rest();
}

/* Without the thread, agents would wait for orders for ever. */
static void dismiss_agents(void)
{
	struct agents *agents = &ends.node->supervise.agents;
	char host[HOST_NAME_MAX_BYTES] = "", text[HOST_NAME_MAX_BYTES + 64];

	if (ends.generation.node != NULL)
		generation_free(&ends.generation);
	if (agents->shared == NULL)
		return;
	/* No task has noted the node's name yet. */
	(void)gethostname(host, sizeof(host) - 1);
	snprintf(text, sizeof(text), "slurmstepd on host %s has no thread or no memory for restarts", host);
	ends.node->say(text);
	atomic_store(&agents->shared->quit_status, W_EXITCODE(1, 0));
	agents_order(agents, AGENTS_QUIT, 0);
}

void ends_watch(struct node *node, void (*act)(enum end_delay delay), bool thread)
{
	ends.node = node;
	ends.act = act;
	ends.asked = ends.untold = 0;
	ends.look_ms = ends.witness_ms = LOOK_MS;
	ends.lost_ns = ends.lose_ns = 0;
	ends.losses = 0;
	ends.witness_done = ends.acted = false;
	atomic_store(&ends.finishes, false);
	ends.callbacks = 0;
	ends.rest = REST_LATER;
	/* A contained thread would end with its callback, and could hold the lock then. */
	ends.ready = thread && !contained_here() ? calloc(node->supervise.local_tasks + BESIDE_TASKS, sizeof(*ends.ready))
	                                         : NULL;
	if (ends.ready != NULL) {
		ends.wake = eventfd(0, EFD_CLOEXEC);
		ends.running = ends.wake >= 0 && begin_generations() && worker_start(&ends.worker, watch_ends);
	}
	atomic_store(&node->supervise.shared->watched, ends.running);
	if (ends.running)
		return;
	ends.rest = REST_LEFT;
	dismiss_agents();
}

bool ends_leaves_rest(void)
{
	return ends.rest == REST_LEFT;
}

bool ends_finish(void)
{
	if (ends.node == NULL)
		return true;
	if (ends.running) {
		atomic_store(&ends.finishes, true);
		(void)eventfd_raise(ends.wake);
		while (!worker_join(&ends.worker, JOIN_MS))
			continue;
	}
	if (ends.ready != NULL && ends.wake >= 0)
		close(ends.wake);
	ends.running = false;
	free(ends.ready);
	ends.ready = NULL;
	if (ends.generation.node != NULL)
		generation_free(&ends.generation);
	return supervise_processes(&ends.node->supervise) == 0;
}

void ends_leave(void)
{
	uint64_t until_ns = ddp_now_ns() + LEAVE_MS * 1000000ull, now_ns;
	struct pollfd ready[LINK_FDS];
	struct link *link;

	if (ends.node == NULL)
		return;
	link = &ends.node->link;
	while (!link_may_leave(link) && (now_ns = ddp_now_ns()) < until_ns) {
		int wait_ms = link_tick(link), left_ms = (int)((until_ns - now_ns) / 1000000) + 1;
		link_poll(link, ready);
		if (!link_may_leave(link))
			poll(ready, LINK_FDS, sooner(wait_ms, left_ms));
	}
	link_end(link);
}

/* Slurm has reaped a task's agent. What the thread has seen of the program counts more than how the agent ended. */
static void take_agent(const struct node_task *agent)
{
	struct supervise *supervise = &ends.node->supervise;
	bool became_one = atomic_load(&supervise->agents.shared->agent[agent->local_id].pid) != 0;
	struct node_task task = *agent;

	agents_child_ended(&supervise->agents, task.local_id, supervise->generation, &task.wait_status);
	task.global_id = supervise->shared->task[task.local_id].rank;
	if (became_one ? supervise->pids[task.local_id] != 0 : supervise->reaped[task.local_id].ns == 0)
		task_ended(&task);
	agents_reaped(&supervise->agents, task.local_id);
}

bool ends_take(const struct node_task *task)
{
	bool last, left;

	pthread_mutex_lock(&ends.lock);
	ends.callbacks++;
	if (ends.node->supervise.agents.shared != NULL)
		take_agent(task);
	else if (ends.node->supervise.reaped[task->local_id].ns == 0)
		task_ended(task);
	/* The thread may have taken tasks that Slurm has not reaped yet. */
	last = supervise_processes(&ends.node->supervise) == 0 &&
	       (!ends.running || ends.callbacks >= ends.node->supervise.local_tasks);
	if (last && ends.running)
		(void)eventfd_raise(ends.wake);
	while (last && ends.rest == REST_LATER)
		pthread_cond_wait(&ends.rest_changed, &ends.lock);
	left = ends.rest == REST_LEFT;
	pthread_mutex_unlock(&ends.lock);
	return last && (!left || ends_finish());
}
