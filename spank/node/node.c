/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/node/node.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/release.h"
#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/node/stall_watch.h"
#include "spank/wire/judge.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"
#include "spank/wire/timeline.h"

enum {
	LINK_LOOK_MS = 50,   /* how often for a task that has noted where srun is. Many a program has ended by then */
	OUT_OF_REACH_MS = 1500, /* without an acknowledgement of srun's host */
};

/* With restart=, the thread that would wait for srun's answer also ends the ranks before srun gives them to another
   node, and then it must not be late. */
static bool is_out_of_reach(const struct node *node)
{
	return node->supervise.agents.shared != NULL && link_was_open(&node->link) &&
	       link_lease_ms(&node->link) > OUT_OF_REACH_MS;
}

/* slurmstepd connects to the host from which Slurm got the step, as Slurm itself
   does to report the tasks' ends; the user chooses the port only, as there. */
bool node_tell(struct node *node, const struct relay_news *news)
{
	const struct supervise_shared *shared = node->supervise.shared;
	char address[sizeof(shared->srun_address)] = "";
	struct relay_news told = *news;

	if (shared == NULL || is_out_of_reach(node))
		return false;
	memcpy(address, shared->srun_address, sizeof(address) - 1);
	told.generation = atomic_load(&shared->generation);
	if (relay_tell(&node->relay, address, &told))
		return true;
	/* An srun that is out of reach holds up one task's end, not every task's. */
	node->relay.port = 0;
	return false;
}

void node_begin_again(struct node *node)
{
	node->told_later = node->told_hearsay = node->told_cause = node->flight.failed = false;
	node->relay.port = node->relay_port;
}

struct relay_news node_error(const char *text)
{
	return (struct relay_news){ .text = text, .wait_status = W_EXITCODE(1, 0),
		                    .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
}

bool node_lose_witness(struct node *node)
{
	if (!atomic_load(&node->witness_lost) && !supervise_spares(&node->supervise))
		return true;
	atomic_store(&node->witness_lost, true);
	return node->launcher || node->relay.port == 0 || stall_tell_unwatched(&node->supervise, &node->relay);
}

/* ---- blame of local ranks ---- */

/* Returns what is known of a local task; its node's name lies in `node`. */
static struct blamed task_facts(const struct supervise *supervise, uint32_t local, uint64_t now_ns,
                                char node[HOST_NAME_MAX_BYTES])
{
	const struct supervise_shared *shared = supervise->shared;
	uint64_t reaped_ns = supervise->reaped[local].ns;
	struct blamed blamed = { .rank = shared->task[local].rank, .world_size = shared->world_size,
		                 .node = node, .seconds_ago = -1, .now_ns = now_ns };
	enum task_state state;

	memset(node, 0, HOST_NAME_MAX_BYTES);
	memcpy(node, shared->node, HOST_NAME_MAX_BYTES - 1);
	state = supervise_state(supervise, local, &blamed.wait_status);
	blamed.runs = state == TASK_RUNS;
	blamed.stopped = blamed.runs && supervise_is_stopped(supervise_pid(supervise, local));
	/* Its own report follows. */
	if (state == TASK_GONE)
		blamed.wait_status = W_EXITCODE(1, 0);
	if (reaped_ns != 0 && now_ns >= reaped_ns)
		blamed.seconds_ago = (double)(now_ns - reaped_ns) * 1e-9;
	supervise_read(supervise, local, &blamed.progress);
	return blamed;
}

/* Local number of the task, or local_tasks. */
static uint32_t find_task(const struct supervise *supervise, uint32_t rank)
{
	uint32_t local = 0;

	while (local < supervise->local_tasks &&
	       (rank == UINT32_MAX || supervise->shared->task[local].rank != rank))
		local++;
	return local;
}

static bool blame_is_local(const struct supervise *supervise, uint32_t rank)
{
	return find_task(supervise, rank) < supervise->local_tasks;
}

bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes)
{
	uint32_t local = find_task(supervise, rank);
	char node[HOST_NAME_MAX_BYTES];
	struct blamed blamed;

	if (local == supervise->local_tasks)
		return false;
	blamed = task_facts(supervise, local, now_ns, node);
	return blame_describe(&blamed, text, bytes);
}

