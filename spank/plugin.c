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
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
/* What Slurm looks for, and nothing else, is visible. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(spank_ddp, 1)
#pragma GCC visibility pop

#include "spank/launch/check.h"
#include "spank/launch/container.h"
#include "spank/launch/daemon.h"
#include "spank/launch/variables.h"
#include "spank/identity/identity.h"
#include "spank/failure/bad_exit.h"
#include "spank/failure/component.h"
#include "spank/failure/kill.h"
#include "spank/failure/node.h"
#include "spank/launch/prepare.h"
#include "spank/launch/table.h"
#include "spank/identity/master.h"
#include "spank/failure/relay.h"
#include "spank/failure/report.h"
#include "spank/failure/step.h"
#include "spank/failure/timeline.h"
#include "spank/site.h"

enum { COMMAND_LINE_MAX = 65536 };

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
	bool no_witness;    /* in slurmstepd: it would be waited for */
	struct node node;   /* in slurmstepd */
	struct {            /* in srun: the step, or its components */
		uint32_t job_id, step_id;
	} steps[COMPONENTS_MAX];
	atomic_int step_count;
	int failed_status;  /* in srun: the first failure's wait status; 0: none */
} state = { .node = { .supervise = { .progress_fd = -1 } } };

static int take_option(int value, const char *argument, int remote);
static void leave_with_first_code(int status, void *unused);

