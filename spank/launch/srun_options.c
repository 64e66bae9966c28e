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

static bool variable_stays(const char *entry, bool binds)
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
		if (variable_stays(environment[i], binds))
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

/* An option that may have a value. */
struct srun_option {
	char letter; /* '\0': it has none */
	const char *name;
	size_t shortest;
};

#define OPTION(letter, name, cut) { letter, name, sizeof(cut) - 1 }

/* The value that a word gives to one of the options, the last of which has no name; "" without one; NULL: another
   word. */
static const char *value_of_any(const char *word, const struct srun_option *option)
{
	const char *value = NULL;

	for (; value == NULL && option->name != NULL; option++) {
		if (option->letter != '\0')
			value = value_of_letter(word, option->letter);
		if (value == NULL)
			value = value_of(word, option->name, option->shortest);
	}
	return value;
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

/* The value of the last of srun's own words that is one of the options, `otherwise` without such a word. With
   `in_next_word`, an empty value stands in the next word. */
static const char *last_value(const struct srun_words *given, const struct srun_option *options, bool in_next_word,
                              const char *otherwise)
{
	const char *last = otherwise, *word, *words = given->words, *end = given->words + given->bytes;
	int left = given->own;

	while ((word = take_word(&words, end, &left)) != NULL) {
		const char *value = value_of_any(word, options);
		if (in_next_word && value != NULL && value[0] == '\0')
			value = take_word(&words, end, &left);
		if (value != NULL)
			last = value;
	}
	return last;
}

/* Whether srun's own words hold a long option. */
static bool words_hold(const struct srun_words *given, const char *option, size_t shortest)
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
	static const struct srun_option kill[] = { OPTION('K', "--kill-on-bad-exit", "--k"), { 0 } };
	const char *last = last_value(given, kill, false, variable);

	if (last == NULL)
		return SRUN_SILENT;
	return strcmp(last, "0") == 0 ? SRUN_NO : SRUN_YES;
}

long srun_wait_seconds(const struct srun_words *given, const char *variable)
{
	/* A cut --wait would be another option, too. */
	static const struct srun_option wait[] = { OPTION('W', "--wait", "--wait"), { 0 } };
	const char *last = last_value(given, wait, true, variable);

	return last != NULL ? strtol(last, NULL, 10) : -1;
}

bool srun_waits_for_children(const struct srun_words *given)
{
	return words_hold(given, "--wait-for-children", sizeof("--wait-f") - 1);
}

bool srun_broadcasts(const struct srun_words *given, const char *variable)
{
	return words_hold(given, "--bcast", sizeof("--bc") - 1) || variable != NULL;
}

bool srun_starts_several(const struct srun_words *given)
{
	return words_hold(given, "--multi-prog", sizeof("--mu") - 1);
}

bool srun_starts_components(const struct srun_words *given)
{
	static const struct srun_option groups_of[] = { OPTION('\0', "--het-group", "--het"),
		                                        OPTION('\0', "--pack-group", "--pa"), { 0 } };
	const char *groups = last_value(given, groups_of, true, NULL), *words = given->words, *word;
	int left = INT_MAX;

	if (groups != NULL && strpbrk(groups, ",-") != NULL)
		return true;
	/* srun takes such a word for the end of a program's words, too. */
	while ((word = take_word(&words, given->words + given->bytes, &left)) != NULL)
		if (strcmp(word, ":") == 0)
			return true;
	return false;
}

bool srun_outlives_nodes(const struct srun_words *given, const char *variable)
{
	static const struct srun_option no_kill[] = { OPTION('k', "--no-kill", "--no-k"), { 0 } };
	const char *last = last_value(given, no_kill, false, variable);

	return last != NULL && strcasecmp(last, "off") != 0 && strcasecmp(last, "no") != 0;
}

const char *srun_mpi(const struct srun_words *given, const char *variable)
{
	static const struct srun_option mpi[] = { OPTION('\0', "--mpi", "--mp"), { 0 } };

	return last_value(given, mpi, true, variable);
}

bool srun_runs_container(const struct srun_words *given, const char *variable)
{
	/* Pyxis has options that begin with the same word. */
	static const struct srun_option container[] = { OPTION('\0', "--container", "--container"), { 0 } };

	return last_value(given, container, true, variable) != NULL;
}

const char *srun_nodes(const struct srun_words *given)
{
	static const struct srun_option nodes[] = { OPTION('w', "--nodelist", "--nodel"),
		                                    OPTION('F', "--nodefile", "--nodef"), { 0 } };

	return last_value(given, nodes, true, NULL);
}

bool srun_names_job(const struct srun_words *given)
{
	return words_hold(given, "--jobid", sizeof("--jobi") - 1);
}

const char *srun_excluded(const struct srun_words *given)
{
	static const struct srun_option exclude[] = { OPTION('x', "--exclude", "--exclud"), { 0 } };

	return last_value(given, exclude, true, NULL);
}

bool srun_fits_fewer_nodes(const struct srun_words *given, const char *gpus, const char *distribution)
{
	/* --gpus-per-node and others are for each node, or task. */
	static const struct srun_option gpus_of[] = { OPTION('G', "--gpus", "--gpus"), { 0 } };
	static const struct srun_option laid_out[] = { OPTION('m', "--distribution", "--dist"), { 0 } };

	distribution = last_value(given, laid_out, true, distribution);
	return last_value(given, gpus_of, true, gpus) == NULL &&
	       (distribution == NULL || strncasecmp(distribution, "arb", 3) != 0);
}

bool srun_starts_a_shell(const struct srun_words *given)
{
	return words_hold(given, "--interactive", sizeof("--int") - 1);
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

bool daemon_is_launched(int count, char *const words[])
{
	/* The daemons of Open MPI and PRRTE; of MPICH, MVAPICH and Intel MPI. No prefix: there are
	   programs called hydra_* that train. */
	static const char *const names[] = { "orted", "prted", "pmi_proxy", "hydra_pmi_proxy",
		                             "hydra_bstrap_proxy" };
	const char *name, *slash;

	if (count < 1 || words == NULL || words[0] == NULL)
		return false;
	slash = strrchr(words[0], '/');
	name = slash != NULL ? slash + 1 : words[0];
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}
