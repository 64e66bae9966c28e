/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "base/clock.h"
#include "spank/base/release.h"
#include "spank/identity/identity.h"
#include "spank/identity/master.h"
#include "spank/launch/check.h"
#include "spank/launch/variables.h"
#include "spank/node/node.h"
#include "spank/node/stall_watch.h"
#include "spank/slurmctld/query.h"
#include "spank/wire/deal.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"
#include "spank/witness/agent.h"
#include "spank/witness/folder.h"

static bool collect_facts(spank_t spank, struct step_facts *facts, struct error *error)
{
	uint32_t local_id_of_zero;
	int local_id = -1;
	char **environment = NULL;

	if (!query_fact(spank, S_JOB_ID, "the job's id", &facts->job_id, error) ||
	    !query_fact(spank, S_JOB_STEPID, "the step's id", &facts->step_id, error) ||
	    !query_fact(spank, S_SLURM_RESTART_COUNT, "the restart count", &facts->restart_count, error) ||
	    !query_fact(spank, S_JOB_NODEID, "the node's id", &facts->node_id, error) ||
	    !query_fact(spank, S_JOB_NNODES, "the number of nodes", &facts->node_count, error) ||
	    !query_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &facts->local_tasks, error) ||
	    !query_fact(spank, S_JOB_TOTAL_TASK_COUNT, "the step's tasks", &facts->total_tasks, error) ||
	    !query_fact(spank, S_TASK_GLOBAL_ID, "the task's id", &facts->global_id, error))
		return false;
	if (spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS || local_id < 0)
		return error_set(error, "Slurm does not give the task's local id");
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == NULL)
		return error_set(error, "Slurm does not give the task's environment");
	facts->local_id = (uint32_t)local_id;
	facts->environment = environment;
	facts->holds_task_zero = spank_get_item(spank, S_JOB_GLOBAL_TO_LOCAL_ID, 0,
	                                        &local_id_of_zero) == ESPANK_SUCCESS;
	return true;
}

static uint32_t task_cpus(spank_t spank, const struct stepd *stepd, char *const *environment,
                          uint32_t local_tasks)
{
	const char *asked = environment_get(environment, "SLURM_CPUS_PER_TASK");
	struct cpu_facts facts = { .asked = asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : 0,
		                   .bound = query_affinity() };
	uint16_t node = 0;

	if (spank_get_item(spank, S_STEP_CPUS_PER_TASK, &facts.per_task) != ESPANK_SUCCESS)
		facts.per_task = 0;
	if (spank_get_item(spank, S_JOB_NCPUS, &node) == ESPANK_SUCCESS && local_tasks > 0)
		facts.share = node / local_tasks;
	/* The task was not bound to CPUs that slurmstepd may use, too. */
	if (facts.bound >= stepd->affinity)
		facts.bound = 0;
	return cpus_of_task(&facts);
}

static bool check_gpus(const struct identity *identity, const struct settings *settings,
                       const struct gpu_view *view, struct error *error)
{
	struct error sentence = { "" };
	enum gpu_verdict verdict = gpu_judge(view, identity->local_world_size, settings->launcher,
	                                     &sentence);

	if (verdict == GPU_FINE || settings->gpu == GPU_IGNORE)
		return true;
	if (verdict == GPU_MISMATCH && settings->gpu == GPU_ERROR)
		return error_set(error, "%s: %s (gpu=error)", identity->node_name, sentence.text);
	if (identity->rank == 0)
		slurm_spank_log("ddp: %s: %s (gpu=ignore silences this)", identity->node_name, sentence.text);
	return true;
}

static spank_err_t set_variable(spank_t spank, const char *name, const char *value, struct room *room)
{
	char **environment = NULL;

	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == NULL)
		return ESPANK_ERROR;
	return room_put(room, environment, name, value) ? ESPANK_SUCCESS : spank_setenv(spank, name, value, 1);
}

static bool write_environment(spank_t spank, const struct variables *variables, struct error *error)
{
	static struct room room;
	char **environment = NULL;
	spank_err_t reason = spank_get_item(spank, S_JOB_ENV, &environment);
	const char *name = "the task's variables";

	if (reason == ESPANK_SUCCESS)
		room_find(&room, environment, variables);
	for (int i = 0; i < variables->count && reason == ESPANK_SUCCESS; i++) {
		name = variables->item[i].name;
		if (variables->item[i].value != NULL)
			reason = set_variable(spank, name, variables->item[i].value, &room);
	}
	for (int i = 0; i < room.count && reason == ESPANK_SUCCESS; i++) {
		name = room.name[i];
		if (room.text[i] != NULL)
			reason = spank_unsetenv(spank, name);
	}
	return reason == ESPANK_SUCCESS || error_set(error, "cannot set %s: %s", name, spank_strerror(reason));
}

