/*
 * spank_ddp.so: the SPANK callbacks. They collect what Slurm knows, ask the
 * pure core, and hand its answer to Slurm. In srun, sbatch and salloc all runs
 * as the user; in slurmstepd, task_init runs as the user, in the task's own
 * process, and the rest as root.
 *
 * In slurmstepd no callback before task_init fails: for a batch step Slurm
 * would drain the node, and nothing that is said there reaches the user. What
 * is wrong is kept and said in task_init.
 */
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
/* What Slurm looks for, and nothing else, is visible. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(spank_ddp, 1)
#pragma GCC visibility pop

#include "base/clock.h"
#include "spank/launch/check.h"
#include "spank/launch/container.h"
#include "spank/launch/daemon.h"
#include "spank/launch/variables.h"
#include "spank/identity/identity.h"
#include "spank/failure/judge.h"
#include "spank/failure/kill.h"
#include "spank/launch/prepare.h"
#include "spank/launch/table.h"
#include "spank/identity/master.h"
#include "spank/failure/relay.h"
#include "spank/failure/report.h"
#include "spank/site.h"
#include "spank/failure/supervise.h"

enum {
	CANCEL_GRACE_MS = 150, /* within it, the tasks of a cancelled step end together */
	KILL_DELAY_MS = 200,   /* longer, so that no node takes our end for a cancellation */
	DELIVERY_MS = 60,      /* until srun has printed a message */
	SPREAD_MAX_MS = 300,
	KILL_JOIN_SECONDS = 2,
};

static struct {
	struct site site;
	struct settings settings;
	bool requested;     /* --ddp was given, and not taken back by off */
	struct fault fault; /* what is wrong with the site's line or the option; "" */
	bool normal_step;   /* not the batch script, extern or interactive step */
	struct node_address master; /* for addr=ip */
	uint32_t affinity;  /* CPUs of slurmstepd, before tasks are bound */
	char user_threads[64]; /* OMP_NUM_THREADS as the user has set it; "": not */
	bool daemon;        /* an MPI launcher's: it gets nothing */
	struct supervise supervise;
	struct relay relay; /* where srun listens */
	bool ending;        /* the step's end was asked for */
} state = { .supervise = { .progress_fd = -1 } };

static int take_option(int value, const char *argument, int remote);

static struct spank_option ddp_option = {
	.name = "ddp",
	.arginfo = "KEY=VALUE,...",
	.usage = "[ddp] tell each task its rank for data-parallel training; keys: port, addr, "
	         "addr-suffix, omp, gpu, launcher, bucket-mb, timeout, trace, on-failure, verbose, "
	         "check, off (see ddp(7))",
	.has_arg = 2,
	.cb = take_option,
};

/* ---- options ---------------------------------------------------------------- */

static bool check_version(spank_t spank, struct fault *fault)
{
	char *major = NULL, *minor = NULL;

	if (spank_get_item(spank, S_SLURM_VERSION_MAJOR, &major) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_SLURM_VERSION_MINOR, &minor) != ESPANK_SUCCESS)
		return fault_set(fault, "Slurm does not say its version");
	if (atoi(major) == SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER) &&
	    atoi(minor) == SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER))
		return true;
	return fault_set(fault, "spank_ddp.so was built for Slurm %d.%02d, but this is %s.%s: build it anew",
	                 SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
	                 SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER), major, minor);
}

/* CPUs on which this process may run; 0: not known. */
static uint32_t affinity(void)
{
	enum { CPUS_MAX = 8192 };
	unsigned long mask[CPUS_MAX / (8 * sizeof(unsigned long))] = { 0 };
	uint32_t count = 0;

	if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)mask) != 0)
		return 0;
	for (size_t i = 0; i < sizeof(mask) / sizeof(mask[0]); i++)
		count += (uint32_t)__builtin_popcountl(mask[i]);
	return count;
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	spank_context_t context = spank_context();
	spank_err_t error;

	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	if (!site_parse(&state.site, ac, argv, &state.fault) || !check_version(spank, &state.fault))
		slurm_debug("ddp: %s", state.fault.text);
	state.settings = state.site.defaults;
	state.affinity = affinity();
	error = spank_option_register(spank, &ddp_option);
	if (error != ESPANK_SUCCESS) {
		slurm_error("ddp: cannot register --ddp: %s", spank_strerror(error));
		return context == S_CTX_REMOTE ? 0 : -1;
	}
	return 0;
}

