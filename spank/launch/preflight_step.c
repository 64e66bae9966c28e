/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/preflight_step.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct writer {
	struct preflight_command *command;
	size_t words, used;
	bool full;
};

static void add(struct writer *w, const char *word)
{
	if (w->words + 1 >= PREFLIGHT_STEP_WORDS) {
		w->full = true;
		return;
	}
	w->command->words[w->words++] = word;
	w->command->words[w->words] = NULL;
}

__attribute__((format(printf, 2, 3))) static void add_text(struct writer *w, const char *format, ...)
{
	size_t room = sizeof(w->command->text) - w->used;
	char *text = w->command->text + w->used;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text, room, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= room) {
		w->full = true;
		return;
	}
	w->used += (size_t)length + 1;
	add(w, text);
}

/* Other keys of the user's are for the program. */
static void add_ddp(struct writer *w, const struct settings *settings)
{
	bool by_ip = option_given(settings, "addr"), by_suffix = option_given(settings, "addr-suffix");

	if (!by_ip && !by_suffix)
		add(w, "--ddp");
	else
		add_text(w, "--ddp=%s%s%s%s", by_ip ? settings->address == ADDRESS_IP ? "addr=ip" : "addr=nodename" : "",
		         by_ip && by_suffix ? "," : "", by_suffix ? "addr-suffix=" : "", by_suffix ? settings->address_suffix : "");
}

bool preflight_step_command(struct preflight_command *command, const struct preflight_step *step,
                            const struct settings *settings, struct error *error)
{
	struct writer w = { .command = command };
	size_t bytes = step->node_list != NULL ? strlen(step->node_list) + sizeof("--nodelist=") : 0;

	*command = (struct preflight_command){ .node_list = bytes > 0 ? malloc(bytes) : NULL };
	if (bytes > 0 && command->node_list == NULL)
		return error_set(error, "no memory");
	add(&w, step->srun);
	/* The step that is to follow has the resources already. */
	add(&w, "--overlap");
	add(&w, "--quiet");
	add(&w, "--mpi=none");
	add(&w, "--input=none");
	add_text(&w, "--jobid=%u", step->job_id);
	add_text(&w, "--nodes=%u", step->nodes);
	add_text(&w, "--ntasks=%u", step->tasks);
	if (step->tasks % step->nodes == 0)
		add_text(&w, "--ntasks-per-node=%u", step->tasks / step->nodes);
	if (step->cpus_per_task != NULL)
		add_text(&w, "--cpus-per-task=%s", step->cpus_per_task);
	if (bytes > 0) {
		snprintf(command->node_list, bytes, "--nodelist=%s", step->node_list);
		add(&w, command->node_list);
	}
	add_ddp(&w, settings);
	add(&w, step->program);
	add(&w, "--for-srun");
	add(&w, "--quiet");
	return !w.full || error_set(error, "its command is too long");
}

void preflight_step_free(struct preflight_command *command)
{
	free(command->node_list);
	command->node_list = NULL;
}

/* Reads a number and moves behind it and a blank. */
static bool read_number(char **text, uint32_t *number)
{
	char *end;
	unsigned long value = strtoul(*text, &end, 10);

	if (!isdigit((unsigned char)**text) || *end != ' ' || value > UINT32_MAX)
		return false;
	*number = (uint32_t)value;
	*text = end + 1;
	return true;
}

bool preflight_step_answer(char *text, struct preflight_answer *answer)
{
	char *end = strchr(text, '\n');

	*answer = (struct preflight_answer){ .odd = 0 };
	if (end == NULL || !read_number(&text, &answer->odd) || !read_number(&text, &answer->nodes))
		return false;
	*end = '\0';
	for (const char *c = text; *c != '\0'; c++)
		if (!isalnum((unsigned char)*c) && strchr("-._,", *c) == NULL)
			return false;
	answer->node_list = text;
	return true;
}

bool preflight_step_lists(const char *node_list, const char *node)
{
	size_t length = strlen(node);

	for (const char *at = node_list; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
		if (length > 0 && strcspn(at, ",") == length && memcmp(at, node, length) == 0)
			return true;
	return false;
}
