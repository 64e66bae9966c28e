/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/user_list.h"

#include <string.h>

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

/* A site's keys of restarts count only where they fit the user's list. Keys of the user that contradict each other are
   an error. */
static bool settle_restart(struct settings *settings, struct error *error)
{
	bool wanted = option_given(settings, "restart") && settings->restarts > 0;
	const char *needs = option_given(settings, "spare") && settings->spares > 0 ? "spare"
	                    : option_given(settings, "min-nodes") && settings->min_nodes > 0 ? "min-nodes" : NULL;

	if (settings->restarts == 0 && needs != NULL)
		return error_set(error, "'%s' needs 'restart': only a step whose programs are started again can go on "
		                 "with other nodes; add restart=N", needs);
	if (wanted && !settings->kill_on_failure && option_given(settings, "on-failure"))
		return error_set(error, "'restart' and 'on-failure=continue' do not go together: a failure either "
		                 "restarts all ranks, or lets the others go on");
	if (!settings->kill_on_failure && !wanted)
		settings->restarts = 0;
	if (settings->restarts == 0)
		settings->spares = settings->min_nodes = 0;
	/* A stall is a failure like others, unless the user says otherwise. */
	if (settings->restarts > 0 && !option_given(settings, "stall-action"))
		settings->kill_on_stall = true;
	return true;
}

/* An odd node can only wait where the step has spares. */
static bool settle_preflight(struct settings *settings, struct error *error)
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
		return error_set(error, "'slow' and 'launcher' do not go together: of the ranks that a launcher starts nothing is known");
	if (!settle_restart(&result, error) || !settle_preflight(&result, error))
		return false;
	*settings = result;
	return true;
}