bool blame_early_end(const struct supervise *supervise, uint64_t now_ns, char *text, size_t bytes)
{
	char node[HOST_NAME_MAX_BYTES];

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		const struct task_reaped *reaped = &supervise->reaped[i];
		struct blamed blamed;
		if (reaped->ns == 0 || judge_task_end(reaped->wait_status) != END_FINE ||
		    supervise->shared->task[i].rank == UINT32_MAX)
			continue;
		blamed = task_facts(supervise, i, now_ns, node);
		return blame_describe(&blamed, text, bytes);
	}
	return false;
}

/* ---- how a task has ended ---- */

static enum slurm_sent sent_so_far(const struct node *node)
{
	enum slurm_sent sent = witness_sent(&node->supervise.shared->witness);

	return sent == SENT_KILL && atomic_load(&node->witness_lost) ? SENT_UNKNOWN : sent;
}

/* Whether what is known may still change: Slurm sends a signal to one process
   after the other, and tasks that are killed together end one by one. */
static bool is_unsettled(const struct node *node, const struct end_facts *facts,
                         const struct supervise_ends *ends, uint64_t waited_ns)
{
	if (facts->sent == SENT_KILL && supervise_spares(&node->supervise))
		return waited_ns < SPARED_MS * 1000000ull;
	return waited_ns < SETTLE_MS * 1000000ull &&
	       (facts->sent == SENT_NOTHING || facts->sent == SENT_UNKNOWN ||
	        (facts->end == END_BY_KILL && !ends->all_ended));
}

static struct end_facts collect(struct node *node, enum task_end end)
{
	struct end_facts facts = { .end = end, .lone = node->supervise.local_tasks == 1,
		                   .kill_on_failure = node->kill_on_failure };
	uint64_t began_ns = ddp_now_ns();
	struct supervise_ends ends;

	for (;;) {
		facts.sent = sent_so_far(node);
		ends = supervise_count_ends(&node->supervise);
		if (!is_unsettled(node, &facts, &ends, ddp_now_ns() - began_ns))
			break;
		pause_ms(SETTLE_MS / 10);
	}
	/* Slurm would have killed that task, too. */
	if (facts.sent == SENT_KILL && supervise_spares(&node->supervise)) {
		atomic_store(&node->witness_lost, true);
		facts.sent = SENT_UNKNOWN;
	}
	facts.all_killed = ends.all_ended && ends.all_killed;
	/* `end` tells this task's own failure. */
	facts.other_failed = ends.any_failed && end != END_CODE && end != END_CRASH;
	facts.out_of_memory = memory_ran_out(&node->supervise.memory);
	return facts;
}

static uint32_t rank_of(const struct node *node, const struct node_task *task)
{
	uint32_t rank = node->supervise.shared->task[task->local_id].rank;

	return rank != UINT32_MAX ? rank : task->global_id;
}

/* The rank that the page blames, if it is of this node, which knows more of it;
   otherwise BLAME_NOBODY. */
static uint32_t blamed_here(const struct node *node, const struct node_task *task,
                            const struct ddp_progress *progress)
{
	uint32_t rank = blame_of(progress, rank_of(node, task));

	return blame_is_local(&node->supervise, rank) ? rank : BLAME_NOBODY;
}

/* Whether the task has given up because of another one. An error that all ranks get leads to an exit of its own choice,
   so that a crash behind it, or an end for want of memory, is the task's own. */
static bool gave_up(const struct node *node, const struct node_task *task, const struct ddp_progress *progress)
{
	uint32_t own = rank_of(node, task);

	return blame_is_of_peer(progress, own) ||
	       (judge_task_end(task->wait_status) == END_CODE && blame_is_shared(progress, own));
}