/* The dry run; the program never starts. srun puts the rows in order. */
static void show_check(enum check_mode check, const struct identity *identity,
                       const struct task_extras *extras, const struct variables *variables)
{
	static char text[2 * VARIABLES_TEXT_MAX];

	if (check == CHECK_TABLE &&
	    check_row(identity, extras, variables, text, sizeof(text)))
		text_write(STDOUT_FILENO, text, strlen(text));
	if (check == CHECK_JSON && identity->spare &&
	    check_json(identity, &(struct variable){ "spare", "yes", "spare=" }, text, sizeof(text)))
		text_write(STDOUT_FILENO, text, strlen(text));
	for (int i = 0; check == CHECK_JSON && !identity->spare && i < variables->count; i++)
		if (check_json(identity, &variables->item[i], text, sizeof(text)))
			text_write(STDOUT_FILENO, text, strlen(text));
	_exit(0);
}

static void note_rank(const struct stepd *stepd, const struct identity *identity)
{
	struct supervise_shared *shared = stepd->node.supervise.shared;

	if (shared == NULL || identity->local_rank >= stepd->node.supervise.local_tasks)
		return;
	shared->task[identity->local_rank].rank = identity->rank;
	shared->task[identity->local_rank].pid = getpid();
	shared->world_size = identity->world_size;
	memcpy(shared->node, identity->node_name, sizeof(shared->node));
}

/* srun is to know that the node has the plugin. slurmstepd's thread tells srun, beside the programs. Without the thread
   the node's first task to get here does so; others do not wait for it. */
static void report_node(const struct stepd *stepd, const struct identity *identity)
{
	struct supervise_shared *shared = stepd->node.supervise.shared;

	if (shared == NULL || atomic_exchange(&shared->noted, true))
		return;
	/* Agents wait for the thread's link. */
	agents_give_news(&stepd->node.supervise.agents);
	if (!atomic_load(&shared->watched) &&
	    relay_tell_here(&stepd->node.relay, shared->srun_address, identity->rank, shared->node))
		atomic_store(&shared->answered, true);
}

/* Who this task is in the step, and what is known already that would keep it from running. */
static bool introduce_task(spank_t spank, const struct stepd *stepd, struct step_facts *facts,
                           struct identity *identity, struct error *error)
{
	*facts = (struct step_facts){ .environment = NULL };
	if (!collect_facts(spank, facts, error))
		return false;
	supervise_note_place(stepd->node.supervise.shared, facts->environment);
	if (stepd->request->error.text[0] != '\0') {
		const char *node = environment_get(facts->environment, "SLURMD_NODENAME");
		return error_set(error, "%.63s: %s", node != NULL ? node : "a node", stepd->request->error.text);
	}
	if (!identity_derive(facts, &stepd->request->settings, identity, error))
		return false;
	note_rank(stepd, identity);
	report_node(stepd, identity);
	return true;
}

/* A task's preparation begins with these. */
struct beginning {
	const struct step_facts *facts;
	const struct identity *identity;
	const struct node_address *master;
	const char *key;
};

/* Python ignores a folder of PYTHONPATH that does not exist. Runs as the user, once per node. */
static void check_python(const struct settings *settings, const struct identity *identity, const char *installed)
{
	const char *folder = settings->python_path[0] != '\0' ? settings->python_path : installed;
	char file[NCCL_PATH_MAX + sizeof("/site/sitecustomize.py")];

	snprintf(file, sizeof(file), "%s/site/sitecustomize.py", folder);
	if (settings->python && identity->local_rank == 0 && access(file, R_OK) != 0)
		slurm_spank_log("ddp: %s cannot read %s (%s), so its Python programs do not tell what they do: install the "
		                "whole plugin there, or name a folder that all nodes have, by --ddp=python=FOLDER",
		                identity->node_name, file, strerror(errno));
}

/* Makes the variables; a rehearsal does nothing with them. */
static bool prepare_task(spank_t spank, const struct stepd *stepd, const struct beginning *beginning, bool rehearsal,
                         struct error *error)
{
	static struct variables variables;
	const struct settings *settings = &stepd->request->settings;
	const struct step_facts facts = *beginning->facts;
	const struct identity identity = *beginning->identity;
	char address[MASTER_ADDRESS_MAX], row[1024];

