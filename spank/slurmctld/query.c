/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/query.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/identity/nodelist.h"
#include "spank/options/site.h"
#include "spank/wire/timeline.h"

bool query_fact(spank_t spank, spank_item_t item, const char *name, uint32_t *fact, struct error *error)
{
	spank_err_t reason = spank_get_item(spank, item, fact);

	return reason == ESPANK_SUCCESS ||
	       error_set(error, "Slurm does not give %s: %s", name, spank_strerror(reason));
}

const slurm_conf_t *query_configuration(void)
{
	return dlsym(RTLD_DEFAULT, "slurm_conf");
}

/* Whether the address is in the program itself, and not in a library. */
static bool is_in_program(const void *address)
{
	Dl_info found, program;

	return dladdr(address, &found) != 0 && dladdr((const void *)getauxval(AT_ENTRY), &program) != 0 &&
	       found.dli_fbase == program.dli_fbase;
}

/* No SPANK function does so. srun's options are a structure of its own, `opt`, which
   other versions of Slurm lay out otherwise, but each has this function, with which srun
   itself and plugins of cli_filter fill it. */
bool set_srun_option(int letter, const char *value)
{
	int (*process)(void *options, int letter, const char *value, bool by_variable, bool early);
	void *options = dlsym(RTLD_DEFAULT, "opt");

	*(void **)&process = dlsym(RTLD_DEFAULT, "slurm_process_option");
	return options != NULL && is_in_program(options) && process != NULL &&
	       process(options, letter, value, false, false) == 0;
}

/* Where SLURM's configuration is not found, it is SLURM's first way. */
static bool tracks_by(const char *way)
{
	const slurm_conf_t *conf = query_configuration();

	return strcmp(conf != NULL && conf->proctrack_type != NULL ? conf->proctrack_type : "proctrack/pgid", way) == 0;
}

bool query_tracks_groups(void)
{
	return tracks_by("proctrack/pgid");
}

bool query_tracks_cgroups(void)
{
	return tracks_by("proctrack/cgroup");
}

bool query_signals_children_only(void)
{
	char *(*find)(const char *name);
	char *path;

	if (!query_tracks_cgroups())
		return false;
	*(void **)&find = dlsym(RTLD_DEFAULT, "slurm_get_extra_conf_path");
	/* Only SLURM could free the text. */
	path = find != NULL ? find("cgroup.conf") : NULL;
	return path == NULL || !site_file_says_yes(path, query_configuration()->slurm_user_id, "SignalChildrenProcesses");
}

uint32_t query_kill_wait_ms(void)
{
	const slurm_conf_t *conf = query_configuration();

	return (conf != NULL && conf->kill_wait > 0 ? conf->kill_wait : KILL_WAIT_SECONDS) * 1000u;
}

uint32_t query_grace_ms(const struct settings *settings)
{
	return settings->grace_seconds == GRACE_OF_SLURM ? query_kill_wait_ms()
	                                                 : settings->grace_seconds * 1000;
}

/* The plugin links no library, so it looks the function up in the process that has loaded it. */
job_info_msg_t *query_jobs(uint32_t job_id)
{
	__typeof__(slurm_load_job) *load;
	job_info_msg_t *jobs = NULL;

	*(void **)&load = dlsym(RTLD_DEFAULT, "slurm_load_job");
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(26, 5, 0)
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
	id.job_id = job_id;
#else
	uint32_t id = job_id;
#endif
	return load != NULL && load(&jobs, id, SHOW_ALL) == 0 ? jobs : NULL;
}

char *query_step_nodes(uint32_t job_id, uint32_t step_id)
{
	slurm_step_layout_t *(*get)(slurm_step_id_t *);
	void (*release)(slurm_step_layout_t *);
	slurm_step_layout_t *layout;
	char *nodes;
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	slurm_step_id_t id = SLURM_STEP_ID_INITIALIZER;
#else
	slurm_step_id_t id = { .step_het_comp = NO_VAL };
#endif

	id.job_id = job_id;
	id.step_id = step_id;
	*(void **)&get = dlsym(RTLD_DEFAULT, "slurm_job_step_layout_get");
	*(void **)&release = dlsym(RTLD_DEFAULT, "slurm_job_step_layout_free");
	layout = get != NULL ? get(&id) : NULL;
	nodes = layout != NULL && layout->node_list != NULL ? strdup(layout->node_list) : NULL;
	if (layout != NULL && release != NULL)
		release(layout);
	return nodes;
}

void query_free_jobs(job_info_msg_t *jobs)
{
	__typeof__(slurm_free_job_info_msg) *release;

	*(void **)&release = dlsym(RTLD_DEFAULT, "slurm_free_job_info_msg");
	if (jobs != NULL && release != NULL)
		release(jobs);
}

