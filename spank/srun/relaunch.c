/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/relaunch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/base/end_signal.h"
#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/slurmctld/query.h"
#include "spank/srun/dealer.h"
#include "spank/srun/roster.h"
#include "spank/wire/relay.h"

#define LEFT "SLURM_DDP_RELAUNCH"

enum { ADDED = 3, TEXT_MAX = 64, ENVIRONMENT_BYTES = 65536 };

static struct {
	int input;    /* srun closes its input at the end. -1: it had none, or a pipe, which srun may have read */
	bool no_pipe;
	off_t offset; /* where a file was to be read; below 0: it is no file */
	bool again;  /* this srun is not the first one: */
	char *nodes; /* of the job; NULL: srun makes one for the step */
	uint32_t spares, jobs;
	bool knows_files;
	struct rlimit files; /* how many srun was to open */
} relaunched = { .input = -1, .offset = -1 };

void relaunch_begin(void)
{
	const char *left = getenv(LEFT);
	struct stat input;
	char *end;

	relaunched.knows_files = getrlimit(RLIMIT_NOFILE, &relaunched.files) == 0;
	relaunched.no_pipe = fstat(STDIN_FILENO, &input) != 0 || S_ISCHR(input.st_mode) || S_ISREG(input.st_mode);
	if (relaunched.no_pipe)
		relaunched.input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	relaunched.offset = lseek(STDIN_FILENO, 0, SEEK_CUR);
	if (left != NULL) {
		relaunched.again = true;
		relaunched.spares = (uint32_t)strtoul(left, &end, 10);
		relaunched.jobs = (uint32_t)strtoul(end, &end, 10);
		if (end[0] == ' ' && end[1] != '\0')
			relaunched.nodes = strdup(end + 1);
	}
	unsetenv(LEFT);
}

void relaunch_take_rest(uint32_t *spares, uint32_t *jobs)
{
	if (!relaunched.again)
		return;
	*spares = relaunched.spares;
	*jobs = relaunched.jobs;
}

/* Puts srun's words before the program's. The last one of two options of a kind counts. */
static char **words_of(const struct srun_words *given, char *added[ADDED])
{
	const char *word = given->words, *end = given->words + given->bytes;
	size_t count = 0, at = 0;
	char **words;

	for (const char *next = word; next < end; next += strlen(next) + 1)
		count++;
	words = calloc(count + ADDED + 1, sizeof(*words));
	for (size_t i = 0; words != NULL && i <= count && word <= end; i++) {
		/* "--" ends srun's options. */
		bool own_end = i == (size_t)given->own ||
		               (i + 1 == (size_t)given->own && word < end && strcmp(word, "--") == 0);
		for (int j = 0; own_end && added[0] != NULL && j < ADDED; j++)
			words[at++] = added[j];
		if (own_end)
			added[0] = NULL;
		if (i == count)
			break;
		words[at++] = (char *)word;
		word += strlen(word) + 1;
	}
	return words;
}

/* As srun has got it: SLURM has added what this step has. */
static char *read_environment(size_t *bytes)
{
	int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
	char *text = NULL, *larger;
	ssize_t got = fd >= 0 ? 1 : -1;

	for (*bytes = 0; got > 0; *bytes += got > 0 ? (size_t)got : 0) {
		larger = realloc(text, *bytes + ENVIRONMENT_BYTES + 1);
		if (larger == NULL)
			break;
		text = larger;
		got = read(fd, text + *bytes, ENVIRONMENT_BYTES);
	}
	if (fd >= 0)
		close(fd);
	if (got == 0)
		return text;
	free(text);
	return NULL;
}

static char **environment_with(char *added)
{
	size_t bytes, count = 0;
	char *text = read_environment(&bytes), **variables;

	for (size_t i = 0; text != NULL && i < bytes; i += strnlen(text + i, bytes - i) + 1)
		count++;
	variables = text != NULL ? calloc(count + 2, sizeof(*variables)) : NULL;
	if (variables == NULL)
		return NULL;
	text[bytes] = '\0';
	count = 0;
	for (size_t i = 0; i < bytes; i += strlen(text + i) + 1)
		if (strncmp(text + i, LEFT "=", sizeof(LEFT)) != 0)
			variables[count++] = text + i;
	variables[count] = added;
	return variables;
}

/* srun's own sockets would keep their ports. */
static void close_sockets(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	struct stat status;

	while (folder != NULL && (entry = readdir(folder)) != NULL) {
		int fd = atoi(entry->d_name);
		if (fd > STDERR_FILENO && fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode))
			(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	}
	if (folder != NULL)
		closedir(folder);
}

