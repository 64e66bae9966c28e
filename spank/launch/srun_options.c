/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/srun_options.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "spank/base/text.h"

/* Whether one of the words, which end with NULL, begins the text. */
static bool begins(const char *const words[], const char *text)
{
	for (; *words != NULL; words++)
		if (strncmp(text, *words, strlen(*words)) == 0)
			return true;
	return false;
}

static bool stays(const char *entry, bool binds)
{
	static const char *const options[] = { "SLURM_", "SRUN_", NULL };
	static const char *const found[] = { "SLURM_CONF=", "SLURM_CONF_SERVER=", "SLURM_JWT=",
		                             "SLURM_WORKING_CLUSTER=", NULL };
	static const char *const binding[] = {
		"SLURM_CPU_BIND", "SLURM_MEM_BIND",       "SLURM_HINT=",      "SLURM_NETWORK=",
		"SLURM_GPU",      "SLURM_TRES_PER_TASK=", "SLURM_TRES_BIND=", NULL
	};

	return !begins(options, entry) || begins(found, entry) || (binds && begins(binding, entry));
}

char **srun_environment(char *const environment[], bool binds, char *more)
{
	size_t count = 0, used = 0;
	char **list;

	while (environment[count] != NULL)
		count++;
	list = malloc((count + 2) * sizeof(*list));
	if (list == NULL)
		return NULL;
	for (size_t i = 0; i < count; i++)
		if (stays(environment[i], binds))
			list[used++] = environment[i];
	if (more != NULL)
		list[used++] = more;
	list[used] = NULL;
	return list;
}

/* The value that a word gives to a long option, "" without one; NULL if it is another
   word. The option may be cut short, but not so far that it could be another one. */
static const char *value_of(const char *word, const char *option, size_t shortest)
{
	size_t length = strcspn(word, "=");

	if (length < shortest || strncmp(word, option, length) != 0)
		return NULL;
	return word[length] == '=' ? word + length + 1 : "";
}

/* Does the same as value_of() for an option of one letter. The letter may stand behind others in
   the word. */
static const char *value_of_letter(const char *word, char option)
{
	/* srun's options of one letter without a value: after them, in the same
	   word, others may follow. */
	static const char flags[] = "EHOQVXZhlsuv";
	size_t letter = 1 + strspn(word + (word[0] != '\0'), flags);

	return word[0] == '-' && word[letter] == option ? word + letter + 1 : NULL;
}

/* "0" of -K0 and --kill-on-bad-exit=0, "" of -K. */
static const char *value_of_kill(const char *word)
{
	const char *value = value_of_letter(word, 'K');

	return value != NULL ? value : value_of(word, "--kill-on-bad-exit", sizeof("--k") - 1);
}

/* "" where the value is the next word. */
static const char *value_of_nodes(const char *word)
{
	const char *value = value_of_letter(word, 'w');

	if (value == NULL)
		value = value_of_letter(word, 'F');
	if (value == NULL)
		value = value_of(word, "--nodelist", sizeof("--nodel") - 1);
	return value != NULL ? value : value_of(word, "--nodefile", sizeof("--nodef") - 1);
}

/* "3" of -W3 and --wait=3; "" of -W and --wait, whose value is the next word. A cut
   --wait would be another option, too. */
static const char *value_of_wait(const char *word)
{
	const char *value = value_of_letter(word, 'W');

	return value != NULL ? value : value_of(word, "--wait", sizeof("--wait") - 1);
}

/* The next of the words, of which `*left` are left; NULL behind the last. */
static const char *take_word(const char **words, const char *end, int *left)
{
	const char *word = *words;

	if (*left <= 0 || word >= end || memchr(word, '\0', (size_t)(end - word)) == NULL)
		return NULL;
	--*left;
	*words += strlen(word) + 1;
	return word;
}

/* The value of the last of srun's own words for which value_of_word() gives one, `otherwise`
   without such a word. With `in_next_word`, an empty value stands in the next word. */
static const char *last_value(const struct srun_words *given,
                              const char *(*value_of_word)(const char *word), bool in_next_word,
                              const char *otherwise)
{
	const char *last = otherwise, *word, *words = given->words, *end = given->words + given->bytes;
	int left = given->own;

	while ((word = take_word(&words, end, &left)) != NULL) {
		const char *value = value_of_word(word);
		if (in_next_word && value != NULL && value[0] == '\0')
			value = take_word(&words, end, &left);
		if (value != NULL)
			last = value;
	}
	return last;
}

/* Whether srun's own words hold a long option. */
static bool holds(const struct srun_words *given, const char *option, size_t shortest)
{
	const char *word, *words = given->words;
	int left = given->own;

	while ((word = take_word(&words, given->words + given->bytes, &left)) != NULL)
		if (value_of(word, option, shortest) != NULL)
			return true;
	return false;
}

enum srun_say srun_kill_on_bad_exit(const struct srun_words *given, const char *variable)
{
	const char *last = last_value(given, value_of_kill, false, variable);

	if (last == NULL)
		return SRUN_SILENT;
	return strcmp(last, "0") == 0 ? SRUN_NO : SRUN_YES;
}

long srun_wait_seconds(const struct srun_words *given, const char *variable)
{
	const char *last = last_value(given, value_of_wait, true, variable);

	return last != NULL ? strtol(last, NULL, 10) : -1;
}