/* Reads from the page which rank is to blame, and adds what is known here of that rank. */
static void blame(const struct node *node, const struct node_task *task,
                  const struct ddp_progress *progress, uint64_t seen_ns, struct end_facts *facts,
                  char other[RELAY_TEXT_MAX + 1])
{
	uint32_t rank = blamed_here(node, task, progress);

	facts->cause_late = blame_cause_is_late(progress, rank_of(node, task));
	facts->blames_peer = gave_up(node, task, progress);
	facts->names_peer = rank != BLAME_NOBODY &&
	                    blame_local(&node->supervise, rank, seen_ns, other, RELAY_TEXT_MAX + 1);
}

/* If a program has no page, the early end of another task may be the cause. */
static void add_early_end(const struct node *node, const struct end_facts *facts, uint64_t seen_ns,
                          struct sink *sink)
{
	char other[RELAY_TEXT_MAX + 1];

	if (!node->launcher && facts->sent != SENT_STOP && facts->sent != SENT_KILL &&
	    blame_early_end(&node->supervise, seen_ns, other, sizeof(other)))
		sink_add(sink, "; %s", other);
}

static bool has_started(const struct node *node, uint32_t local_task)
{
	return atomic_load(&node->supervise.shared->task[local_task].start_ns) != 0;
}

/* How many tasks have failed before their program began. */
static uint32_t count_unstarted(const struct node *node)
{
	uint32_t count = 0;
	int wait_status;

	for (uint32_t i = 0; i < node->supervise.local_tasks; i++)
		count += !has_started(node, i) && supervise_state(&node->supervise, i, &wait_status) != TASK_RUNS;
	return count;
}

static void describe(const struct node *node, const struct node_task *task,
                     const struct end_facts *facts, const struct ddp_progress *progress,
                     uint64_t seen_ns, const char *other, char text[RELAY_TEXT_MAX + 1])
{
	const struct supervise_shared *shared = node->supervise.shared;
	struct failure failure = { .rank = rank_of(node, task), .wait_status = task->wait_status,
		                   .now_ns = seen_ns, .progress = *progress,
		                   .launcher = node->launcher,
		                   .out_of_memory = facts->out_of_memory && facts->end == END_BY_KILL };
	uint64_t start_ns = atomic_load(&shared->task[task->local_id].start_ns);
	char name[sizeof(shared->node)] = "", own[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, RELAY_TEXT_MAX + 1);

	/* Written by the tasks before they became the user's program. */
	memcpy(name, shared->node, sizeof(name) - 1);
	if (!has_started(node, task->local_id)) {
		report_unstarted(name, count_unstarted(node), node->supervise.local_tasks, task->wait_status,
		                 text, RELAY_TEXT_MAX + 1);
		return;
	}
	failure.world_size = shared->world_size;
	failure.node = name;
	if (start_ns != 0 && seen_ns > start_ns)
		failure.seconds = (double)(seen_ns - start_ns) * 1e-9;
	if (facts->all_killed && !facts->lone)
		failure.node_tasks = node->supervise.local_tasks;
	report_failure(&failure, own, sizeof(own));
	if (judge_is_hearsay(facts) && failure.node_tasks == 0)
		blame_add_culprit(progress, failure.rank, failure.world_size, &sink);
	sink_add(&sink, "%s%s%s", facts->names_peer ? other : "", facts->names_peer ? "; " : "", own);
	if (progress->magic != DDP_PROGRESS_MAGIC)
		add_early_end(node, facts, seen_ns, &sink);
}

/* An old end needs no look around: each of a node's many tasks would take SETTLE_MS. */
static bool is_old(const struct node *node, enum task_end end, bool hearsay)
{
	enum slurm_sent sent;

	if (end == END_FINE || node->told_cause || (hearsay && node->told_hearsay))
		return true;
	if (!node->told_later || end != END_BY_KILL || memory_ran_out(&node->supervise.memory))
		return node->told_later && end == END_BY_REQUEST;
	/* One more that Slurm has killed, or whoever has killed the witness, too. */
	sent = sent_so_far(node);
	return sent == SENT_STOP || sent == SENT_KILL;
}