	if (!master_find_address(&identity, settings, beginning->master, address, error) ||
	    (!rehearsal && !master_check_port(&identity, error)))
		return false;
	struct task_extras extras = {
		.master_address = address,
		.version = release_own(),
		.key = beginning->key,
		.restarts_in_step = facts.restarts_in_step,
		.joins = facts.joins,
		.progress_fd = settings->launcher ? -1 : stepd->node.supervise.progress_fd,
		.nccl_net = MODULE_DIR "/libnccl-net-ddpucx.so",
		.nccl_profiler = MODULE_DIR "/libnccl-profiler-ddp.so",
		.python = MODULE_DIR "/python",
		.gpu = gpu_view_of(facts.environment, identity.local_rank, identity.local_world_size),
		.cpus = task_cpus(spank, stepd, facts.environment, identity.local_world_size),
		.environment = facts.environment,
		.user_threads = stepd->user_threads[0] != '\0' ? stepd->user_threads : NULL,
	};
	if (!check_gpus(&identity, settings, &extras.gpu, error) ||
	    !environment_build(&variables, &identity, settings, &extras, error))
		return false;
	if (rehearsal)
		return true;
	if (stepd->container_wins && identity.rank == 0)
		slurm_spank_log("ddp: plugstack.conf of %s names spank_pyxis.so behind spank_ddp.so, so that in a "
		                "container the image's MASTER_PORT, WORLD_SIZE and others win: the administrator "
		                "should put spank_ddp.so behind it", identity.node_name);
	check_python(settings, &identity, extras.python);
	if (settings->check != CHECK_NO)
		show_check(settings->check, &identity, &extras, &variables);
	if (settings->verbose && check_row(&identity, &extras, &variables, row, sizeof(row))) {
		row[strcspn(row, "\n")] = '\0';
		slurm_spank_log("ddp: %s", row);
	}
	return write_environment(spank, &variables, error);
}

/* Takes out what srun's side has put there, and what the caller had: the
   daemon would hand it on to all its ranks. */
static bool prepare_daemon(spank_t spank, struct error *error)
{
	static struct variables variables;

	environment_clear(&variables);
	return write_environment(spank, &variables, error);
}

/* A job that a task has submitted from a node without the plugin brings along what srun had
   put there for the plugin; everything else of a step that the plugin leaves alone stays. */
static void leave_step(spank_t spank)
{
	static struct variables variables;
	char **environment = NULL;
	struct error error;

	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS ||
	    environment_get(environment, "SLURM_DDP_KEY") == NULL)
		return;
	environment_leave_step(&variables, environment);
	if (write_environment(spank, &variables, &error))
		slurm_spank_log("ddp: the job has been submitted by a task of srun --ddp on a node without the "
		                "plugin, with that step's key; the key and the rest of that step are taken out");
	else
		slurm_error("ddp: %s", error.text);
}

/* In the witness. */
static int look_for_stall(void *watch, bool asked_to_stop)
{
	return stall_watch_check(watch, asked_to_stop, ddp_now_ns());
}

/* In the next one, if somebody kills it. */
static void begin_again(void *watch)
{
	stall_watch_begin_again(watch);
}

/* In the keeper, if it cannot make the next one. */
static bool give_up(void *watch)
{
	return stall_watch_give_up(watch);
}

/* The last thing before the program: what it tells of is to be there already. `nodes`: of the step. */
static void make_witness(const struct stepd *stepd, uint32_t nodes)
{
	struct supervise_shared *shared = stepd->node.supervise.shared;
	static char text[RELAY_TEXT_MAX + 1];
	static struct stall_watch watch;
	uint32_t seconds = stepd->node.stall_seconds;
	struct error error;

	if (shared == NULL || stepd->no_witness || witness_is_made(&shared->witness))
		return;
	struct witness_words words = { .relay = stepd->node.relay, .address = shared->srun_address,
		                       .text = text, .generation = &shared->generation,
		                       /* Agents end what they have started, and then exit. */
		                       .kill_tasks = stepd->request->settings.kill_on_failure &&
		                                     stepd->node.supervise.agents.shared == NULL,
		                       .stay_in_group = query_tracks_groups(),
		                       .look = look_for_stall, .begin_again = begin_again,
		                       .give_up = give_up, .about = &watch };

	/* The ranks that a launcher starts have no pages. */
	if (!stepd->node.launcher && stall_watch_open(&watch, &stepd->node.supervise, seconds, &error))
		words.look_ms = stall_watch_period_ms(seconds);
	else if (seconds > 0)
		slurm_error("ddp: %s", error.text);
	if (stepd->request->settings.slow_percent > 0 && !stepd->node.launcher &&
	    (words.look_ms == 0 || !pace_open(&watch.pace, stepd->node.supervise.local_tasks, nodes)))
		slurm_error("ddp: slow=: this node cannot watch its ranks' progress");
	watch.relay = stepd->node.relay;
	watch.wanted = (struct unseen_wanted){ .stall = seconds > 0, .watch = stepd->request->settings.watch,
		                               .python = stepd->request->settings.python };
	watch.flight.place = stepd->node.flight.place;
	report_slurmstepd(shared->node, stepd->node.supervise.local_tasks, shared->world_size, text,
	                  sizeof(text));
	witness_make(&shared->witness, &words);
}

