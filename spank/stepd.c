/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/base/child.h"
#include "spank/base/release.h"
#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/identity/identity.h"
#include "spank/launch/prepare.h"
#include "spank/launch/srun_options.h"
#include "spank/node/ends.h"
#include "spank/slurmctld/query.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"
#include "spank/wire/timeline.h"
#include "spank/witness/pump.h"

enum { LOG_END_MS = 1000 }; /* Slurm has waited for the tasks' output before */

/* A site that logs less than information has none of these lines. */
static void log_line(const char *line)
{
	slurm_info("ddp: %s", line);
}

/* ---- before the tasks ------------------------------------------------------------ */

static bool starts_daemon(spank_t spank)
{
	char **words = NULL;
	int count = 0;

	return spank_get_item(spank, S_JOB_ARGV, &count, &words) == ESPANK_SUCCESS &&
	       daemon_is_launched(count, words);
}

/* Takes, in slurmstepd, what srun has found out about its options. From here on the settings alone tell whether the
   step restarts. srun's word comes in the environment, which is the user's, so it takes restart= away, and never gives
   what this node's own line forbids. srun waits for the agents of all nodes: a node that may have none refuses the
   step. */
static void take_word_of_srun(struct stepd *stepd, char *const *environment)
{
	const char *word = environment_get(environment, "SLURM_DDP_ON_FAILURE");
	const bool restarts = environment_get(environment, "SLURM_DDP_RESTART") != NULL;
	struct settings *settings = &stepd->request->settings;

	if (!restarts && settings->check == CHECK_NO)
		settings_drop_restart(settings);
	/* What was wrong before may be the reason. */
	if (restarts && settings->restarts == 0 && stepd->request->error.text[0] == '\0')
		error_set(&stepd->request->error, "restart=: srun is to restart the step, but plugstack.conf of this node has no "
		          "restart=, or has on-failure=continue: the administrator should give all nodes the same line; until "
		          "then add restart=N, or restart=0, to --ddp=");
	stepd->no_witness = environment_get(environment, "SLURM_DDP_NO_WITNESS") != NULL;
	if (word != NULL && !request_locks(stepd->request, "on-failure") && !option_given(settings, "on-failure"))
		settings->kill_on_failure = strcmp(word, "continue") != 0;
}

/* Asks Slurm's own table of nodes for the NodeAddr of the step's first node: here,
   since in a task, forked from a process with threads, a lock could be held for
   ever. Of the user's there is the name only, to be looked for in that table. */
static bool find_address(const char *node, char *address, size_t bytes)
{
	char *(*find)(const char *node);
	char *found;

	*(void **)&find = dlsym(RTLD_DEFAULT, "slurm_conf_get_address");
	/* A Slurm without this function looks the address up by the host's name, which may be another one than the node's. */
	if (find == NULL)
		*(void **)&find = dlsym(RTLD_DEFAULT, "slurm_conf_get_nodeaddr");
	if (find == NULL)
		return false;
	/* Slurm would have to free the text, by a function that differs between releases. The text is short, and stays. */
	found = find(node);
	if (found == NULL || strlen(found) >= bytes)
		return false;
	memcpy(address, found, strlen(found) + 1);
	return true;
}

static void note_master(struct node_address *master, char *const *environment)
{
	const char *first = environment_get(environment, "SLURM_DDP_FIRST_HOST");
	const char *list = environment_get(environment, "SLURM_STEP_NODELIST");
	struct error ignored;

	if (nodelist_first(first != NULL ? first : list, master->node, &ignored) &&
	    !find_address(master->node, master->address, sizeof(master->address)))
		master->node[0] = '\0';
}