/* Each kind of news once for the node; a failure leaves no room for others. */
static bool is_news(struct node *node, const struct end_verdict *verdict, bool hearsay)
{
	bool later = verdict->say != DELAY_NONE && verdict->kill != DELAY_NONE;
	bool *told = later ? &node->told_later : hearsay ? &node->told_hearsay : &node->told_cause;

	if (*told || node->told_cause || (verdict->say == DELAY_NEVER && verdict->kill == DELAY_NEVER))
		return false;
	*told = true;
	return true;
}

/* If ranks gave up because of another one, rank 0's node speaks for them, for the case
   that the other one cannot. */
static void speak(struct node *node, const struct end_verdict *verdict, bool hearsay,
                  const char *text)
{
	if (verdict->say != DELAY_NONE || (hearsay && !supervise_holds_rank_zero(&node->supervise)) ||
	    !supervise_tell_once(&node->supervise))
		return;
	node->say(text);
	supervise_told(&node->supervise);
	/* With its last task a node's connection to srun goes; the words first. */
	if (supervise_count_ends(&node->supervise).all_ended)
		pause_ms(DELIVERY_MS);
}

/* True if srun has answered. */
static bool report(struct node *node)
{
	struct supervise_shared *shared = node->supervise.shared;
	char address[sizeof(shared->srun_address)] = "", name[sizeof(shared->node)] = "";
	uint32_t rank = UINT32_MAX;

	if (!atomic_load(&shared->noted) || atomic_load(&shared->answered))
		return atomic_load(&shared->answered);
	memcpy(address, shared->srun_address, sizeof(address) - 1);
	memcpy(name, shared->node, sizeof(name) - 1);
	for (uint32_t i = 0; i < node->supervise.local_tasks && rank == UINT32_MAX; i++)
		rank = shared->task[i].rank;
	node->reported_ns = ddp_now_ns();
	if (relay_tell_here(&node->relay, address, rank, name))
		atomic_store(&shared->answered, true);
	return atomic_load(&shared->answered);
}

static void start_link(struct node *node)
{
	const struct supervise_shared *shared = node->supervise.shared;
	char address[sizeof(shared->srun_address)] = "";
	struct link_facts facts = { .relay = &node->relay, .address = address, .silence_ms = node->silence_ms,
		                    .opening = { .node_id = node->node_id, .rank = UINT32_MAX,
		                                 .tasks = node->supervise.local_tasks, .protocol = FRAME_PROTOCOL },
		                    .take = node->take_frame, .about = node->about_frames };

	memcpy(address, shared->srun_address, sizeof(address) - 1);
	memcpy(facts.opening.node, shared->node, sizeof(facts.opening.node) - 1);
	snprintf(facts.opening.release, sizeof(facts.opening.release), "%s", release_own());
	for (uint32_t i = 0; i < node->supervise.local_tasks; i++)
		if (shared->task[i].rank < facts.opening.rank)
			facts.opening.rank = shared->task[i].rank;
	link_start(&node->link, &facts);
}

/* A failure is logged on its node when it happens. An end that may be none, because Slurm or a person has asked for
   it, is not. */
static void log_failure(const struct node *node, const struct node_task *task, const struct relay_news *news,
                        const struct ddp_progress *progress, uint64_t seen_ns)
{
	const struct supervise_task *shared = &node->supervise.shared->task[task->local_id];
	struct event event = event_begin(has_started(node, task->local_id) ? event_kind_of(&news->facts) : EVENT_UNSTARTED);
	uint64_t start_ns = atomic_load(&shared->start_ns);
	char line[EVENT_LINE_MAX];

	event.job_id = node->job_id;
	event.step_id = node->step_id;
	event.uid = node->owner;
	event.node = news->node;
	event.rank = rank_of(node, task);
	event.world_size = node->supervise.shared->world_size;
	event.wait_status = news->wait_status;
	if (start_ns != 0 && seen_ns > start_ns)
		event.seconds = (double)(seen_ns - start_ns) * 1e-9;
	if (progress->magic == DDP_PROGRESS_MAGIC && progress->step > 0)
		event.training_step = (uint64_t)progress->step;
	event.generation = atomic_load(&node->supervise.shared->generation);
	if (event.kind == EVENT_PEER)
		event.peer = blame_of(progress, event.rank);
	event.time = time(NULL);
	event.text = news->text;
	event_write(&event, line, sizeof(line));
	node->log(line);
}

