/* SPDX-License-Identifier: Apache-2.0 */
/* spank_ddp.so: the SPANK callbacks. They collect what Slurm knows, ask the
   pure core, and hand its answer to Slurm. In srun, sbatch and salloc all runs
   as the user (srun.c); in slurmstepd, task_init runs as the user, in the task's
   own process (task.c), and the rest as root (stepd.c).

   In slurmstepd no callback before task_init fails: for a batch step Slurm
   would drain the node, and nothing that is said there reaches the user. What
   is wrong is kept and said in task_init. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
/* Only the symbols for which Slurm looks are visible. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(spank_ddp, 1)
#pragma GCC visibility pop

#include "spank/base/child.h"
#include "spank/launch/check.h"
#include "spank/launch/prepare.h"
#include "spank/node/supervise.h"
#include "spank/options/site.h"
#include "spank/plugin.h"
#include "spank/slurmctld/query.h"

static struct request request;
static struct stepd stepd = { .request = &request, .log_control = -1,
	                    .node = { .supervise = { .progress_fd = -1 } } };

static int lines_of_plugstack;

static int take_option(int value, const char *argument, int remote);

static char usage[512];

static struct spank_option ddp_option = {
	.name = "ddp",
	.arginfo = "KEY=VALUE,...",
	.usage = usage,
	.has_arg = 2,
	.cb = take_option,
};

/* ---- no-kill -----------------------------------------------------------------

   SLURM ends a job, and a step, when one of its nodes fails, unless it was submitted with --no-kill. A step with
   restart= goes on without the node. So srun, sbatch and salloc are told --no-kill by their own variables, before they
   read them. */

enum { COMMAND_LINE_MAX = 65536 };

#define OPTION "--ddp"
#define HANDED_ON "_SLURM_SPANK_OPTION_spank_ddp_ddp"

static struct {
	const char *name;
	bool allocator; /* sbatch's or salloc's, and not srun's */
	bool set;       /* here */
} no_kill[] = { { .name = "SLURM_NO_KILL" }, { .name = "SBATCH_NO_KILL", .allocator = true },
	        { .name = "SALLOC_NO_KILL", .allocator = true } };

enum { NO_KILLS = sizeof(no_kill) / sizeof(no_kill[0]) };

/* A value that the user has set stays. */
static void set_for(bool allocator)
{
	for (int i = 0; i < NO_KILLS; i++)
		if (no_kill[i].allocator == allocator && getenv(no_kill[i].name) == NULL)
			no_kill[i].set = setenv(no_kill[i].name, "set", 1) == 0;
}

/* Returns the user's list in the command line; "" for --ddp alone, NULL without it. The program's own words may contain
   --ddp, too, so the first one counts. */
static const char *list_in(const char *words, const char *end)
{
	for (const char *word = words; word < end; word += strlen(word) + 1) {
		size_t length = strlen(OPTION);
		if (strncmp(word, OPTION, length) == 0 && (word[length] == '=' || word[length] == '\0'))
			return word[length] == '=' ? word + length + 1 : word + length;
	}
	return NULL;
}

static const char *list_of_process(void)
{
	static char words[COMMAND_LINE_MAX + 1];
	const size_t bytes = proc_read(words, sizeof(words), "/proc/self/cmdline");

	return list_in(words, words + bytes);
}

static bool asks_for_restarts(const char *list)
{
	struct settings settings = request.site.defaults;
	struct error ignored;

	return user_list_read(&settings, list, request.site.locked, &ignored) && settings.restarts > 0 && !settings.off;
}

/* In slurm_spank_init(), before options are read: looks for --ddp in this process's own command line, and, in srun,
   for what sbatch or salloc has handed on. Sets the variables if that asks for restarts, or the site does. */
static void no_kill_begin(bool allocator)
{
	const char *list = list_of_process();

	if (list == NULL && !allocator)
		list = getenv(HANDED_ON);
	if (list == NULL && !allocator)
		list = getenv("SLURM_SPANK_" HANDED_ON);
	if (list != NULL && asks_for_restarts(list))
		set_for(allocator);
}

/* A list of --ddp was read, as in a line of a script that begins with #SBATCH. */
static void no_kill_read_list(bool allocator)
{
	if (request.wanted && request.settings.restarts > 0 && allocator)
		set_for(allocator);
}

/* Once options are read: takes the variables out again, so that no task and no job inherits them. */
static void no_kill_end(void)
{
	for (int i = 0; i < NO_KILLS; i++) {
		if (no_kill[i].set)
			unsetenv(no_kill[i].name);
		no_kill[i].set = false;
	}
}

/* ---- options ---------------------------------------------------------------- */

static bool check_version(spank_t spank, struct error *error)
{
	char *major = NULL, *minor = NULL;

	if (spank_get_item(spank, S_SLURM_VERSION_MAJOR, &major) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_SLURM_VERSION_MINOR, &minor) != ESPANK_SUCCESS)
		return error_set(error, "Slurm does not say its version");
	if (atoi(major) == SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER) &&
	    atoi(minor) == SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER))
		return true;
	return error_set(error, "spank_ddp.so was built for Slurm %d.%02d, but this is %s.%s: build it anew",
	                 SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
	                 SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER), major, minor);
}