/* Does not return if srun was started again. */
static void start_again(const struct relaunch_step *next, const char *place, const struct srun_words *given)
{
	size_t bytes = strlen(place) + TEXT_MAX;
	char nodes[TEXT_MAX], tasks[TEXT_MAX], *list = malloc(bytes), *left = malloc(bytes);
	char *added[ADDED] = { nodes, tasks, list }, **words, **environment;
	char program[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);

	if (length <= 0 || list == NULL || left == NULL)
		return;
	program[length] = '\0';
	snprintf(nodes, sizeof(nodes), "--nodes=%u", next->nodes);
	snprintf(tasks, sizeof(tasks), "--ntasks=%u", next->tasks);
	snprintf(list, bytes, "--%s=%s", next->own_job != 0 ? "exclude" : "nodelist", place);
	snprintf(left, bytes, LEFT "=%u %u %s", next->spares, next->jobs, next->own_job != 0 ? "" : place);
	words = words_of(given, added);
	environment = environment_with(left);
	if (words == NULL || environment == NULL)
		return;
	close_sockets();
	if (relaunched.input >= 0)
		(void)dup2(relaunched.input, STDIN_FILENO);
	if (relaunched.input >= 0 && relaunched.offset >= 0)
		(void)lseek(STDIN_FILENO, relaunched.offset, SEEK_SET);
	end_signal_default();
	/* srun has raised its own, and hands tasks the one that it finds. */
	if (relaunched.knows_files)
		(void)setrlimit(RLIMIT_NOFILE, &relaunched.files);
	execve(program, words, environment);
}

/* The job's nodes that stay, for free(3); NULL: there is no memory, or not all names have found room. */
static char *stay_of(const char *list, const char *without, const struct relaunch_step *next)
{
	char *stay = shrink_list(list, without);
	struct error ignored;
	uint32_t count;

	if (stay != NULL && nodelist_count(stay, &count, &ignored) && count == next->nodes)
		return stay;
	free(stay);
	return NULL;
}

/* What another job is to leave out, for free(3); NULL: the user names nodes, or has cancelled the job. */
static char *exclude_of(const struct relaunch_step *step, const char *without, const struct srun_words *given)
{
	const char *own = srun_excluded(given);
	uint32_t state = query_job_state(step->own_job);
	char *both = NULL;

	if (srun_nodes(given) != NULL || (own != NULL && strchr(own, '/') != NULL) || state == JOB_CANCELLED ||
	    state == JOB_END ||
	    asprintf(&both, "%s%s%s", own != NULL ? own : "", own != NULL ? "," : "", without) < 0)
		return NULL;
	return both;
}

/* Where srun begins again, and with what; NULL: it does not. */
static char *place_of(const struct relaunch_step *step, const char *list, const char *without, uint32_t count,
                      const struct srun_words *given, struct relaunch_step *next)
{
	bool fewer;

	*next = *step;
	next->nodes -= count;
	next->spares -= count < step->spares ? count : step->spares;
	next->tasks = step->tasks / step->nodes * next->nodes;
	fewer = count <= step->spares || (step->min_nodes > 0 && next->nodes >= step->min_nodes);
	if (!step->may_go_on || !relaunched.no_pipe || end_signal_came() || count == step->nodes)
		return NULL;
	if (step->own_job == 0)
		return fewer ? stay_of(list, without, next) : NULL;
	if (step->jobs == 0)
		return NULL;
	if (!fewer)
		*next = *step;
	next->jobs = step->jobs - 1;
	return exclude_of(step, without, given);
}

/* If no task has begun at all, srun itself may have failed, or each node may have. */
static void describe(const struct relaunch_step *step, uint32_t count, const char *names, struct sink *sink)
{
	sink_add(sink, "SLURM could not start the step: no task has begun");
	if (count < step->nodes && names[0] == '\0')
		sink_add(sink, " on %u of its %u nodes", count, step->nodes);
	else if (count < step->nodes)
		sink_add(sink, " on node%s %s", count > 1 ? "s" : "", names);
	sink_add(sink, " (SLURM's reason is above)");
}

static void add_next(const struct relaunch_step *step, const struct relaunch_step *next, struct sink *sink)
{
	if (step->own_job != 0)
		sink_add(sink, "; srun asks for another job, of %u nodes without %s", next->nodes,
		         step->nodes == next->nodes + 1 ? "it" : "them");
	else
		sink_add(sink, "; another step begins on %u of %u nodes", next->nodes, step->nodes);
	sink_add(sink, " (%u spare%s left)", next->spares, next->spares == 1 ? "" : "s");
}

bool relaunch_unstarted(const struct relaunch_step *step, const struct presence *presence,
                        const struct srun_words *given)
{
	/* srun has set the variable to the job's nodes. */
	const char *list = relaunched.nodes != NULL ? relaunched.nodes : getenv("SLURM_NODELIST");
	char names[RELAY_TEXT_MAX + 1], text[3 * RELAY_TEXT_MAX], *place;
	struct sink named = sink_on(names, sizeof(names)), sink = sink_on(text, sizeof(text));
	uint32_t count = list != NULL ? presence_unstarted(presence, step->nodes, list, &named) : 0;
	struct relaunch_step next;
	bool all_named;

	if (count == 0)
		return false;
	/* "n0,n1 and 3 more" */
	all_named = names[0] != '\0' && strchr(names, ' ') == NULL;
	place = all_named ? place_of(step, list, names, count, given, &next) : NULL;
	describe(step, count, names, &sink);
	if (place != NULL)
		add_next(step, &next, &sink);
	else if (all_named && count < step->nodes)
		sink_add(&sink, "; srun --exclude=%s leaves the node%s out", names, count > 1 ? "s" : "");
	slurm_error("ddp: %s", text);
	if (place == NULL)
		return true;
	fflush(NULL);
	start_again(&next, place, given);
	slurm_error("ddp: srun could not start itself again: %s", strerror(errno));
	free(place);
	return true;
}