bool srun_waits_for_children(const struct srun_words *given)
{
	return holds(given, "--wait-for-children", sizeof("--wait-f") - 1);
}

bool srun_broadcasts(const struct srun_words *given, const char *variable)
{
	return holds(given, "--bcast", sizeof("--bc") - 1) || variable != NULL;
}

bool srun_starts_several(const struct srun_words *given)
{
	return holds(given, "--multi-prog", sizeof("--mu") - 1);
}

static const char *value_of_group(const char *word)
{
	const char *value = value_of(word, "--het-group", sizeof("--het") - 1);

	return value != NULL ? value : value_of(word, "--pack-group", sizeof("--pa") - 1);
}

bool srun_starts_components(const struct srun_words *given)
{
	const char *groups = last_value(given, value_of_group, true, NULL), *words = given->words, *word;
	int left = INT_MAX;

	if (groups != NULL && strpbrk(groups, ",-") != NULL)
		return true;
	/* srun takes such a word for the end of a program's words, too. */
	while ((word = take_word(&words, given->words + given->bytes, &left)) != NULL)
		if (strcmp(word, ":") == 0)
			return true;
	return false;
}

static const char *value_of_no_kill(const char *word)
{
	const char *value = value_of_letter(word, 'k');

	return value != NULL ? value : value_of(word, "--no-kill", sizeof("--no-k") - 1);
}

bool srun_outlives_nodes(const struct srun_words *given, const char *variable)
{
	const char *last = last_value(given, value_of_no_kill, false, variable);

	return last != NULL && strcasecmp(last, "off") != 0 && strcasecmp(last, "no") != 0;
}

static const char *value_of_mpi(const char *word)
{
	return value_of(word, "--mpi", sizeof("--mp") - 1);
}

const char *srun_mpi(const struct srun_words *given, const char *variable)
{
	return last_value(given, value_of_mpi, true, variable);
}

static const char *value_of_container(const char *word)
{
	/* Pyxis has options that begin with the same word. */
	return value_of(word, "--container", sizeof("--container") - 1);
}

bool srun_runs_container(const struct srun_words *given, const char *variable)
{
	return last_value(given, value_of_container, true, variable) != NULL;
}

const char *srun_nodes(const struct srun_words *given)
{
	return last_value(given, value_of_nodes, true, NULL);
}

bool srun_names_job(const struct srun_words *given)
{
	return holds(given, "--jobid", sizeof("--jobi") - 1);
}

static const char *value_of_exclude(const char *word)
{
	const char *value = value_of_letter(word, 'x');

	return value != NULL ? value : value_of(word, "--exclude", sizeof("--exclud") - 1);
}

const char *srun_excluded(const struct srun_words *given)
{
	return last_value(given, value_of_exclude, true, NULL);
}

/* --gpus-per-node and others are for each node, or task. */
static const char *value_of_gpus(const char *word)
{
	const char *value = value_of_letter(word, 'G');

	return value != NULL ? value : value_of(word, "--gpus", sizeof("--gpus") - 1);
}

static const char *value_of_distribution(const char *word)
{
	const char *value = value_of_letter(word, 'm');

	return value != NULL ? value : value_of(word, "--distribution", sizeof("--dist") - 1);
}

bool srun_fits_fewer_nodes(const struct srun_words *given, const char *gpus, const char *distribution)
{
	distribution = last_value(given, value_of_distribution, true, distribution);
	return last_value(given, value_of_gpus, true, gpus) == NULL &&
	       (distribution == NULL || strncasecmp(distribution, "arb", 3) != 0);
}

bool srun_starts_a_shell(const struct srun_words *given)
{
	return holds(given, "--interactive", sizeof("--int") - 1);
}

const char *srun_program(const struct srun_words *given)
{
	const char *word = NULL, *words = given->words;
	int left = given->own + 1;

	for (int i = 0; i <= given->own; i++)
		word = take_word(&words, given->words + given->bytes, &left);
	return word != NULL ? word : "";
}

static void add_wait(const struct srun_ends *ends, struct sink *sink)
{
	bool cuts_grace = ends->grace_given && ends->wait_seconds < (long)ends->grace_seconds;

	if (ends->wait_seconds <= 0 || (ends->kill_on_failure && !cuts_grace))
		return;
	sink_add(sink, "srun ends the step %ld s after its first task has ended (--wait or SLURM_WAIT), ",
	         ends->wait_seconds);
	if (ends->kill_on_failure)
		sink_add(sink, "and not grace=%u s later", ends->grace_seconds);
	else
		sink_add(sink, "in spite of on-failure=continue");
}

bool srun_contradicts(const struct srun_ends *ends, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	add_wait(ends, &sink);
	if (ends->site_wait > 0)
		sink_add(&sink, "%ssrun ends the step %u s after its first task has ended, by WaitTime in "
		         "slurm.conf, which the plugin cannot override here: srun --wait=0 does",
		         text[0] != '\0' ? "; " : "", ends->site_wait);
	if (ends->kills)
		sink_add(&sink, "%ssrun itself sends SIGTERM to the step when a task fails (KillOnBadExit in "
		         "slurm.conf, or -K), which the plugin cannot override here, and a failure may then "
		         "be taken for a step that was asked to stop: srun -K0 --ddp=on-failure=%s does",
		         text[0] != '\0' ? "; " : "", ends->kill_on_failure ? "kill" : "continue");
	return text[0] != '\0';
}