/* slurmd reads the line when it starts, so that an error in it is seen before a job meets it. */
static int look_at_line(spank_t spank, int ac, char *argv[])
{
	struct site site;
	struct error error;

	if (!site_parse(&site, ac, argv, &error) || !check_version(spank, &error))
		slurm_error("ddp: %s", error.text);
	return 0;
}

/* In slurmstepd that is slurmd's log: the line may have changed since slurmd's start. What
   srun and its like are asked for by --ddp tells users. */
static void say_line_error(spank_context_t context)
{
	if (context == S_CTX_REMOTE)
		slurm_error("ddp: %s", request.error.text);
	else
		slurm_debug("ddp: %s", request.error.text);
}

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	spank_context_t context = spank_context();
	spank_err_t error;

	if (context == S_CTX_SLURMD)
		return look_at_line(spank, ac, argv);
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	if (context == S_CTX_REMOTE)
		contained_note_slurmstepd();
	/* Both lines would have one state, and the second one's callbacks find what the first's left. */
	if (++lines_of_plugstack > 1) {
		error_set(&request.error, "plugstack.conf names spank_ddp.so %d times, by itself or by files that "
		          "it includes: the administrator should leave one line", lines_of_plugstack);
		return 0;
	}
	if (!site_parse(&request.site, ac, argv, &request.error) || !check_version(spank, &request.error))
		say_line_error(context);
	request.settings = request.site.defaults;
	stepd.affinity = query_affinity();
	if (context == S_CTX_LOCAL)
		srun_note_job();
	/* This early, so that it runs late. */
	if (context == S_CTX_LOCAL && on_exit(srun_leave_with_first_code, NULL) != 0)
		slurm_debug("ddp: cannot register a handler for srun's exit");
	if (context == S_CTX_LOCAL)
		srun_note_environment();
	if (context != S_CTX_REMOTE)
		no_kill_begin(context == S_CTX_ALLOCATOR);
	option_usage(usage, sizeof(usage));
	error = spank_option_register(spank, &ddp_option);
	if (error != ESPANK_SUCCESS) {
		slurm_error("ddp: cannot register --ddp: %s", spank_strerror(error));
		return context == S_CTX_REMOTE ? 0 : -1;
	}
	return 0;
}

/* May run twice: for what sbatch handed on, then for srun's own. */
static int take_option(int value, const char *argument, int remote)
{
	struct error error = { "" };

	(void)value;
	if (request_take_list(&request, argument, &error)) {
		no_kill_read_list(spank_context() == S_CTX_ALLOCATOR);
		return 0;
	}
	if (remote) {
		request.error = error;
		return 0;
	}
	slurm_error("ddp: --ddp: %s", error.text);
	return -1;
}

/* ---- srun, sbatch, salloc ------------------------------------------------------- */

/* Slurm would go on after the error of a plugin that plugstack.conf calls optional. */
static int refuse(const struct error *error)
{
	slurm_error("ddp: %s", error->text);
	exit(1);
}

/* Slurm tells a plugin only that the program is sbatch or salloc. */
static bool is_sbatch(spank_context_t context)
{
	return context == S_CTX_ALLOCATOR && strcmp(program_invocation_short_name, "salloc") != 0;
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
	spank_context_t context = spank_context();
	struct error error;
	char stale[512];

	(void)spank;
	(void)ac;
	(void)argv;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return 0;
	no_kill_end();
	if (!request_components_agree(&request, is_sbatch(context), &error))
		return refuse(&error);
	launch_list_stale(stale, sizeof(stale));
	launch_leave_step();
	if (context == S_CTX_LOCAL && srun_is_salloc_shell())
		request.wanted = false;
	if (context != S_CTX_LOCAL || !request.wanted || srun_begin(&request, stale, &error))
		return 0;
	return refuse(&error);
}

int slurm_spank_local_user_init(spank_t spank, int ac, char *argv[])
{
	uint32_t job_id, step_id, tasks, nodes;
	char **words = NULL;
	struct error error;
	int count = 0;

	(void)ac;
	(void)argv;
	if (!request.wanted || spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS)
		return 0;
	if (spank_get_item(spank, S_JOB_ARGV, &count, &words) != ESPANK_SUCCESS)
		count = 0;
	if (!srun_take_words(&request, count, words, tasks, &error))
		return refuse(&error);
	if (!srun_looks_ahead(&request, &(struct srun_step){ job_id, step_id, tasks, nodes }, count, words))
		return 0;
	return srun_take_step(&request, job_id, step_id, tasks, nodes, &error) ? 0 : refuse(&error);
}

/* ---- slurmstepd ------------------------------------------------------------------ */

int slurm_spank_user_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	stepd_begin(spank, &stepd);
	return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	stepd_take_fork(spank, &stepd);
	return 0;
}

int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	task_begin(spank, &stepd);
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	stepd_take_end(spank, &stepd);
	return 0;
}

/* ---- all of them ------------------------------------------------------------------ */

int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	table_end();
	if (spank_context() == S_CTX_LOCAL)
		srun_end();
	if (spank_context() == S_CTX_REMOTE)
		stepd_log(spank, &stepd);
	stepd_end(&stepd);
	return 0;
}
