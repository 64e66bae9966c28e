/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/relaunch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/base/sink.h"
#include "spank/failure/relay.h"
#include "spank/identity/nodelist.h"
#include "spank/shrink.h"

#define LEFT "SLURM_DDP_RELAUNCH"

enum { ADDED = 3, TEXT_MAX = 64, ENVIRONMENT_BYTES = 65536 };

static struct {
	int input;    /* srun closes its input at the end. -1: it had none, or a pipe, of which srun may have read for the tasks */
	bool no_pipe;
	off_t offset; /* where a file was to be read; below 0: it is no file */
	char *nodes; /* NULL: this srun is the first one */
	uint32_t spares;
	bool knows_files;
	struct rlimit files; /* how many srun was to open */
} relaunched = { .input = -1, .offset = -1 };

void relaunch_begin(void)
{
	const char *left = getenv(LEFT), *list = left != NULL ? strchr(left, ' ') : NULL;
	struct stat input;

	relaunched.knows_files = getrlimit(RLIMIT_NOFILE, &relaunched.files) == 0;
	relaunched.no_pipe = fstat(STDIN_FILENO, &input) != 0 || S_ISCHR(input.st_mode) || S_ISREG(input.st_mode);
	if (relaunched.no_pipe)
		relaunched.input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	relaunched.offset = lseek(STDIN_FILENO, 0, SEEK_CUR);
	if (list != NULL) {
		relaunched.spares = (uint32_t)strtoul(left, NULL, 10);
		relaunched.nodes = strdup(list + 1);
	}
	unsetenv(LEFT);
}

void relaunch_take_spares(uint32_t *spares)
{
	if (relaunched.nodes != NULL)
		*spares = relaunched.spares;
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
static void start_again(const struct relaunch_step *next, const char *stay, const struct srun_words *given)
{
	size_t bytes = strlen(stay) + TEXT_MAX;
	char nodes[TEXT_MAX], tasks[TEXT_MAX], *list = malloc(bytes), *left = malloc(bytes);
	char *added[ADDED] = { nodes, tasks, list }, **words, **environment;
	char program[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	sigset_t none;

	if (length <= 0 || list == NULL || left == NULL)
		return;
	program[length] = '\0';
	snprintf(nodes, sizeof(nodes), "--nodes=%u", next->nodes);
	snprintf(tasks, sizeof(tasks), "--ntasks=%u", next->tasks);
	snprintf(list, bytes, "--nodelist=%s", stay);
	snprintf(left, bytes, LEFT "=%u %s", next->spares, stay);
	words = words_of(given, added);
	environment = environment_with(left);
	if (words == NULL || environment == NULL)
		return;
	close_sockets();
	if (relaunched.input >= 0)
		(void)dup2(relaunched.input, STDIN_FILENO);
	if (relaunched.input >= 0 && relaunched.offset >= 0)
		(void)lseek(STDIN_FILENO, relaunched.offset, SEEK_SET);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* srun has raised its own, and hands tasks the one that it finds. */
	if (relaunched.knows_files)
		(void)setrlimit(RLIMIT_NOFILE, &relaunched.files);
	execve(program, words, environment);
}

/* The nodes that stay, for free(3); NULL: too few do, or there is no memory, or not all names have found room. */
static char *stay_of(const struct relaunch_step *step, const char *list, const char *without, const struct relaunch_step *next)
{
	bool enough = step->nodes - next->nodes <= step->spares || (step->min_nodes > 0 && next->nodes >= step->min_nodes);
	char *stay = step->may_go_on && enough && relaunched.no_pipe ? shrink_list(list, without) : NULL;
	struct error ignored;
	uint32_t count;

	if (stay != NULL && nodelist_count(stay, &count, &ignored) && count == next->nodes)
		return stay;
	free(stay);
	return NULL;
}

static void describe(const struct relaunch_step *step, uint32_t count, const char *names, struct sink *sink)
{
	sink_add(sink, "SLURM could not start the step: no task has begun on ");
	if (names[0] == '\0')
		sink_add(sink, "%u of its %u nodes", count, step->nodes);
	else
		sink_add(sink, "node%s %s", count > 1 ? "s" : "", names);
	sink_add(sink, " (SLURM's reason is above)");
}

bool relaunch_unstarted(const struct relaunch_step *step, const struct presence *presence, const struct srun_words *given)
{
	/* srun has set the variable to the job's nodes. */
	const char *list = relaunched.nodes != NULL ? relaunched.nodes : getenv("SLURM_NODELIST");
	char names[RELAY_TEXT_MAX + 1], text[3 * RELAY_TEXT_MAX], *stay;
	struct sink named = sink_on(names, sizeof(names)), sink = sink_on(text, sizeof(text));
	uint32_t count = list != NULL ? presence_unstarted(presence, step->nodes, list, &named) : 0;
	struct relaunch_step next = { .nodes = step->nodes - count, .spares = count < step->spares ? step->spares - count : 0 };

	if (count == 0)
		return false;
	next.tasks = step->tasks / step->nodes * next.nodes;
	stay = names[0] != '\0' ? stay_of(step, list, names, &next) : NULL;
	describe(step, count, names, &sink);
	if (stay != NULL)
		sink_add(&sink, "; another step begins on %u of %u nodes (%u spare%s left)", next.nodes, step->nodes,
		         next.spares, next.spares == 1 ? "" : "s");
	else if (names[0] != '\0' && count < step->nodes)
		sink_add(&sink, "; srun --exclude=%s leaves the node%s out", names, count > 1 ? "s" : "");
	slurm_error("ddp: %s", text);
	if (stay == NULL)
		return true;
	fflush(NULL);
	start_again(&next, stay, given);
	slurm_error("ddp: srun could not start itself again: %s", strerror(errno));
	free(stay);
	return true;
}