/* srun deals generations: each task is to be an agent. */
static void make_agents(struct stepd *stepd, uint32_t local_tasks)
{
	struct request *request = stepd->request;

	/* What was wrong before may be the reason for everything else. */
	if (request->error.text[0] != '\0' || request->settings.check != CHECK_NO)
		return;
	stepd->node.find_address = request->settings.address == ADDRESS_IP ? find_address : NULL;
	stepd->node.relay_port = stepd->node.relay.port;
	if (contained_here())
		error_set(&request->error, "restart=: SlurmdParameters=contain_spank of slurm.conf keeps this node from "
		          "looking after its tasks: the administrator should remove it, or restart= be left out");
	else if (stepd->node.silence_ms == 0)
		error_set(&request->error, "restart= needs a link between srun and its nodes, and silence=0 makes none: "
		          "leave silence=0 out");
	else if (stepd->node.relay.port == 0)
		error_set(&request->error, "restart=: srun does not listen for its nodes");
	else if (agents_make(&stepd->node.supervise.agents, local_tasks, &request->error))
		stepd->node.supervise.agents.shared->hands_on = query_signals_children_only();
}

static bool note_owner(spank_t spank, uid_t user, struct owner *owner)
{
	gid_t *groups = NULL;
	int count = 0;

	*owner = (struct owner){ .user = user };
	if (spank_get_item(spank, S_JOB_GID, &owner->group) != ESPANK_SUCCESS)
		return false;
	if (spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &count) != ESPANK_SUCCESS)
		count = 0;
	for (int i = 0; i < count && groups != NULL && owner->group_count < OWNER_GROUPS_MAX; i++)
		owner->groups[owner->group_count++] = groups[i];
	return true;
}

/* log=. srun reads what ddp-preflight prints. */
static void make_log(spank_t spank, struct stepd *stepd, char *const *environment, uid_t user, uint32_t local_tasks)
{
	struct request *request = stepd->request;
	struct owner owner;

	if (request->settings.log_dir[0] == '\0' || request->settings.launcher || request->settings.check != CHECK_NO ||
	    environment_get(environment, "SLURM_DDP_PREFLIGHT") != NULL)
		return;
	if (contained_here())
		error_set(&request->error, "log=: SlurmdParameters=contain_spank of slurm.conf ends what the plugin starts "
		          "before the tasks: the administrator should remove it, or log= be left out");
	else if (query_tracks_cgroups() && pump_shares_group("/proc/self/cgroup"))
		error_set(&request->error, "log=: ProctrackType=proctrack/cgroup with control groups of version 2 kills ddp-log "
		          "with the tasks, before it has written their output: leave log= out, and use srun's --output");
	else if (!note_owner(spank, user, &owner))
		error_set(&request->error, "log=: SLURM does not give the user's group");
	else
		stepd->log_control = pump_make(&owner, local_tasks, &request->error);
}

/* Says whose files the flight records become, and where they go. */
static void note_record(spank_t spank, struct stepd *stepd, uid_t owner, uint32_t step_id)
{
	const struct settings *settings = &stepd->request->settings;
	struct record_place *place = &stepd->node.flight.place;

	/* Processes that a launcher starts have no pages. */
	if (settings->record_dir[0] == '\0' || settings->launcher || settings->check != CHECK_NO)
		return;
	if (!note_owner(spank, owner, &place->owner) || spank_get_item(spank, S_JOB_ID, &place->job) != ESPANK_SUCCESS) {
		slurm_error("ddp: record=: Slurm does not give the user's group or the job's id");
		return;
	}
	place->step = step_id;
	place->is_site = !option_given(settings, "record");
	memcpy(place->dir, settings->record_dir, sizeof(settings->record_dir));
}

