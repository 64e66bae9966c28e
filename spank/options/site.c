/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options/site.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_locked_key(uint32_t locked, const char *key)
{
	return (locked >> option_find(key, strlen(key)) & 1) != 0;
}

static bool parse_item(struct settings *settings, const char *item, size_t length,
                       uint32_t locked, struct error *error)
{
	const char *equals = memchr(item, '=', length);
	size_t key_length = equals != NULL ? (size_t)(equals - item) : length;
	int index = option_find(item, key_length);

	if (length == 0)
		return error_set(error, "an item of the list is empty; write KEY=VALUE,KEY=VALUE");
	if (index >= 0 && (settings->given >> index & 1) != 0)
		return error_set(error, "key '%s' is given twice", option_at(index)->name);
	if (index >= 0 && (locked >> index & 1) != 0)
		return error_set(error, "key '%s' is locked by this site; leave it out", option_at(index)->name);
	if (!option_set(settings, item, key_length, equals != NULL ? equals + 1 : NULL,
	                equals != NULL ? length - key_length - 1 : 0, error))
		return false;
	settings->given |= 1u << index;
	return true;
}

/* A site's keys of restarts, and its on-failure=continue beside restarts that the user asks for, also by spare or
   min-nodes, count only where they fit the user's list. Keys of the user that contradict each other, or what the site
   has locked, are an error. */
static bool adjust_restart(struct settings *settings, uint32_t locked, struct error *error)
{
	const char *needs = option_given(settings, "spare") && settings->spares > 0 ? "spare"
	                    : option_given(settings, "min-nodes") && settings->min_nodes > 0 ? "min-nodes" : NULL;
	const char *wanted = option_given(settings, "restart") && settings->restarts > 0 ? "restart" : needs;

	if (settings->restarts == 0 && needs != NULL)
		return error_set(error, "'%s' needs 'restart': only a step whose programs are started again can go on "
		                 "with other nodes; add restart=N", needs);
	if (wanted != NULL && !settings->kill_on_failure) {
		const bool is_locked = is_locked_key(locked, "on-failure");
		if (is_locked || option_given(settings, "on-failure"))
			return error_set(error, "'%s' and 'on-failure=continue'%s do not go together: a failure either restarts "
			                 "all ranks, or lets the others go on", wanted,
			                 is_locked ? ", which this site has locked," : "");
		settings->kill_on_failure = true;
	}
	if (!settings->kill_on_failure || settings->restarts == 0)
		settings_drop_restart(settings);
	/* A stall is a failure like others, unless the user says otherwise. */
	if (settings->restarts > 0 && !option_given(settings, "stall-action"))
		settings->kill_on_stall = true;
	return true;
}

/* An odd node can only wait where the step has spares. */
static bool adjust_preflight(struct settings *settings, struct error *error)
{
	if (settings->preflight != PREFLIGHT_EXCLUDE || settings->spares > 0)
		return true;
	if (option_given(settings, "preflight"))
		return error_set(error, "'preflight=exclude' needs spares, as an odd node becomes one: add restart=N,spare=K");
	settings->preflight = PREFLIGHT_WARN;
	return true;
}