static struct spank_option ddp_option = {
	.name = "ddp",
	.arginfo = "KEY=VALUE,...",
	.usage = "[ddp] tell each task its rank for data-parallel training; keys: port, addr, "
	         "addr-suffix, omp, gpu, launcher, bucket-mb, timeout, trace, on-failure, grace, "
	         "verbose, check, off (see ddp(7))",
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
	/* This early, so that it runs late. */
	if (context == S_CTX_LOCAL && on_exit(leave_with_first_code, NULL) != 0)
		slurm_debug("ddp: cannot register a handler for srun's exit");
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

/* As the user, once for the step, or for each component of a heterogeneous one. */
static void end_steps(void)
{
	for (int i = 0; i < atomic_load(&state.step_count); i++)
		kill_step(state.steps[i].job_id, state.steps[i].step_id);
}

/* Slurm's own configuration, in srun and in slurmstepd. */
static const slurm_conf_t *slurm_configuration(void)
{
	return dlsym(RTLD_DEFAULT, "slurm_conf");
}

static uint32_t grace_ms(void)
{
	const slurm_conf_t *conf = slurm_configuration();
	uint32_t seconds = state.settings.grace_seconds;

	if (seconds == GRACE_OF_SLURM)
		seconds = conf != NULL && conf->kill_wait > 0 ? conf->kill_wait : GRACE_SECONDS;
	return seconds * 1000;
}

/* Where Slurm's own srun would listen: SrunPortRange; without one, anywhere. */
static void listen_for_nodes(void)
{
	static const struct relay_actions actions = { .say = say, .end_step = end_steps };
	const struct step_policy policy = { .hold_ms = HOLD_MS, .timeout_hold_ms = TIMEOUT_HOLD_MS,
		                            .doubt_ms = DOUBT_MS, .grace_ms = grace_ms(),
		                            .kill_on_failure = state.settings.kill_on_failure };
	const slurm_conf_t *conf = slurm_configuration();
	const uint16_t *ports = conf != NULL ? conf->srun_port_range : NULL;
	struct fault fault;
	char spec[RELAY_SPEC_MAX];

	unsetenv("SLURM_DDP_RELAY");
	/* Without it, each node says by itself what it sees. */
	if (!relay_open(ports != NULL ? ports[0] : 0, ports != NULL ? ports[1] : 0, &policy, &actions,
	                spec, &fault))
		slurm_debug("ddp: %s", fault.text);
	else if (setenv("SLURM_DDP_RELAY", spec, 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_RELAY: %s", strerror(errno));
}

static bool site_locks(const char *key)
{
	return (state.site.locked >> option_find(key, strlen(key)) & 1) != 0;
}

/* -K0 is the user's word on the same matter: it counts more than the site's
   default, and less than on-failure= and the site's lock. */
static void take_bad_exit(void)
{
	static char words[COMMAND_LINE_MAX];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, words, sizeof(words)) : 0;

	if (fd >= 0)
		close(fd);
	unsetenv("SLURM_DDP_ON_FAILURE");
	unsetenv("SLURM_DDP_NO_WITNESS");
	/* The witness is in the first task's cgroup, which is then to be empty first. */
	if ((waits_for_children(words, got > 0 ? (size_t)got : 0, optind) ||
	     getenv("SLURM_WAIT_FOR_CHILDREN") != NULL) && setenv("SLURM_DDP_NO_WITNESS", "1", 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_NO_WITNESS: %s", strerror(errno));
	/* srun has read its options by getopt(3). */
	if (site_locks("on-failure") || option_given(&state.settings, "on-failure") ||
	    !bad_exit_is_zero(words, got > 0 ? (size_t)got : 0, optind, getenv("SLURM_KILL_BAD_EXIT")))
		return;
	state.settings.kill_on_failure = false;
	if (setenv("SLURM_DDP_ON_FAILURE", "continue", 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_ON_FAILURE: %s", strerror(errno));
}

/* What srun has found out about its options, in slurmstepd. */
static void take_word_of_srun(char *const *environment)
{
	const char *word = environment_get(environment, "SLURM_DDP_ON_FAILURE");

	state.no_witness = environment_get(environment, "SLURM_DDP_NO_WITNESS") != NULL;
	if (word != NULL && strcmp(word, "continue") == 0 && !site_locks("on-failure") &&
	    !option_given(&state.settings, "on-failure"))
		state.settings.kill_on_failure = false;
}

/*
 * srun's status is the highest of its tasks', and that of a task which was ended
 * for another one's failure is 137. Where a failure was said, its code is told
 * instead. The handler runs after all that Slurm and its plugins registered.
 */
static void leave_with_first_code(int status, void *unused)
{
	(void)unused;
	if (status == 0 || state.failed_status == 0)
		return;
	fflush(NULL);
	_exit(WIFSIGNALED(state.failed_status) ? 128 + WTERMSIG(state.failed_status)
	                                       : WEXITSTATUS(state.failed_status));
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
	take_bad_exit();
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
	if (atomic_load(&state.step_count) < COMPONENTS_MAX) {
		int index = atomic_load(&state.step_count);
		state.steps[index].job_id = job_id;
		state.steps[index].step_id = step_id;
		atomic_store(&state.step_count, index + 1);
	}
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
	if (environment != NULL) {
		state.node.relay = relay_parse(environment_get(environment, "SLURM_DDP_RELAY"));
		take_word_of_srun(environment);
	}
	state.node.say = say;
	state.node.launcher = state.settings.launcher;
	state.node.kill_on_failure = state.settings.kill_on_failure;
	if (!get_fact(spank, S_JOB_STEPID, "the step's id", &step_id, &state.fault) ||
	    !get_fact(spank, S_JOB_LOCAL_TASK_COUNT, "the node's tasks", &local_tasks, &state.fault) ||
	    !get_fact(spank, S_JOB_UID, "the job's user", &owner, &state.fault)) {
		state.normal_step = true;
		return 0;
	}
	state.normal_step = step_id <= SLURM_MAX_NORMAL_STEP_ID;
	if (state.normal_step && !supervise_start(&state.node.supervise, local_tasks, owner, &fault))
		slurm_error("ddp: %s", fault.text);
	return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char *argv[])
{
	int local_id;
	pid_t pid;

	(void)ac;
	(void)argv;
	if (state.node.supervise.pids == NULL || spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS)
		return 0;
	if (local_id >= 0)
		supervise_forked(&state.node.supervise, (uint32_t)local_id, pid);
	return 0;
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
	struct supervise_shared *shared = state.node.supervise.shared;
	const char *address = environment_get(environment, "SLURM_LAUNCH_NODE_IPADDR");

	if (shared != NULL && address != NULL && strlen(address) < sizeof(shared->srun_address))
		memcpy(shared->srun_address, address, strlen(address));
}

static void note_rank(const struct identity *identity)
{
	struct supervise_shared *shared = state.node.supervise.shared;

	if (shared == NULL || identity->local_rank >= state.node.supervise.local_tasks)
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
		.progress_fd = settings->launcher ? -1 : state.node.supervise.progress_fd,
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

/* The last thing before the program: what it tells of is to be there already. */
static void make_witness(void)
{
	struct supervise_shared *shared = state.node.supervise.shared;
	static char text[RELAY_TEXT_MAX + 1];

	if (shared == NULL || state.no_witness)
		return;
	const struct witness_words words = { .relay = state.node.relay, .address = shared->srun_address,
		                             .text = text, .kill_tasks = state.settings.kill_on_failure };

	report_slurmstepd(shared->node, state.node.supervise.local_tasks, shared->world_size, text,
	                  sizeof(text));
	witness_make(&shared->witness, &words);
}

/*
 * Leaves by itself after an error: in a plugstack.conf that calls the plugin
 * optional, Slurm would run the program without ranks.
 */
int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	struct relay_news news;
	struct fault fault;

	(void)ac;
	(void)argv;
	if (!state.requested ||
	    (state.daemon ? prepare_daemon(spank, &fault) : !state.normal_step))
		return 0;
	if (!state.daemon && prepare_task(spank, &fault)) {
		make_witness();
		return 0;
	}
	news = node_fault(fault.text);
	if (supervise_tell_once(&state.node.supervise) && !node_tell(&state.node, &news))
		slurm_error("ddp: %s", fault.text);
	_exit(1);
}

/* ---- slurmstepd, when a task ends ----------------------------------------------------- */

/* srun does not answer: this node asks for the step's end itself. */
static void end_step_alone(spank_t spank, enum end_delay delay)
{
	uint32_t node, nodes, tasks;
	char **environment = NULL;
	struct kill_alone request = { .witness = &state.node.supervise.shared->witness,
		                      .with_tasks = delay == DELAY_GRACE };

	if (spank_get_item(spank, S_JOB_ID, &request.job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &request.step_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NODEID, &node) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS)
		return;
	request.delay_ms = delay == DELAY_GRACE ? (long)grace_ms() : ALONE_MS;
	request.delay_ms += nodes * ALONE_NODE_MS <= ALONE_SPREAD_MS
		? node * ALONE_NODE_MS : (long)node * ALONE_SPREAD_MS / nodes;
	if (step_spans_components(environment, tasks))
		request.het_nodes = environment_get(environment, "SLURM_STEP_NODELIST");
	kill_start_alone(&request);
}

int slurm_spank_task_exit(spank_t spank, int ac, char *argv[])
{
	struct node_task task;
	enum end_delay delay;
	int local_id = -1;

	(void)ac;
	(void)argv;
	if (state.node.supervise.shared == NULL ||
	    spank_get_item(spank, S_TASK_ID, &local_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &task.global_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &task.wait_status) != ESPANK_SUCCESS ||
	    local_id < 0 || (uint32_t)local_id >= state.node.supervise.local_tasks)
		return 0;
	task.local_id = (uint32_t)local_id;
	delay = node_take_end(&state.node, &task);
	if (delay != DELAY_NEVER)
		end_step_alone(spank, delay);
	if (supervise_left(&state.node.supervise) == 0) {
		kill_finish_alone();
		witness_end(&state.node.supervise.shared->witness);
	}
	return 0;
}

/* In srun, what is held is said. */
int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
	(void)spank;
	(void)ac;
	(void)argv;
	table_end();
	if (spank_context() == S_CTX_LOCAL)
		state.failed_status = relay_close();
	supervise_end(&state.node.supervise);
	return 0;
}