void stepd_begin(spank_t spank, struct stepd *stepd)
{
	struct request *request = stepd->request;
	uint32_t step_id, local_tasks;
	uid_t owner = geteuid();
	char **environment = NULL;
	const char *threads;
	struct error error;

	if (!request->wanted)
		return;
	stepd->daemon = starts_daemon(spank);
	if (stepd->daemon)
		return;
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		environment = NULL;
	/* Here, since a task is forked from a process with threads: the loader's lock. */
	stepd->container_wins = container_plugin_comes_later();
	if (request->settings.address == ADDRESS_IP && environment != NULL)
		note_master(&stepd->master, environment);
	threads = environment_get(environment, "OMP_NUM_THREADS");
	if (threads != NULL && strlen(threads) < sizeof(stepd->user_threads))
		memcpy(stepd->user_threads, threads, strlen(threads));
	stepd->node.relay = relay_parse(environment_get(environment, "SLURM_DDP_RELAY"));
	take_word_of_srun(stepd, environment);
	stepd->node.say = print_to_user;
	stepd->node.log = log_line;
	stepd->node.launcher = request->settings.launcher;
	stepd->node.kill_on_failure = request->settings.kill_on_failure;
	/* Processes that a launcher starts have no pages. */
	stepd->node.stall_seconds = request->settings.launcher ? 0 : request->settings.stall_seconds;
	stepd->node.silence_ms = settings_silence_ms(&request->settings);
	if (!query_fact(spank, S_JOB_STEPID, "the step's id", &step_id, &request->error) ||
	    !query_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &local_tasks, &request->error) ||
	    !query_fact(spank, S_JOB_UID, "the job's user", &owner, &request->error)) {
		stepd->normal_step = true;
		return;
	}
	stepd->normal_step = step_id <= SLURM_MAX_NORMAL_STEP_ID;
	if (!stepd->normal_step)
		return;
	stepd->node.step_id = step_id;
	stepd->node.owner = owner;
	if (spank_get_item(spank, S_JOB_ID, &stepd->node.job_id) != ESPANK_SUCCESS)
		stepd->node.job_id = EVENT_NONE;
	if (!supervise_start(&stepd->node.supervise, local_tasks, owner, &error)) {
		slurm_error("ddp: %s", error.text);
		/* srun waits for the agents of all nodes. */
		if (request->settings.restarts > 0 && request->error.text[0] == '\0')
			request->error = error;
		return;
	}
	note_record(spank, stepd, owner, step_id);
	if (environment != NULL)
		make_log(spank, stepd, environment, owner, local_tasks);
	stepd->node.relay.sender = relay_start_sender(&stepd->node.supervise.shared->sender);
	if (request->settings.restarts > 0)
		make_agents(stepd, local_tasks);
}

/* Slurm's handle lies on the stack of the callback. All that it holds is pointers to what lives
   as long as slurmstepd, the task's record among them (struct spank_handle, of 48 bytes from 20.11
   to 26.05), so that a copy tells how the task has ended as soon as Slurm has reaped it, which
   nothing else does. One that does not give what the handle gives is none. */
static void keep_handle(spank_t spank, struct stepd_handle *handle, pid_t pid)
{
	pid_t same = 0;
	int ignored;

	memcpy(handle->bytes, (const void *)spank, sizeof(handle->bytes));
	handle->good = spank_get_item((spank_t)handle->bytes, S_TASK_PID, &same) == ESPANK_SUCCESS &&
	               same == pid &&
	               spank_get_item((spank_t)handle->bytes, S_TASK_EXIT_STATUS, &ignored) == ESPANK_NOT_TASK;
}

static struct stepd *watched; /* by the thread of ends.h */

/* In that thread. */
static bool ask_status(uint32_t local_task, int *wait_status)
{
	struct stepd_handle *handle = watched->handles != NULL ? &watched->handles[local_task] : NULL;
	int first;

	if (handle == NULL || !handle->good ||
	    spank_get_item((spank_t)handle->bytes, S_TASK_EXIT_STATUS, &first) != ESPANK_SUCCESS)
		return false;
	/* Some releases write the status behind the mark that it is there. */
	pause_ms(1);
	return spank_get_item((spank_t)handle->bytes, S_TASK_EXIT_STATUS, wait_status) == ESPANK_SUCCESS;
}

static void end_step_alone(enum end_delay delay);

/* All tasks were forked, and none has become the user's program yet. */
static void begin_to_watch(spank_t spank, struct stepd *stepd)
{
	struct kill_alone *alone = &stepd->alone;
	char **environment = NULL;
	uint32_t tasks;

	*alone = (struct kill_alone){ .witness = &stepd->node.supervise.shared->witness,
	                              .witness_lost = &stepd->node.witness_lost };
	if (spank_get_item(spank, S_JOB_STEPID, &alone->step_id) == ESPANK_SUCCESS &&
	    spank_get_item(spank, S_JOB_NODEID, &stepd->node_id) == ESPANK_SUCCESS &&
	    spank_get_item(spank, S_JOB_NNODES, &stepd->node_count) == ESPANK_SUCCESS &&
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) == ESPANK_SUCCESS &&
	    spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS) {
		alone->heterogeneous = step_spans_components(environment, tasks);
		if (spank_get_item(spank, S_JOB_ID, &alone->job_id) != ESPANK_SUCCESS)
			alone->job_id = 0;
	}
	stepd->node.node_id = stepd->node_id;
	watched = stepd;
	stepd->node.supervise.ask = ask_status;
	/* Without the thread agents would get no orders. */
	ends_watch(&stepd->node, end_step_alone,
	           !stepd->no_witness || stepd->node.supervise.agents.shared != NULL);
}