/* May run twice: for what sbatch handed on, then for srun's own; the last one
   counts, and each starts from the site's defaults. */
static int take_option(int value, const char *argument, int remote)
{
	struct fault fault = { "" };

	(void)value;
	state.requested = true;
	state.settings = state.site.defaults;
	if (state.fault.text[0] == '\0')
		options_parse(&state.settings, argument, state.site.locked, &fault);
	else
		fault = state.fault;
	if (fault.text[0] == '\0') {
		state.requested = !state.settings.off;
		return 0;
	}
	if (remote) {
		state.fault = fault;
		return 0;
	}
	slurm_error("ddp: --ddp: %s", fault.text);
	return -1;
}

/* ---- srun --------------------------------------------------------------------- */

static void say(const char *text)
{
	slurm_error("ddp: %s", text);
}

/* Where Slurm's own srun would listen: SrunPortRange; without one, anywhere. */
static void listen_for_nodes(void)
{
	const slurm_conf_t *conf = dlsym(RTLD_DEFAULT, "slurm_conf");
	const uint16_t *ports = conf != NULL ? conf->srun_port_range : NULL;
	struct fault fault;
	char spec[RELAY_SPEC_MAX];

	unsetenv("SLURM_DDP_RELAY");
	/* Without it, each node says by itself what it sees. */
	if (!relay_open(ports != NULL ? ports[0] : 0, ports != NULL ? ports[1] : 0, RELAY_HOLD_MS, say,
	                spec, &fault))
		slurm_debug("ddp: %s", fault.text);
	else if (setenv("SLURM_DDP_RELAY", spec, 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_RELAY: %s", strerror(errno));
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
	spank_context_t context = spank_context();
	struct fault fault;
	char stale[512];

	(void)spank;
	(void)ac;
	(void)argv;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return 0;
	launch_list_stale(stale, sizeof(stale));
	launch_leave_step();
	if (context != S_CTX_LOCAL || !state.requested)
		return 0;
	if (state.settings.verbose && stale[0] != '\0')
		slurm_spank_log("ddp: replaced in the tasks, as not of this step: %s", stale);
	if ((state.settings.verbose || state.settings.check != CHECK_NO) && container_plugin_comes_later())
		slurm_error("ddp: plugstack.conf names spank_pyxis.so behind spank_ddp.so, so that a container's "
		            "MASTER_PORT, WORLD_SIZE and others would win: the administrator should put "
		            "spank_ddp.so behind it");
	listen_for_nodes();
	if (state.settings.check == CHECK_TABLE && !table_begin(&fault))
		slurm_debug("ddp: %s", fault.text);
	if (launch_prepare(&state.settings, &fault))
		return 0;
	slurm_error("ddp: %s", fault.text);
	return -1;
}

/* Marks the step, so that a program on a node without the plugin can tell. */
int slurm_spank_local_user_init(spank_t spank, int ac, char *argv[])
{
	uint32_t job_id, step_id;
	char text[32];

	(void)ac;
	(void)argv;
	if (!state.requested || spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS)
		return 0;
	snprintf(text, sizeof(text), "%u.%u", job_id, step_id);
	if (setenv("DDP_REQUESTED", text, 1) == 0)
		return 0;
	slurm_error("ddp: cannot set DDP_REQUESTED: %s", strerror(errno));
	return -1;
}

static bool starts_daemon(spank_t spank)
{
	char **words = NULL;
	int count = 0;

	return spank_get_item(spank, S_JOB_ARGV, &count, &words) == ESPANK_SUCCESS &&
	       daemon_is_launched(count, words);
}

/* ---- slurmstepd, before the tasks ------------------------------------------------ */

static bool get_fact(spank_t spank, spank_item_t item, const char *name, uint32_t *fact,
                     struct fault *fault)
{
	spank_err_t error = spank_get_item(spank, item, fact);

	return error == ESPANK_SUCCESS ||
	       fault_set(fault, "Slurm does not give %s: %s", name, spank_strerror(error));
}

/*
 * Asks Slurm's own table of nodes for the NodeAddr of the step's first node: here,
 * since in a task, forked from a process with threads, a lock could be held for
 * ever. Of the user's there is the name only, to be looked for in that table.
 */
static void note_master(char *const *environment)
{
	const char *first = environment_get(environment, "SLURM_DDP_FIRST_HOST");
	const char *list = environment_get(environment, "SLURM_STEP_NODELIST");
	char *(*find_address)(const char *node);
	struct node_address *master = &state.master;
	struct fault ignored;
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

int slurm_spank_user_init(spank_t spank, int ac, char *argv[])
{
	uint32_t step_id, local_tasks;
	uid_t owner = geteuid();
	char **environment = NULL;
	const char *threads;
	struct fault fault;

	(void)ac;
	(void)argv;
	if (!state.requested)
		return 0;
	state.daemon = starts_daemon(spank);
	if (state.daemon)
		return 0;
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		environment = NULL;
	if (state.settings.address == ADDRESS_IP && environment != NULL)
		note_master(environment);
	threads = environment_get(environment, "OMP_NUM_THREADS");
	if (threads != NULL && strlen(threads) < sizeof(state.user_threads))
		memcpy(state.user_threads, threads, strlen(threads));
	if (environment != NULL)
		state.relay = relay_parse(environment_get(environment, "SLURM_DDP_RELAY"));
	if (!get_fact(spank, S_JOB_STEPID, "the step's id", &step_id, &state.fault) ||
	    !get_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &local_tasks, &state.fault) ||
	    !get_fact(spank, S_JOB_UID, "the job's user", &owner, &state.fault)) {
		state.normal_step = true;
		return 0;
	}
	state.normal_step = step_id <= SLURM_MAX_NORMAL_STEP_ID;
	if (state.normal_step && !supervise_start(&state.supervise, local_tasks, owner, &fault))
		slurm_error("ddp: %s", fault.text);
	return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char *argv[])
{
	int local_id;
	pid_t pid;

	(void)ac;
	(void)argv;
	if (state.supervise.pids == NULL || spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS)
		return 0;
	if (local_id >= 0 && (uint32_t)local_id < state.supervise.local_tasks)
		state.supervise.pids[local_id] = pid;
	return 0;
}

/*
 * The first failure of the step is said by srun, or by this node, if srun does
 * not answer. slurmstepd connects to the host from which Slurm got the step, as
 * Slurm itself does to report the tasks' ends; the user chooses the port only,
 * as there. True if srun has it.
 */
static bool tell_srun(const struct relay_news *news)
{
	const struct supervise_shared *shared = state.supervise.shared;
	char address[sizeof(shared->srun_address)] = "";

	if (shared == NULL)
		return false;
	memcpy(address, shared->srun_address, sizeof(address) - 1);
	if (relay_tell(&state.relay, address, news))
		return true;
	/* An srun that is out of reach holds up one task's end, not every task's. */
	state.relay.port = 0;
	return false;
}

/* ---- slurmstepd, in the task, as the user ------------------------------------------ */

static bool collect_facts(spank_t spank, struct step_facts *facts, struct fault *fault)
{
	uint32_t local_id_of_zero;
	int local_id = -1;
	char **environment = NULL;

	if (!get_fact(spank, S_JOB_ID, "the job's id", &facts->job_id, fault) ||
	    !get_fact(spank, S_JOB_STEPID, "the step's id", &facts->step_id, fault) ||
	    !get_fact(spank, S_SLURM_RESTART_COUNT, "the restart count", &facts->restart_count, fault) ||
	    !get_fact(spank, S_JOB_NODEID, "the node's id", &facts->node_id, fault) ||
	    !get_fact(spank, S_JOB_NNODES, "the number of nodes", &facts->node_count, fault) ||
	    !get_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &facts->local_tasks, fault) ||
	    !get_fact(spank, S_JOB_TOTAL_TASK_COUNT, "the step's tasks", &facts->total_tasks, fault) ||
	    !get_fact(spank, S_TASK_GLOBAL_ID, "the task's id", &facts->global_id, fault))
		return false;
	if (spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS || local_id < 0)
		return fault_set(fault, "Slurm does not give the task's local id");
	if (spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS || environment == NULL)
		return fault_set(fault, "Slurm does not give the task's environment");
	facts->local_id = (uint32_t)local_id;
	facts->environment = environment;
	facts->holds_task_zero = spank_get_item(spank, S_JOB_GLOBAL_TO_LOCAL_ID, 0,
	                                        &local_id_of_zero) == ESPANK_SUCCESS;
	return true;
}

static uint32_t task_cpus(spank_t spank, char *const *environment, uint32_t local_tasks)
{
	const char *asked = environment_get(environment, "SLURM_CPUS_PER_TASK");
	struct cpu_facts facts = { .asked = asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : 0,
		                   .bound = affinity() };
	uint16_t node = 0;

	if (spank_get_item(spank, S_STEP_CPUS_PER_TASK, &facts.per_task) != ESPANK_SUCCESS)
		facts.per_task = 0;
	if (spank_get_item(spank, S_JOB_NCPUS, &node) == ESPANK_SUCCESS && local_tasks > 0)
		facts.share = node / local_tasks;
	/* What slurmstepd may use, too, is nothing that the task was bound to. */
	if (facts.bound >= state.affinity)
		facts.bound = 0;
	return cpus_of_task(&facts);
}

static bool check_gpus(const struct identity *identity, const struct settings *settings,
                       const struct gpu_view *view, struct fault *fault)
{
	struct fault sentence = { "" };
	enum gpu_verdict verdict = gpu_judge(view, identity->local_world_size, settings->launcher,
	                                     &sentence);

	if (verdict == GPU_FINE || settings->gpu == GPU_IGNORE)
		return true;
	if (verdict == GPU_MISMATCH && settings->gpu == GPU_ERROR)
		return fault_set(fault, "%s: %s (gpu=error)", identity->node_name, sentence.text);
	if (identity->rank == 0)
		slurm_spank_log("ddp: %s: %s (gpu=ignore silences this)", identity->node_name, sentence.text);
	return true;
}

static bool write_environment(spank_t spank, const struct variables *variables, struct fault *fault)
{
	for (int i = 0; i < variables->count; i++) {
		const struct variable *variable = &variables->item[i];
		spank_err_t error = variable->value != NULL
			? spank_setenv(spank, variable->name, variable->value, 1)
			: spank_unsetenv(spank, variable->name);
		if (error != ESPANK_SUCCESS)
			return fault_set(fault, "cannot set %s: %s", variable->name, spank_strerror(error));
	}
	return true;
}

/* The dry run; the program never starts. srun puts the rows in order. */
static void show_check(const struct identity *identity, const struct task_extras *extras,
                       const struct variables *variables)
{
	static char text[2 * VARIABLES_TEXT_MAX];

	if (state.settings.check == CHECK_TABLE &&
	    check_row(identity, extras, variables, text, sizeof(text)))
		check_write(STDOUT_FILENO, text);
	for (int i = 0; state.settings.check == CHECK_JSON && i < variables->count; i++)
		if (check_json(identity, &variables->item[i], text, sizeof(text)))
			check_write(STDOUT_FILENO, text);
	_exit(0);
}

/* slurmstepd itself does not see what Slurm puts into a task's environment. */
static void note_srun(char *const *environment)
{
	struct supervise_shared *shared = state.supervise.shared;
	const char *address = environment_get(environment, "SLURM_LAUNCH_NODE_IPADDR");

	if (shared != NULL && address != NULL && strlen(address) < sizeof(shared->srun_address))
		memcpy(shared->srun_address, address, strlen(address));
}

static void note_rank(const struct identity *identity)
{
	struct supervise_shared *shared = state.supervise.shared;

	if (shared == NULL || identity->local_rank >= state.supervise.local_tasks)
		return;
	shared->rank[identity->local_rank] = identity->rank;
	shared->world_size = identity->world_size;
	memcpy(shared->node, identity->node_name, sizeof(shared->node));
}

static bool prepare_task(spank_t spank, struct fault *fault)
{
	static struct variables variables;
	const struct settings *settings = &state.settings;
	char address[MASTER_ADDRESS_MAX], row[1024];
	struct step_facts facts;
	struct identity identity;

	if (!collect_facts(spank, &facts, fault))
		return false;
	note_srun(facts.environment);
	if (state.fault.text[0] != '\0')
		return fault_set(fault, "%s", state.fault.text);
	if (!identity_derive(&facts, settings, &identity, fault))
		return false;
	note_rank(&identity);
	if (!master_find_address(&identity, settings, &state.master, address, fault) ||
	    !master_check_port(&identity, fault))
		return false;
	struct task_extras extras = {
		.master_address = address,
		.version = PACKAGE_VERSION,
		.key = environment_get(facts.environment, "SLURM_DDP_KEY"),
		.progress_fd = settings->launcher ? -1 : state.supervise.progress_fd,
		.gpu = gpu_look(facts.environment, identity.local_rank, identity.local_world_size),
		.cpus = task_cpus(spank, facts.environment, identity.local_world_size),
		.environment = facts.environment,
		.user_threads = state.user_threads[0] != '\0' ? state.user_threads : NULL,
	};
	if (!check_gpus(&identity, settings, &extras.gpu, fault) ||
	    !environment_build(&variables, &identity, settings, &extras, fault))
		return false;
	if (settings->check != CHECK_NO)
		show_check(&identity, &extras, &variables);
	if (settings->verbose && check_row(&identity, &extras, &variables, row, sizeof(row))) {
		row[strcspn(row, "\n")] = '\0';
		slurm_spank_log("ddp: %s", row);
	}
	return write_environment(spank, &variables, fault);
}

/* What srun's side has put there goes, and so does what the caller had: the
   daemon would hand it on to all its ranks. */
static bool prepare_daemon(spank_t spank, struct fault *fault)
{
	static struct variables variables;

	environment_clear(&variables);
	return write_environment(spank, &variables, fault);
}

/*
 * Leaves by itself after an error: in a plugstack.conf that calls the plugin
 * optional, Slurm would run the program without ranks.
 */
int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	struct fault fault;

	(void)ac;
	(void)argv;
	if (!state.requested ||
	    (state.daemon ? prepare_daemon(spank, &fault)
	                  : !state.normal_step || prepare_task(spank, &fault)))
		return 0;
	if (supervise_tell_once(&state.supervise) &&
	    !tell_srun(&(struct relay_news){ .text = fault.text }))
		slurm_error("ddp: %s", fault.text);
	_exit(1);
}