/* Nobody else ends the tasks: Slurm has taken the node out of the job, or tells the node nothing any more. */
static void end_tasks(struct node *node)
{
	for (uint32_t i = 0; i < node->supervise.local_tasks; i++)
		child_signal(node->supervise.pids[i], SIGKILL);
}

int node_serve_link(struct node *node)
{
	struct supervise_shared *shared = node->supervise.shared;
	int next_ms;

	if (node->silence_ms == 0 || shared == NULL)
		return -1;
	if (!link_is_started(&node->link)) {
		if (node->relay.port == 0 || node->relay.sender == NULL || supervise_processes(&node->supervise) == 0)
			return -1;
		if (!atomic_load(&shared->noted))
			return LINK_LOOK_MS;
		start_link(node);
	}
	next_ms = link_tick(&node->link);
	if (link_is_cut_off(&node->link) && node->kill_on_failure && node->take_frame == NULL)
		end_tasks(node);
	if (link_was_open(&node->link))
		atomic_store(&shared->answered, true);
	return next_ms;
}

int node_report_again(struct node *node)
{
	uint64_t now_ns = ddp_now_ns();

	/* The link repeats the report as often, and does not wait for srun. */
	if (link_is_started(&node->link) && !link_is_refused(&node->link))
		return -1;
	if (node->supervise.shared == NULL || node->relay.port == 0)
		return -1;
	/* Where there is no link, nobody else tells srun first. */
	if (node->report_ns == 0 && node->silence_ms == 0 && !atomic_load(&node->supervise.shared->noted))
		return LINK_LOOK_MS;
	if (node->report_ns == 0)
		node->report_ns = now_ns + (node->silence_ms == 0 ? 0 : (uint64_t)REPORT_MS * 1000000);
	if (now_ns >= node->report_ns) {
		if (report(node))
			return -1;
		/* Often while srun waits for it, and then seldom, should srun be out of reach. */
		node->report_looks++;
		node->report_ns = now_ns + (node->report_looks < SILENT_MS / REPORT_MS ? 1u : 10u) *
		                  (uint64_t)REPORT_MS * 1000000;
	}
	return now_ns < node->report_ns ? (int)((node->report_ns - now_ns + 999999) / 1000000) : 0;
}

/* A rank that has gone on without others has ended well: what became of these is no failure of the step. */
static void tell_survivor(struct node *node)
{
	const struct relay_news news = { .text = "", .node = "", .facts = { .end = END_FINE, .survived = true } };

	(void)node_tell(node, &news);
}

enum end_delay node_take_end(struct node *node, const struct node_task *ended)
{
	uint64_t seen_ns = ddp_now_ns();
	char text[RELAY_TEXT_MAX + 1], other[RELAY_TEXT_MAX + 1];
	char name[HOST_NAME_MAX_BYTES] = "";
	struct node_task judged = *ended, *task = &judged;
	struct relay_news news = { .text = text, .node = name };
	struct ddp_progress progress;
	struct end_verdict verdict;
	bool hearsay;

