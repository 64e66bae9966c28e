#include "spank/stepd.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/ask.h"
#include "spank/failure/kill.h"
#include "spank/failure/step.h"
#include "spank/failure/timeline.h"
#include "spank/identity/identity.h"
#include "spank/launch/container.h"
#include "spank/launch/daemon.h"

/* ---- before the tasks ------------------------------------------------------------ */

static bool starts_daemon(spank_t spank)
{
	char **words = NULL;
	int count = 0;

	return spank_get_item(spank, S_JOB_ARGV, &count, &words) == ESPANK_SUCCESS &&
	       daemon_is_launched(count, words);
}

/* What srun has found out about its options, in slurmstepd. */
static void take_word_of_srun(struct stepd *stepd, char *const *environment)
{
	const char *word = environment_get(environment, "SLURM_DDP_ON_FAILURE");

	stepd->no_witness = environment_get(environment, "SLURM_DDP_NO_WITNESS") != NULL;
	if (word != NULL && !plugin_locks(stepd->plugin, "on-failure") &&
	    !option_given(&stepd->plugin->settings, "on-failure"))
		stepd->plugin->settings.kill_on_failure = strcmp(word, "continue") != 0;
}

/*
 * Asks Slurm's own table of nodes for the NodeAddr of the step's first node: here,
 * since in a task, forked from a process with threads, a lock could be held for
 * ever. Of the user's there is the name only, to be looked for in that table.
 */
static void note_master(struct node_address *master, char *const *environment)
{
	const char *first = environment_get(environment, "SLURM_DDP_FIRST_HOST");
	const char *list = environment_get(environment, "SLURM_STEP_NODELIST");
	char *(*find_address)(const char *node);
	struct error ignored;
	char *address;

	*(void **)&find_address = dlsym(RTLD_DEFAULT, "slurm_conf_get_nodeaddr");
	if (find_address == NULL ||
	    !nodelist_first(first != NULL ? first : list, master->node, &ignored))
		return;
	/* Slurm's to free, by a function that differs between releases; it is short. */
	address = find_address(master->node);
	if (address != NULL && strlen(address) < sizeof(master->address))
		memcpy(master->address, address, strlen(address) + 1);
	else
		master->node[0] = '\0';
}

void stepd_begin(spank_t spank, struct stepd *stepd)
{
	struct plugin *plugin = stepd->plugin;
	uint32_t step_id, local_tasks;
	uid_t owner = geteuid();
	char **environment = NULL;
	const char *threads;
	struct error error;

	if (!plugin->requested)
		return;
	stepd->daemon = starts_daemon(spank);
	if (stepd->daemon)
		return;
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		environment = NULL;
	/* Here, since a task is forked from a process with threads: the loader's lock. */
	stepd->container_wins = container_plugin_comes_later();
	if (plugin->settings.address == ADDRESS_IP && environment != NULL)
		note_master(&stepd->master, environment);
	threads = environment_get(environment, "OMP_NUM_THREADS");
	if (threads != NULL && strlen(threads) < sizeof(stepd->user_threads))
		memcpy(stepd->user_threads, threads, strlen(threads));
	if (environment != NULL) {
		stepd->node.relay = relay_parse(environment_get(environment, "SLURM_DDP_RELAY"));
		take_word_of_srun(stepd, environment);
	}
	stepd->node.say = ask_to_say;
	stepd->node.launcher = plugin->settings.launcher;
	stepd->node.kill_on_failure = plugin->settings.kill_on_failure;
	/* Of what a launcher starts there are no pages. */
	stepd->node.stall_seconds = plugin->settings.launcher ? 0 : plugin->settings.stall_seconds;
	if (!ask_fact(spank, S_JOB_STEPID, "the step's id", &step_id, &plugin->error) ||
	    !ask_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &local_tasks, &plugin->error) ||
	    !ask_fact(spank, S_JOB_UID, "the job's user", &owner, &plugin->error)) {
		stepd->normal_step = true;
		return;
	}
	stepd->normal_step = step_id <= SLURM_MAX_NORMAL_STEP_ID;
	if (stepd->normal_step && !supervise_start(&stepd->node.supervise, local_tasks, owner, &error))
		slurm_error("ddp: %s", error.text);
}

void stepd_take_fork(spank_t spank, struct stepd *stepd)
{
	int local_id;
	pid_t pid;

	if (stepd->node.supervise.pids == NULL || spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS)
		return;
	if (local_id >= 0)
		supervise_forked(&stepd->node.supervise, (uint32_t)local_id, pid);
}

/* ---- when a task ends ------------------------------------------------------------ */

/* Of this node itself; below 0: it asks for no end. */
static long alone_ms(const struct settings *settings, enum end_delay delay)
{
	switch (delay) {
	case DELAY_NONE:
		return ALONE_MS;
	case DELAY_GRACE:
		return (long)ask_grace_ms(settings);
	case DELAY_STOP:
		/* What Slurm itself grants is not for a node to ask. */
		return settings->grace_seconds == GRACE_OF_SLURM ? -1 : (long)ask_grace_ms(settings);
	case DELAY_DOUBT:
	case DELAY_NEVER:
		break;
	}
	return -1;
}

/* srun does not answer: this node asks for the step's end itself. */
static void end_step_alone(spank_t spank, const struct stepd *stepd, enum end_delay delay)
{
	uint32_t node, nodes, tasks;
	char **environment = NULL;
	struct kill_alone request = { .witness = &stepd->node.supervise.shared->witness,
		                      .with_tasks = delay != DELAY_NONE,
		                      .delay_ms = alone_ms(&stepd->plugin->settings, delay) };

	if (request.delay_ms < 0 || spank_get_item(spank, S_JOB_ID, &request.job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &request.step_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		return;
	request.delay_ms += nodes * ALONE_NODE_MS <= ALONE_SPREAD_MS
		? node * ALONE_NODE_MS : (long)node * ALONE_SPREAD_MS / nodes;
	request.heterogeneous = step_spans_components(environment, tasks);
	kill_start_alone(&request);
}

void stepd_take_end(spank_t spank, struct stepd *stepd)
{
	struct node_task task;
	enum end_delay delay;
	int local_id = -1;

	if (stepd->node.supervise.shared == NULL ||
	    spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &task.global_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &task.wait_status) != ESPANK_SUCCESS ||
	    local_id < 0 || (uint32_t)local_id >= stepd->node.supervise.local_tasks)
		return;
	task.local_id = (uint32_t)local_id;
	delay = node_take_end(&stepd->node, &task);
	if (delay != DELAY_NEVER)
		end_step_alone(spank, stepd, delay);
	if (supervise_left(&stepd->node.supervise) == 0) {
		kill_finish_alone();
		node_end(&stepd->node);
	}
}