/* ---- slurmstepd, when a task ends ----------------------------------------------------- */

static void pause_ms(long ms)
{
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

/*
 * Where a node has one task, SIGTERM comes before SIGKILL: it tells that node,
 * which has nothing to compare with, that the step is cancelled. The delay lets
 * all nodes judge what they see first, and keeps them from asking the
 * controller at once.
 */
static void end_step(spank_t spank)
{
	uint32_t job_id, step_id, node, tasks;
	char **environment = NULL;

	if (state.ending || spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		return;
	state.ending = true;
	kill_start(job_id, step_id, KILL_DELAY_MS + node % SPREAD_MAX_MS,
	           layout_has_lone_task(environment_get(environment, "SLURM_STEP_TASKS_PER_NODE")),
	           step_spans_components(environment, tasks)
	           	? environment_get(environment, "SLURM_STEP_NODELIST") : NULL);
}

/* Of the ranks that gave up because of another, rank 0's node speaks if srun
   does not, for the case that the other one cannot. */
static void report(uint32_t local_id, uint32_t global_id, int status, uint64_t seen_ns,
                   const struct ddp_progress *progress)
{
	const struct supervise_shared *shared = state.supervise.shared;
	struct failure failure = { .rank = global_id, .wait_status = status, .now_ns = seen_ns,
		                   .progress = *progress };
	char node[HOST_NAME_MAX_BYTES] = "", text[RELAY_TEXT_MAX + 1];
	struct relay_news news = { .text = text, .hearsay = report_blames_peer(progress) };

	/* Written by the tasks before they became the user's program. */
	memcpy(node, shared->node, sizeof(node) - 1);
	if (shared->rank[local_id] != UINT32_MAX)
		failure.rank = shared->rank[local_id];
	failure.world_size = shared->world_size;
	failure.node = node;
	failure.seconds = (double)(seen_ns - state.supervise.start_ns) * 1e-9;
	report_failure(&failure, text, sizeof(text));
	news.age_ms = (uint32_t)((ddp_now_ns() - seen_ns) / 1000000);
	if (tell_srun(&news) || (news.hearsay && !supervise_holds_rank_zero(&state.supervise)) ||
	    !supervise_tell_once(&state.supervise))
		return;
	say(text);
	/* With its last task a node's connection to srun goes; the words first. */
	if (supervise_all_ended(&state.supervise, 0))
		pause_ms(DELIVERY_MS);
}

/*
 * Tells a failure from the end of a cancelled step, of which the user knows.
 * Cancelled tasks end together; one that the kernel or a person killed ends
 * alone, or takes others with it that fail by themselves. A node with one task
 * has nothing to compare with: there SIGTERM and SIGINT are taken for a
 * cancellation, and SIGKILL is not.
 */
static void take_end(spank_t spank, uint32_t local_id, uint32_t global_id, int status)
{
	uint64_t seen_ns = ddp_now_ns();
	enum task_end end = judge_task_end(status);
	bool alone = state.supervise.local_tasks == 1;
	bool cancelled = (end == END_BY_REQUEST || end == END_BY_KILL) && !alone &&
	                 supervise_all_ended(&state.supervise, CANCEL_GRACE_MS) &&
	                 !(end == END_BY_KILL && supervise_any_failed(&state.supervise));
	struct ddp_progress progress;

	supervise_read(&state.supervise, local_id, &progress);
	/* Another may have failed before the one that blames it; Slurm reaps in any order. */
	state.supervise.failed = !report_blames_peer(&progress);
	state.supervise.any_failed |= end == END_CODE || end == END_CRASH;
	if (!cancelled && !(alone && end == END_BY_REQUEST))
		report(local_id, global_id, status, seen_ns, &progress);
	/* SIGKILL to a whole node may be its memory running out. */
	if (state.settings.kill_on_failure && !(cancelled && end == END_BY_REQUEST))
		end_step(spank);
}

int slurm_spank_task_exit(spank_t spank, int ac, char *argv[])
{
	int local_id = -1, status = 0;
	uint32_t global_id = 0;

	(void)ac;
	(void)argv;
	if (state.supervise.shared == NULL ||
	    spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &global_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS ||
	    local_id < 0 || (uint32_t)local_id >= state.supervise.local_tasks)
		return 0;
	state.supervise.pids[local_id] = 0;
	if (judge_task_end(status) == END_FINE || state.supervise.failed)
		return 0;
	take_end(spank, (uint32_t)local_id, global_id, status);
	return 0;
}

/* In srun, what is held is said; in slurmstepd, the request to end the step
   should be out before this process ends. */
int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
	(void)spank;
	(void)ac;
	(void)argv;
	table_end();
	relay_close();
	kill_join(KILL_JOIN_SECONDS);
	supervise_end(&state.supervise);
	return 0;
}