bool user_list_read(struct settings *settings, const char *list, uint32_t locked, struct error *error)
{
	struct settings result = *settings;

	result.given = 0;
	if (list != NULL && list[0] != '\0' && strcmp(list, "(null)") != 0) {
		for (const char *item = list;; item++) {
			size_t length = strcspn(item, ",");
			if (!parse_item(&result, item, length, locked, error))
				return false;
			item += length;
			if (*item == '\0')
				break;
		}
	}
	if (result.launcher && result.stall_seconds > 0 && option_given(&result, "stall"))
		return error_set(error, "'stall' and 'launcher' do not go together: of the ranks that a "
		                 "launcher starts nothing is known");
	if (result.launcher && result.slow_percent > 0 && option_given(&result, "slow"))
		return error_set(error, "'slow' and 'launcher' do not go together: of the ranks that a "
		                 "launcher starts nothing is known");
	if (!adjust_restart(&result, locked, error) || !adjust_preflight(&result, error))
		return false;
	*settings = result;
	return true;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The keys that max-KEY=N limits. */
static const struct limited {
	const char *word;
	size_t number; /* in the settings */
} limits[] = {
	{ "max-restart", offsetof(struct settings, restarts) },
	{ "max-spare", offsetof(struct settings, spares) },
	{ "max-requeue", offsetof(struct settings, requeue_most) },
};

_Static_assert(COUNT(limits) == COUNT(((struct site *)0)->most), "each limit has its number");

enum { MAX_PREFIX = sizeof("max-") - 1 };

static uint32_t number_at(const struct settings *settings, size_t i)
{
	uint32_t number;

	memcpy(&number, (const char *)settings + limits[i].number, sizeof(number));
	return number;
}

static bool parse_locked(uint32_t *locked, const char *list, struct error *error)
{
	for (const char *key = list;; key++) {
		size_t length = strcspn(key, ",");
		int index = option_find(key, length);
		if (index < 0)
			return error_set(error, "locked= names an unknown key '%.*s'",
			                 length < 60 ? (int)length : 60, key);
		*locked |= 1u << index;
		key += length;
		if (*key == '\0')
			return true;
	}
}

static bool parse_comment(struct site *site, const char *value, struct error *error)
{
	site->notes_failures = strcmp(value, "failures") == 0;
	return site->notes_failures || strcmp(value, "no") == 0 ||
	       error_set(error, "comment= takes failures or no, not '%.60s'", value);
}

/* The index of the limit that a word sets, or -1. */
static int limit_find(const char *word, size_t length)
{
	for (size_t i = 0; i < COUNT(limits); i++)
		if (strlen(limits[i].word) == length && memcmp(limits[i].word, word, length) == 0)
			return (int)i;
	return -1;
}

static bool parse_limit(struct site *site, int i, const char *value, struct error *error)
{
	const char *key = limits[i].word + MAX_PREFIX;
	struct settings most;

	if (site->most[i] != UINT32_MAX)
		return error_set(error, "'%s' is given twice", limits[i].word);
	settings_init(&most);
	if (!option_set(&most, key, strlen(key), value, value != NULL ? strlen(value) : 0, error))
		return false;
	site->most[i] = number_at(&most, (size_t)i);
	return true;
}

static bool parse_word(struct site *site, const char *word, uint32_t *seen, struct error *error)
{
	const char *equals = strchr(word, '=');
	size_t key_length = equals != NULL ? (size_t)(equals - word) : strlen(word);
	int index = option_find(word, key_length);
	const struct option *option = option_at(index);
	struct settings before;

	if (strncmp(word, "locked=", 7) == 0)
		return parse_locked(&site->locked, word + 7, error);
	if (strncmp(word, "comment=", 8) == 0)
		return parse_comment(site, word + 8, error);
	if (limit_find(word, key_length) >= 0)
		return parse_limit(site, limit_find(word, key_length), equals != NULL ? equals + 1 : NULL, error);
	if (index >= 0 && (*seen >> index & 1) != 0)
		return error_set(error, "key '%s' is given twice", option->name);
	memcpy(&before, &site->defaults, sizeof(before));
	if (!option_set(&site->defaults, word, key_length, equals != NULL ? equals + 1 : NULL,
	                equals != NULL ? strlen(equals + 1) : 0, error))
		return false;
	if (option->not_for_sites != NULL && memcmp(&before, &site->defaults, sizeof(before)) != 0)
		return error_set(error, "key '%s' is for users: as the site's default %s", option->name,
		                 option->not_for_sites);
	*seen |= 1u << index;
	return true;
}

static void site_init(struct site *site)
{
	memset(site, 0, sizeof(*site));
	settings_init(&site->defaults);
	for (size_t i = 0; i < COUNT(limits); i++)
		site->most[i] = UINT32_MAX;
}

/* Whether the site's limits allow these settings. */
static bool site_allows(const struct site *site, const struct settings *settings, struct error *error)
{
	for (size_t i = 0; i < COUNT(limits); i++) {
		const char *key = limits[i].word + MAX_PREFIX;
		if (number_at(settings, i) > site->most[i])
			return error_set(error, "'%s=%u' is above this site's limit: it allows %s=%u at most", key,
			                 number_at(settings, i), key, site->most[i]);
	}
	return true;
}

static bool parse_words(struct site *site, int count, char *const words[], struct error *error)
{
	uint32_t seen = 0;

	for (int i = 0; i < count; i++)
		if (!parse_word(site, words[i], &seen, error))
			return false;
	site->off = site->defaults.off;
	/* A user's --ddp=off is something else. */
	site->defaults.off = false;
	return site_allows(site, &site->defaults, error);
}

bool site_parse(struct site *site, int count, char *const words[], struct error *error)
{
	struct error reason;

	site_init(site);
	if (parse_words(site, count, words, &reason))
		return true;
	site_init(site);
	return error_set(error, "the site's plugstack line for spank_ddp.so: %s", reason.text);
}

/* Whether the line has KEY=yes, in one of SLURM's words for it. */
static bool says_yes(const char *line, const char *key)
{
	static const char *const words[] = { "yes", "up", "true", "1" };
	char name[64], value[256];
	int bytes;

	for (; sscanf(line, " %63[^=# \t\n] = %255[^# \t\n]%n", name, value, &bytes) == 2; line += bytes)
		for (size_t i = 0; i < COUNT(words); i++)
			if (strcasecmp(name, key) == 0 && strcasecmp(value, words[i]) == 0)
				return true;
	return false;
}

bool site_file_says_yes(const char *path, uid_t owner, const char *key)
{
	FILE *file = fopen(path, "re");
	struct stat status;
	char line[1024];
	bool yes = false;

	if (file == NULL)
		return false;
	if (fstat(fileno(file), &status) == 0 && (status.st_uid == geteuid() || status.st_uid == owner))
		while (!yes && fgets(line, sizeof(line), file) != NULL)
			yes = says_yes(line, key);
	fclose(file);
	return yes;
}

bool request_take_list(struct request *request, const char *list, struct error *error)
{
	if (list == NULL || strcmp(list, "(null)") == 0)
		list = "";
	if (request->lists++ > 0)
		memcpy(request->before, request->list, sizeof(request->before));
	snprintf(request->list, sizeof(request->list), "%s", list);
	request->wanted = true;
	request->settings = request->site.defaults;
	if (request->error.text[0] != '\0') {
		*error = request->error;
		return false;
	}
	if (!user_list_read(&request->settings, list, request->site.locked, error) ||
	    !site_allows(&request->site, &request->settings, error))
		return false;
	/* The step is refused, as its tasks would otherwise run without ranks. */
	if (request->site.off && !request->settings.off)
		return error_set(error, "the administrator has switched --ddp off in the configuration of Slurm here");
	request->wanted = !request->settings.off;
	return true;
}

/* The list that the user gave to the component. sbatch puts a component's list into its own environment, and reads it
   there for the next component, behind the lines of the script, so that it hides a list of the script. */
static const char *own_list(const struct request *request, bool in_sbatch)
{
	const bool hides = in_sbatch && request->any && request->lists > 1 && strcmp(request->list, request->first) == 0;

	return hides ? request->before : request->list;
}

bool request_components_agree(struct request *request, bool in_sbatch, struct error *error)
{
	const char *own = own_list(request, in_sbatch);
	const bool later = request->components++ > 0, given = request->lists > 0;

	request->lists = 0;
	if (!given)
		return true;
	if (!request->any && later && in_sbatch)
		return error_set(error, "sbatch gives the steps of a heterogeneous job the list of the first component, but only "
		                 "component %u has --ddp='%.80s': give it to the first one", request->components - 1, own);
	if (!request->any)
		memcpy(request->first, own, sizeof(request->first));
	request->any = true;
	return strcmp(request->first, own) == 0 ||
	       error_set(error, "Slurm gives all components of a heterogeneous job or step one list, but "
	                 "one has --ddp='%.80s' and another one has --ddp='%.80s': give each the same",
	                 request->first, own);
}

bool request_locks(const struct request *request, const char *key)
{
	return is_locked_key(request->site.locked, key);
}