const job_info_t *query_job_in(const job_info_msg_t *jobs, uint32_t job_id)
{
	for (uint32_t i = 0; jobs != NULL && i < jobs->record_count; i++)
		if (jobs->job_array[i].job_id == job_id)
			return &jobs->job_array[i];
	return NULL;
}

void query_job_name(const job_info_t *job, char name[QUERY_JOB_NAME_MAX])
{
	if (job->het_job_id != 0 && job->het_job_id != NO_VAL)
		snprintf(name, QUERY_JOB_NAME_MAX, "%u", job->het_job_id);
	else if (job->array_job_id != 0 && job->array_task_id != NO_VAL)
		snprintf(name, QUERY_JOB_NAME_MAX, "%u_%u", job->array_job_id, job->array_task_id);
	else
		snprintf(name, QUERY_JOB_NAME_MAX, "%u", job->job_id);
}

int query_answer_code(int code, job_array_resp_msg_t *answer)
{
	__typeof__(slurm_free_job_array_resp) *release;

	if (code == -1)
		code = errno != 0 ? errno : EIO;
	if (answer == NULL)
		return code;
	for (uint32_t i = 0; code == 0 && i < answer->job_array_count; i++)
		code = (int)answer->error_code[i];
	*(void **)&release = dlsym(RTLD_DEFAULT, "slurm_free_job_array_resp");
	if (release != NULL)
		release(answer);
	return code;
}

int change_job(const char *job_name, char *nodes, char *comment, bool release)
{
	__typeof__(slurm_init_job_desc_msg) *begin;
	__typeof__(slurm_update_job2) *update;
	job_array_resp_msg_t *answer = NULL;
	char name[QUERY_JOB_NAME_MAX];
	job_desc_msg_t change;

	*(void **)&begin = dlsym(RTLD_DEFAULT, "slurm_init_job_desc_msg");
	*(void **)&update = dlsym(RTLD_DEFAULT, "slurm_update_job2");
	if (begin == NULL || update == NULL)
		return ENOSYS;
	snprintf(name, sizeof(name), "%s", job_name);
	begin(&change);
	change.job_id_str = name;
	if (nodes != NULL)
		change.req_nodes = nodes;
	if (comment != NULL)
		change.comment = comment;
	if (release)
		change.priority = INFINITE;
	errno = 0;
	return query_answer_code(update(&change, &answer), answer);
}

uint32_t query_leader(uint32_t job_id)
{
	job_info_msg_t *jobs = query_jobs(job_id);
	const job_info_t *job = query_job_in(jobs, job_id);
	uint32_t leader = job != NULL && job->het_job_id != 0 && job->het_job_id != NO_VAL ? job->het_job_id : job_id;

	query_free_jobs(jobs);
	return leader;
}

bool query_is_ending(uint32_t job_id)
{
	job_info_msg_t *jobs = query_jobs(job_id);
	const job_info_t *job = query_job_in(jobs, job_id);
	time_t soon = time(NULL) + SIGNAL_SECONDS;
	bool ending = job != NULL && (job->preempt_time != 0 || (job->end_time != 0 && job->end_time < soon));

	query_free_jobs(jobs);
	return ending;
}

uint32_t query_job_state(uint32_t job_id)
{
	job_info_msg_t *jobs = query_jobs(job_id);
	const job_info_t *job = query_job_in(jobs, job_id);
	uint32_t state = job != NULL ? job->job_state & JOB_STATE_BASE : JOB_END;

	query_free_jobs(jobs);
	return state;
}

static void free_nodes(node_info_msg_t *nodes)
{
	__typeof__(slurm_free_node_info_msg) *release;

	*(void **)&release = dlsym(RTLD_DEFAULT, "slurm_free_node_info_msg");
	if (nodes != NULL && release != NULL)
		release(nodes);
}

static bool is_down(const char *node)
{
	__typeof__(slurm_load_node_single) *load;
	node_info_msg_t *nodes = NULL;
	bool failed = false;

	*(void **)&load = dlsym(RTLD_DEFAULT, "slurm_load_node_single");
	if (load == NULL || load(&nodes, (char *)node, SHOW_ALL) != 0)
		return false;
	for (uint32_t i = 0; i < nodes->record_count; i++)
		failed |= (nodes->node_array[i].node_state & NODE_STATE_BASE) == NODE_STATE_DOWN;
	free_nodes(nodes);
	return failed;
}