static void note_start(spank_t spank, const struct stepd *stepd)
{
	struct supervise_shared *shared = stepd->node.supervise.shared;
	int local_id = -1;

	if (shared != NULL && spank_get_item(spank, S_TASK_ID, &local_id) == ESPANK_SUCCESS && local_id >= 0 &&
	    (uint32_t)local_id < stepd->node.supervise.local_tasks)
		atomic_store(&shared->task[local_id].start_ns, ddp_now_ns());
}

/* ---- generations ------------------------------------------------------------------------ */

/* In the child of a generation: Slurm's own variables become those of the generation. */
static bool take_slurm_variables(spank_t spank, char **environment, const struct deal_go *go, uint32_t local_id,
                                 struct error *error)
{
	static struct renumbered renumbered;
	struct room none = { .count = 0 };
	char name[64];

	if (!renumber(&renumbered, environment, go, local_id, (uint32_t)getpid(), error))
		return false;
	for (int i = 0; i < renumbered.count; i++)
		if (set_variable(spank, renumbered.item[i].name, renumbered.item[i].value, &none) != ESPANK_SUCCESS)
			return error_set(error, "cannot set %s", renumbered.item[i].name);
	/* Each removal changes the list. */
	for (int i = 0; spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS && environment[i] != NULL;) {
		size_t length = strcspn(environment[i], "=");
		bool hidden = renumber_hides(environment[i]) && length < sizeof(name);
		if (hidden) {
			memcpy(name, environment[i], length);
			name[length] = '\0';
			hidden = spank_unsetenv(spank, name) == ESPANK_SUCCESS;
		}
		i += !hidden;
	}
	return true;
}

static void take_place(struct step_facts *facts, const struct deal_go *go, const char *master)
{
	facts->node_id = go->node_rank;
	facts->node_count = go->node_count;
	facts->local_tasks = go->local_count;
	facts->total_tasks = go->world_size;
	facts->global_id = deal_rank(go, facts->local_id);
	facts->holds_task_zero = go->node_rank == go->master;
	facts->restarts_in_step = go->restart_count;
	facts->port_seed = go->port_seed;
	facts->joins = go->joins ? go->generation : 0;
	facts->master_node = master;
}

/* The last thing before the program: all that the plugin says to the user goes past the file. */
static bool keep_output(const struct stepd *stepd, const struct identity *identity, struct error *error)
{
	struct error reason;

	return stepd->log_control < 0 ||
	       redirect_output(stepd->log_control, stepd->request->settings.log_dir, identity, &reason) ||
	       error_set(error, "%s: %s", identity->node_name, reason.text);
}

/* The program of the former generation stays. It finds its new identity on the node's page: its rank is the same. */
static bool tell_program(const struct stepd *stepd, const struct deal_go *go, const struct identity *identity,
                         const struct node_address *master, struct error *error)
{
	struct ddp_progress_deal deal = { .generation = go->generation, .restart_count = identity->restart_count,
		                          .master_port = identity->master_port };
	char address[MASTER_ADDRESS_MAX];

	if (!master_find_address(identity, &stepd->request->settings, master, address, error))
		return false;
	if (strlen(address) >= sizeof(deal.master_addr))
		return error_set(error, "the address %s of rank 0 is too long", address);
	memcpy(deal.master_addr, address, strlen(address));
	memcpy(deal.key, go->key, DEAL_KEY_DIGITS);
	return supervise_note_deal(&stepd->node.supervise, &deal) ||
	       error_set(error, "cannot write to the progress page: %s", strerror(errno));
}

/* In the child of a generation: who it is there. Does not return in a child that only tells so. */
static bool take_generation(spank_t spank, const struct stepd *stepd, struct step_facts *facts,
                            struct identity *identity, struct error *error)
{
	const struct agents_shared *shared = stepd->node.supervise.agents.shared;
	static struct deal_go go;
	static struct node_address master;
	char **environment = NULL;