void stepd_take_fork(spank_t spank, struct stepd *stepd)
{
	struct supervise *supervise = &stepd->node.supervise;
	int local_id;
	pid_t pid;

	if (supervise->pids == NULL || spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS || local_id < 0 ||
	    (uint32_t)local_id >= supervise->local_tasks)
		return;
	supervise_forked(supervise, (uint32_t)local_id, pid);
	if (stepd->handles == NULL)
		stepd->handles = calloc(supervise->local_tasks, sizeof(*stepd->handles));
	if (stepd->handles != NULL)
		keep_handle(spank, &stepd->handles[local_id], pid);
	if (supervise_left(supervise) == supervise->local_tasks)
		begin_to_watch(spank, stepd);
}

/* ---- when a task ends ------------------------------------------------------------ */

/* The delay of this node itself; below 0: it asks for no end. */
static long alone_ms(const struct settings *settings, enum end_delay delay)
{
	switch (delay) {
	case DELAY_NONE:
		return ALONE_MS;
	case DELAY_GRACE:
		return (long)query_grace_ms(settings);
	case DELAY_STOP:
		/* A node does not ask for the end of a time that Slurm itself grants. */
		return settings->grace_seconds == GRACE_OF_SLURM ? -1 : (long)query_grace_ms(settings);
	case DELAY_DOUBT:
	case DELAY_NEVER:
		break;
	}
	return -1;
}

/* srun does not answer: this node asks for the step's end itself. */
static void end_step_alone(enum end_delay delay)
{
	const struct stepd *stepd = watched;
	uint32_t node = stepd->node_id, nodes = stepd->node_count;
	struct kill_alone request = stepd->alone;

	request.with_tasks = delay != DELAY_NONE;
	request.delay_ms = alone_ms(&stepd->request->settings, delay);
	if (request.delay_ms < 0 || request.job_id == 0)
		return;
	request.delay_ms += nodes * ALONE_NODE_MS <= ALONE_SPREAD_MS
		? node * ALONE_NODE_MS : (long)node * ALONE_SPREAD_MS / nodes;
	kill_start_alone(&request);
}

static void finish_node(struct stepd *stepd)
{
	watched = NULL;
	/* SLURM waits, behind the last task, for what is in the step's control group. */
	pump_close(stepd->log_control);
	kill_finish_alone();
	if (ends_leaves_rest()) {
		node_end_witness(&stepd->node);
		node_tell_end(&stepd->node);
	}
}

/* No task has come so far as to note it (see task.c). For the epilog of a task, Slurm has put
   both into the environment. */
static void note_node(spank_t spank, struct supervise_shared *shared)
{
	char **environment = NULL;

	if (shared->node[0] == '\0' && spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS)
		supervise_note_place(shared, environment);
}

void stepd_take_end(spank_t spank, struct stepd *stepd)
{
	struct node_task task;
	int local_id = -1;

	if (watched == NULL || spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &task.global_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &task.wait_status) != ESPANK_SUCCESS ||
	    local_id < 0 || (uint32_t)local_id >= stepd->node.supervise.local_tasks)
		return;
	task.local_id = (uint32_t)local_id;
	note_node(spank, stepd->node.supervise.shared);
	if (ends_take(&task))
		finish_node(stepd);
}

void stepd_end(struct stepd *stepd)
{
	/* Another plugin's failure may have kept the last tasks' ends from this one. The tasks have
	   ended all the same, and no thread may read what supervise_end() takes away. */
	(void)ends_finish();
	if (watched != NULL)
		finish_node(stepd);
	ends_leave();
	pump_end(stepd->log_control, LOG_END_MS);
	stepd->log_control = -1;
	free(stepd->handles);
	stepd->handles = NULL;
	supervise_end(&stepd->node.supervise);
}