/* Slurm tells of all components of a heterogeneous job. */
static bool has_left(uint32_t job_id, const char *node)
{
	job_info_msg_t *jobs = query_jobs(job_id);
	bool lists = false, listed = false;

	for (uint32_t i = 0; jobs != NULL && i < jobs->record_count; i++) {
		struct error ignored;
		uint32_t count;
		const char *nodes = jobs->job_array[i].nodes;
		if (nodes == NULL || !nodelist_count(nodes, &count, &ignored))
			continue;
		lists = true;
		listed |= nodelist_has(nodes, node);
	}
	query_free_jobs(jobs);
	return lists && !listed;
}

bool query_node_failed(uint32_t job_id, const char *node)
{
	return has_left(job_id, node) || is_down(node);
}

bool query_lost_node(uint32_t job_id, char node[HOST_NAME_MAX_BYTES])
{
	job_info_msg_t *jobs = query_jobs(job_id);
	const job_info_t *job = query_job_in(jobs, job_id);
	bool lost = job != NULL && (job->job_state & JOB_STATE_BASE) == JOB_NODE_FAIL;

	node[0] = '\0';
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
	if (lost && job->failed_node != NULL && strlen(job->failed_node) < HOST_NAME_MAX_BYTES)
		strcpy(node, job->failed_node);
#endif
	query_free_jobs(jobs);
	return lost;
}

uint32_t query_affinity(void)
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

void print_to_user(const char *text)
{
	slurm_error("ddp: %s", text);
}

/* ---- taking nodes out of a job ---- */

enum {
	AGAIN_SECONDS = 1,
	MOST_SECONDS = 10,
};

/* The nodes that stay, as a list with commas. */
struct rest {
	const char *without; /* names with commas */
	char *text;          /* NULL: how long is it? */
	size_t used;
	bool found;
};

static bool add_rest(void *user, const char *host)
{
	struct rest *rest = user;
	size_t length = strlen(host);

	if (names_have(rest->without, host)) {
		rest->found = true;
		return true;
	}
	if (rest->text != NULL) {
		memcpy(rest->text + rest->used, host, length);
		rest->text[rest->used + length] = ',';
	}
	rest->used += length + 1;
	return true;
}

/* Returns a text for free(3); NULL: no node would stay, or there is no memory. */
static char *list_of(const char *nodes, struct rest *rest)
{
	struct error ignored;

	rest->text = rest->used > 0 ? malloc(rest->used) : NULL;
	rest->used = 0;
	if (rest->text != NULL && !nodelist_walk(nodes, add_rest, rest, &ignored)) {
		free(rest->text);
		rest->text = NULL;
	}
	if (rest->text != NULL)
		rest->text[rest->used - 1] = '\0';
	return rest->text;
}

char *shrink_list(const char *nodes, const char *without)
{
	struct rest rest = { .without = without };
	struct error ignored;

	return nodelist_walk(nodes, add_rest, &rest, &ignored) ? list_of(nodes, &rest) : NULL;
}

static int shrink_component(uint32_t job_id, const char *job_nodes, const char *nodes)
{
	struct rest rest = { .without = nodes };
	struct error ignored;
	char *stay, name[QUERY_JOB_NAME_MAX];
	int code;

	if (job_nodes == NULL || !nodelist_walk(job_nodes, add_rest, &rest, &ignored))
		return ESLURM_INVALID_NODE_NAME;
	/* SLURM takes a node that it calls down out of the job by itself. */
	if (!rest.found)
		return 0;
	stay = list_of(job_nodes, &rest);
	/* The number is that of one component or one element, whose nodes these are. */
	snprintf(name, sizeof(name), "%u", job_id);
	code = stay != NULL ? change_job(name, stay, NULL, false) : ESLURM_INVALID_NODE_NAME;
	free(stay);
	return code;
}

/* Gives the code with which slurmctld answers; -1: it does not tell of the job. */
static int shrink_all(uint32_t job_id, const char *nodes)
{
	job_info_msg_t *jobs = query_jobs(job_id);
	int code = jobs != NULL && jobs->record_count > 0 ? 0 : -1;

	/* SLURM tells of all components of a heterogeneous job. */
	for (uint32_t i = 0; jobs != NULL && code == 0 && i < jobs->record_count; i++)
		code = shrink_component(jobs->job_array[i].job_id, jobs->job_array[i].nodes, nodes);
	query_free_jobs(jobs);
	return code;
}

/* slurmctld waits for slurmdbd. Releases from 24.11 on do not. */
static bool awaits_slurmdbd(int code)
{
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 11, 0)
	return code == ESLURM_JOB_SETTING_DB_INX;
#else
	(void)code;
	return false;
#endif
}

static bool has_slurmdbd(void)
{
	const slurm_conf_t *conf = query_configuration();

	return conf != NULL && conf->accounting_storage_type != NULL &&
	       strstr(conf->accounting_storage_type, "slurmdbd") != NULL;
}