	if (!deal_unpack_go(shared->deal, shared->deal_bytes, &go) || facts->local_id >= go.local_count)
		return error_set(error, "srun has dealt this task no rank");
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == NULL)
		return error_set(error, "Slurm does not give the task's environment");
	if (!nodelist_at(go.nodes, go.master, master.node, error) ||
	    !take_slurm_variables(spank, environment, &go, facts->local_id, error) ||
	    !collect_facts(spank, facts, error))
		return false;
	memcpy(master.address, shared->master, sizeof(master.address));
	take_place(facts, &go, master.node);
	if (!identity_derive(facts, &stepd->request->settings, identity, error))
		return false;
	if (agent_child_tells()) {
		bool told = tell_program(stepd, &go, identity, &master, error);
		if (!told)
			slurm_spank_log("ddp: rank %u on %s cannot join others: %s", identity->rank,
			                identity->node_name, error->text);
		_exit(!told);
	}
	note_rank(stepd, identity);
	return prepare_task(spank, stepd, &(struct beginning){ facts, identity, &master, go.key }, false, error) &&
	       keep_output(stepd, identity, error);
}

/* The process becomes an agent, and what returns is a generation's program to be. */
static bool become_agent(spank_t spank, const struct stepd *stepd, struct step_facts *facts,
                         struct identity *identity, struct error *error)
{
	if (!agent_is_known(&stepd->node.supervise.agents, error))
		return false;
	agent_become(&stepd->node.supervise.agents, facts->local_id);
	/* srun deals the first generation meanwhile. */
	make_witness(stepd, facts->node_count);
	agent_serve();
	return take_generation(spank, stepd, facts, identity, error);
}

/* The task is the user's process. A folder that cannot be written to is to be known now, and not when a record is
   needed. */
static bool make_record_folder(const struct stepd *stepd, const struct identity *identity, struct error *error)
{
	const struct record_place *place = &stepd->node.flight.place;
	const struct folder_wish wish = record_folder_wish(place->dir, !place->is_site);
	struct error reason;

	if (place->dir[0] == '\0' || identity->local_rank != 0 ||
	    record_folder_make(&wish, place->job, place->step, &reason))
		return true;
	/* A site's folder may suit some users only, and a step is worth more than its records. */
	if (place->is_site) {
		slurm_info("ddp: no flight records: %s", reason.text);
		return true;
	}
	return error_set(error, "%s: %s", identity->node_name, reason.text);
}

static bool begin_task(spank_t spank, const struct stepd *stepd, struct error *error)
{
	bool has_agent = stepd->node.supervise.agents.shared != NULL;
	struct step_facts facts;
	struct identity identity;

	if (!introduce_task(spank, stepd, &facts, &identity, error) || !make_record_folder(stepd, &identity, error))
		return false;
	if (stepd->request->settings.check != CHECK_NO)
		identity_without_spares(&identity, &stepd->request->settings);
	const struct beginning beginning = { &facts, &identity, &stepd->master,
		                             environment_get(facts.environment, "SLURM_DDP_KEY") };
	/* If something is wrong from the start, a restart would not help, so the task does not become an agent. */
	if (!prepare_task(spank, stepd, &beginning, has_agent, error))
		return false;
	if (has_agent)
		return become_agent(spank, stepd, &facts, &identity, error);
	make_witness(stepd, facts.node_count);
	return keep_output(stepd, &identity, error);
}

/* srun has started a step that ddp-preflight does not let start, so that SLURM ends it. */
static void leave_if_refused(spank_t spank)
{
	char **environment = NULL;

	if (spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS && environment != NULL &&
	    environment_get(environment, "SLURM_DDP_REFUSED") != NULL)
		_exit(0);
}

void task_begin(spank_t spank, struct stepd *stepd)
{
	struct relay_news news;
	struct error error;

	if (!stepd->request->wanted || (!stepd->daemon && !stepd->normal_step))
		leave_step(spank);
	if (!stepd->request->wanted ||
	    (stepd->daemon ? prepare_daemon(spank, &error) : !stepd->normal_step))
		return;
	if (!stepd->daemon)
		leave_if_refused(spank);
	if (!stepd->daemon && begin_task(spank, stepd, &error)) {
		note_start(spank, stepd);
		return;
	}
	news = node_error(error.text);
	if (stepd->node.supervise.shared != NULL)
		news.node = stepd->node.supervise.shared->node;
	if (supervise_tell_once(&stepd->node.supervise)) {
		if (!node_tell(&stepd->node, &news))
			slurm_error("ddp: %s", error.text);
		supervise_told(&stepd->node.supervise);
	}
	supervise_await_told(&stepd->node.supervise);
	_exit(1);
}