/* srun has told the user which rank the others waited for. The node has seen only that none of its ranks went on. */
static void log_stalls(const struct stepd *stepd)
{
	struct event event = event_begin(EVENT_STALL);
	char line[EVENT_LINE_MAX], name[HOST_NAME_MAX_BYTES] = "";

	event.stalls = supervise_stalls(&stepd->node.supervise);
	if (event.stalls == 0)
		return;
	memcpy(name, stepd->node.supervise.shared->node, sizeof(name) - 1);
	event.job_id = stepd->node.job_id;
	event.step_id = stepd->node.step_id;
	event.uid = stepd->node.owner;
	event.node = name;
	event.time = time(NULL);
	event_write(&event, line, sizeof(line));
	log_line(line);
}

/* What has run on the node in a step, and how that ended. */
struct summary {
	uint32_t low, high;  /* the lowest and the highest rank */
	uint32_t bad, open;  /* tasks that have ended badly, and that have not ended */
	uint32_t first;      /* the local task that ended badly before the others */
};

static struct summary summarize(const struct supervise *supervise)
{
	struct summary sum = { .low = UINT32_MAX };

	for (uint32_t i = 0; i < supervise->local_tasks; i++) {
		const struct task_reaped *end = &supervise->reaped[i];
		uint32_t rank = supervise->shared->task[i].rank;

		if (rank != UINT32_MAX) {
			sum.low = rank < sum.low ? rank : sum.low;
			sum.high = rank > sum.high ? rank : sum.high;
		}
		if (end->ns == 0) {
			sum.open++;
		} else if (end->wait_status != 0) {
			if (sum.bad == 0 || end->ns < supervise->reaped[sum.first].ns)
				sum.first = i;
			sum.bad++;
		}
	}
	return sum;
}

static void add_first(struct sink *sink, const struct supervise *supervise, uint32_t task)
{
	uint32_t rank = supervise->shared->task[task].rank;
	int status = supervise->reaped[task].wait_status;

	if (rank != UINT32_MAX)
		sink_add(sink, "rank %u ", rank);
	else
		sink_add(sink, "task %u of the node ", task);
	if (WIFSIGNALED(status))
		sink_add(sink, "was killed by signal %d", WTERMSIG(status));
	else
		sink_add(sink, "exited with code %d", WEXITSTATUS(status));
}

/* "step 7.0: ranks 2 to 3 of 4 on n1: rank 3 exited with code 7 first, and 1 more did not end
   well; plugin 0.2". Printable bytes only, and nothing that a user chose. */
static void describe_step(const struct supervise *supervise, uint32_t job_id, uint32_t step_id, char *text,
                          size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	struct summary sum = summarize(supervise);

	sink_add(&sink, "step %u.%u: ", job_id, step_id);
	if (sum.low == UINT32_MAX)
		sink_add(&sink, "%u tasks that have no rank", supervise->local_tasks);
	else if (sum.low == sum.high)
		sink_add(&sink, "rank %u of %u", sum.low, supervise->shared->world_size);
	else
		sink_add(&sink, "%u ranks from %u to %u of %u", supervise->local_tasks, sum.low, sum.high,
		         supervise->shared->world_size);
	sink_add(&sink, " on ");
	sink_add_untrusted(&sink, supervise->shared->node, sizeof(supervise->shared->node));
	sink_add(&sink, ": ");
	if (sum.bad > 0)
		add_first(&sink, supervise, sum.first);
	else
		sink_add(&sink, sum.open > 0 ? "none ended badly" : "ended well");
	if (sum.bad > 1)
		sink_add(&sink, " first, and %u more did not end well", sum.bad - 1);
	if (sum.open > 0)
		sink_add(&sink, ", %u were not seen to end", sum.open);
	sink_add(&sink, "; plugin %s", release_own());
}

void stepd_log(spank_t spank, const struct stepd *stepd)
{
	char text[RELAY_TEXT_MAX];
	uint32_t job_id, step_id;

	if (stepd->node.supervise.shared == NULL || spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS)
		return;
	describe_step(&stepd->node.supervise, job_id, step_id, text, sizeof(text));
	log_line(text);
	log_stalls(stepd);
}