/* Whether slurmctld did not answer, or waits for slurmdbd. */
static bool may_change(int code)
{
	return code < ESLURM_INVALID_PARTITION_NAME || (awaits_slurmdbd(code) && has_slurmdbd());
}

bool shrink_job(uint32_t job_id, const char *nodes, struct error *error)
{
	const time_t begin = time(NULL);
	int code;

	while ((code = shrink_all(job_id, nodes)) != 0 && may_change(code) && time(NULL) - begin < MOST_SECONDS)
		sleep(AGAIN_SECONDS);
	if (code == 0)
		return true;
	if (code < 0)
		return error_set(error, "slurmctld does not tell the job's nodes");
	if (awaits_slurmdbd(code) && !has_slurmdbd())
		return error_set(error, "without slurmdbd, SLURM changes the nodes of a job once only");
	return error_set(error, "%s", spank_strerror((spank_err_t)code));
}

/* ---- the end of the step ---- */

enum { POLL_MS = 20 };

static struct {
	struct kill_alone request;
	struct worker worker;
	bool running, asked;
	atomic_bool tasks_ended;
} alone;

/* Slurm's own request to signal a step on all its nodes, as its PMIx plugin
   makes it: found in the process that loaded us, since we link no library. */
static int signal_job(uint32_t job_id, uint32_t step_id, uint16_t number)
{
	__typeof__(slurm_kill_job_step) *send_signal;

	*(void **)&send_signal = dlsym(RTLD_DEFAULT, "slurm_kill_job_step");
	if (send_signal == NULL) {
		errno = ENOSYS;
		return -1;
	}
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	slurm_step_id_t step = SLURM_STEP_ID_INITIALIZER;
	step.job_id = job_id;
	step.step_id = step_id;
	return send_signal(&step, number, 0);
#elif SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
	return send_signal(job_id, step_id, number, 0);
#else
	return send_signal(job_id, step_id, number);
#endif
}

void kill_step(uint32_t job_id, uint32_t step_id)
{
	if (signal_job(job_id, step_id, SIGKILL) != 0 && errno != ESLURM_ALREADY_DONE &&
	    errno != ESLURM_INVALID_JOB_ID)
		slurm_error("ddp: cannot end step %u.%u: %s; scancel %u.%u does", job_id, step_id,
		            spank_strerror((spank_err_t)errno), job_id, step_id);
}

/* If a witness was killed, the node finds out, in the thread that watches the tasks, whether it was
   Slurm. That thread may wait for srun meanwhile; in a contained callback there is none. */
enum { DOUBTED_MS = LOSS_MS + SETTLE_MS + CONNECT_MS + REPLY_MS };

/* False if there is nothing to ask for any more. */
static bool wait_for_turn(void)
{
	const struct kill_alone *request = &alone.request;
	uint64_t turn_ns = ddp_now_ns() + (uint64_t)request->delay_ms * 1000000, killed_ns = 0;

	for (;;) {
		bool killed = witness_was_killed(request->witness) && !atomic_load(request->witness_lost);
		uint64_t now_ns = ddp_now_ns();
		if (!killed || killed_ns == 0)
			killed_ns = killed ? now_ns : 0;
		if ((killed || request->with_tasks) && atomic_load(&alone.tasks_ended))
			return false;
		if (killed && (contained_here() || now_ns - killed_ns >= DOUBTED_MS * 1000000ull))
			return false;
		if (!killed && now_ns >= turn_ns)
			return true;
		pause_ms(POLL_MS);
	}
}

/* In a thread: the controller may take its time, and tasks are to be reaped. */
static void kill_in_turn(void)
{
	uint32_t job_id = alone.request.job_id;

	if (wait_for_turn())
		kill_step(alone.request.heterogeneous ? query_leader(job_id) : job_id, alone.request.step_id);
}

void kill_start_alone(const struct kill_alone *request)
{
	/* A contained thread would end with its callback, which keeps Slurm from reaping tasks: it asks
	   itself, where that is due soon. */
	if (alone.asked || (contained_here() && request->with_tasks))
		return;
	alone.request = *request;
	if (contained_here())
		kill_in_turn();
	else
		alone.running = worker_start(&alone.worker, kill_in_turn);
	alone.asked = alone.running || contained_here();
}

void kill_finish_alone(void)
{
	long left_ms = alone.request.with_tasks ? 0 : alone.request.delay_ms;

	atomic_store(&alone.tasks_ended, true);
	if (alone.running)
		worker_join(&alone.worker, (int)left_ms + JOIN_MS);
	alone.running = false;
}