	supervise_read(&node->supervise, ended->local_id, &progress);
	task->wait_status = judge_status(ended->wait_status, blame_ends_in_error(&progress));
	news.wait_status = task->wait_status;
	supervise_reaped(&node->supervise, task->local_id, task->wait_status);
	if (judge_task_end(task->wait_status) == END_FINE && slots_have_survived(&progress))
		tell_survivor(node);
	if (judge_task_end(task->wait_status) != END_FINE)
		flight_note_failure(&node->flight, &node->supervise);
	/* The task itself has said why, in task_begin(). */
	if (!has_started(node, task->local_id) && atomic_load(&node->supervise.shared->told))
		return DELAY_NEVER;
	/* An error that all ranks get names nobody whom blamed_here() finds. */
	hearsay = gave_up(node, task, &progress) && blamed_here(node, task, &progress) == BLAME_NOBODY;
	if (is_old(node, judge_task_end(task->wait_status), hearsay))
		return DELAY_NEVER;
	news.facts = collect(node, judge_task_end(task->wait_status));
	/* There may be no witness yet, and a step that is cancelled meanwhile is the likelier cause. */
	if (!has_started(node, task->local_id) && news.facts.end == END_BY_KILL && news.facts.sent == SENT_UNKNOWN)
		news.facts.sent = SENT_KILL;
	blame(node, task, &progress, seen_ns, &news.facts, other);
	news.facts.survived = judge_survived(&news.facts, slots_survive(&progress) && !blame_ends_in_error(&progress));
	hearsay = judge_is_hearsay(&news.facts);
	verdict = judge_end(&news.facts);
	/* Each of them is told, and leaves room for a failure of the step. */
	if (!news.facts.survived && !is_news(node, &verdict, hearsay))
		return DELAY_NEVER;
	describe(node, ended, &news.facts, &progress, seen_ns, other, text);
	memcpy(name, node->supervise.shared->node, sizeof(name) - 1);
	if (node->log != NULL && (verdict.say == DELAY_NONE || verdict.say == DELAY_GRACE))
		log_failure(node, task, &news, &progress, seen_ns);
	news.age_ms = (uint32_t)((ddp_now_ns() - seen_ns) / 1000000);
	if (node_tell(node, &news))
		return DELAY_NEVER;
	speak(node, &verdict, hearsay, text);
	/* A node alone cannot tell more of tasks that Slurm may have killed. */
	return verdict.kill == DELAY_DOUBT ? DELAY_NEVER : verdict.kill;
}

/* Whether a rank of another node may wait in ddp_init() for one that has not called it. */
static bool others_may_wait(const struct supervise *supervise)
{
	bool any_without = false;
	struct ddp_progress page;

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		supervise_read(supervise, i, &page);
		any_without |= page.magic != DDP_PROGRESS_MAGIC || page.writer != DDP_WRITER_LIBDDP;
	}
	return any_without && supervise->shared->world_size > supervise->local_tasks;
}

static bool any_has_ended_well(const struct supervise *supervise)
{
	for (uint32_t i = 0; i < supervise->local_tasks; i++)
		if (atomic_load(&supervise->shared->task[i].end) == STALL_GOOD_END)
			return true;
	return false;
}

void node_end_witness(struct node *node)
{
	const struct supervise *supervise = &node->supervise;

	/* srun is to know of the node before it hears that the step has ended well. */
	if (any_has_ended_well(supervise) &&
	    (node->reported_ns == 0 || ddp_now_ns() - node->reported_ns >= REPORT_MS * 1000000ull))
		report(node);
	/* Before node_tell_end(): what the witness tells could come later, and be older. */
	witness_end(&supervise->shared->witness);
	flight_note_end(&node->flight, supervise);
	flight_tell_lost(&node->flight, supervise, node->say);
	/* Between two looks, such a rank has gone on and ended. */
	if (atomic_load(&supervise->shared->late))
		stall_tell_unwatched(supervise, &node->relay);
}

void node_tell_end(struct node *node)
{
	const struct supervise *supervise = &node->supervise;

	if (node->stall_seconds == 0 && (node->launcher || !others_may_wait(supervise)))
		return;
	/* A task that failed or was killed ends the step or was said, and there may be many such
	   nodes at once. */
	for (uint32_t i = 0; i < supervise->local_tasks && (node->kill_on_failure || node->stall_seconds == 0); i++)
		if (atomic_load(&supervise->shared->task[i].end) != STALL_GOOD_END)
			return;
	stall_tell_end(supervise, &node->relay);
}