/* ---- before the step begins ---- */

/* Why the programs of the step cannot be started again; NULL: they can. */
static const char *why_no_restart(const struct request *request, const struct restart_policy_facts *facts)
{
	const char *mpi = srun_mpi(facts->given, facts->mpi[0] != '\0' ? facts->mpi : NULL);
	const slurm_conf_t *conf = query_configuration();

	if (facts->later_component || srun_starts_components(facts->given))
		return "the step has several components: SLURM numbers the ranks of each by itself";
	if (conf != NULL && conf->slurmd_params != NULL && strstr(conf->slurmd_params, "contain_spank") != NULL)
		return "SlurmdParameters=contain_spank of slurm.conf keeps the nodes from looking after their tasks";
	if (mpi != NULL && strcmp(mpi, "none") != 0)
		return "--mpi (or SLURM_MPI_TYPE) is not none: an MPI library's ranks register with SLURM once, and cannot "
		       "come again";
	if (srun_runs_container(facts->given, getenv("SLURM_CONTAINER")))
		return "--container starts each task's container once";
	if (settings_silence_ms(&request->settings) == 0)
		return "silence=0 leaves srun without a connection to its nodes";
	return NULL;
}

/* SLURM chooses a task's program by the number that the task has at the start. */
static bool fit_spares(struct settings *settings, const struct srun_words *given, struct error *error)
{
	if ((settings->spares == 0 && settings->min_nodes == 0) || !srun_starts_several(given))
		return true;
	if (option_given(settings, "spare") || option_given(settings, "min-nodes"))
		return error_set(error, "spare= and min-nodes= do not go together with --multi-prog: a rank that moves to "
		                 "another node would get the program of another rank. Use restart= without them");
	settings->spares = settings->min_nodes = 0;
	return true;
}

/* Says that a key which is the site's default does not count for this step. */
static void say_ignored(const struct settings *settings, const char *key, const char *why)
{
	if (settings->verbose || settings->check != CHECK_NO)
		slurm_spank_log("ddp: %s= of the site is ignored: %s", key, why);
}

bool restart_policy_fit(struct settings *settings, uint32_t nodes, uint32_t tasks, struct error *error)
{
	if (roster_fits(nodes, tasks, settings->spares, settings->min_nodes, error))
		return true;
	if (settings->spares > 0 && !option_given(settings, "spare")) {
		say_ignored(settings, "spare", error->text);
		settings->spares = 0;
		return restart_policy_fit(settings, nodes, tasks, error);
	}
	if (settings->min_nodes > 0 && !option_given(settings, "min-nodes")) {
		say_ignored(settings, "min-nodes", error->text);
		settings->min_nodes = 0;
		return restart_policy_fit(settings, nodes, tasks, error);
	}
	return false;
}

bool restart_policy_decide(struct request *request, const struct restart_policy_facts *facts, struct error *error)
{
	struct settings *settings = &request->settings;
	const char *why;

	if (!dealer_is_open())
		unsetenv("SLURM_DDP_RESTART");
	if (!settings->kill_on_failure || settings->check != CHECK_NO || facts->starts_daemon)
		settings->restarts = 0;
	why = settings->restarts > 0 ? why_no_restart(request, facts) : NULL;
	/* The second case: the first component is already to be restarted. */
	if (why != NULL && (option_given(settings, "restart") || dealer_is_open()))
		return error_set(error, "the step cannot be restarted, as restart=%u asks for: %s. Leave restart= out%s",
		                 settings->restarts, why, option_given(settings, "restart") ? "" : ", by --ddp=restart=0");
	if (why != NULL) {
		say_ignored(settings, "restart", why);
		settings_drop_restart(settings);
	}
	if (!fit_spares(settings, facts->given, error))
		return false;
	if (settings->restarts > 0) {
		const struct plan_policy policy = { .restarts = settings->restarts, .spares = settings->spares,
			                            .min_nodes = settings->min_nodes,
			                            .silence_ms = settings_silence_ms(settings) };
		dealer_open(&policy);
		if (setenv("SLURM_DDP_RESTART", "yes", 1) != 0)
			slurm_debug("ddp: cannot set SLURM_DDP_RESTART: %s", strerror(errno));
	}
	return true;
}

bool restart_policy_without_port(struct settings *settings, struct error *error)
{
	static const char why[] = "the nodes need to reach srun, and srun has too few ports (SrunPortRange) or open files "
	                          "(ulimit -n)";

	if (option_given(settings, "restart"))
		return error_set(error, "the step cannot be restarted, as restart=%u asks for: %s", settings->restarts, why);
	say_ignored(settings, "restart", why);
	settings_drop_restart(settings);
	dealer_close();
	unsetenv("SLURM_DDP_RESTART");
	return true;
}
