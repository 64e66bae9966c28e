/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/restart/renumber.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "spank/base/sink.h"
#include "spank/identity/identity.h"
#include "spank/launch/names.h"

static void point(struct renumbered *r, const char *name, const char *value)
{
	if (r->count == RENUMBER_MAX || name_find(name) == NULL) {
		r->overflow = true;
		return;
	}
	r->item[r->count].name = name;
	r->item[r->count++].value = value;
}

/* Keeps a value in the text. */
__attribute__((format(printf, 2, 3)))
static const char *keep(struct renumbered *r, const char *format, ...)
{
	va_list arguments;
	const char *value;

	va_start(arguments, format);
	value = sink_keep(r->text, sizeof(r->text), &r->used, format, arguments);
	va_end(arguments);
	r->overflow |= value == NULL;
	return value != NULL ? value : "";
}

static const char *list_ranks(struct renumbered *r, const struct deal_go *go)
{
	struct sink sink = sink_on(r->text + r->used, sizeof(r->text) - r->used);
	const char *value = sink.text;

	for (uint32_t i = 0; i < go->local_count; i++)
		sink_add(&sink, "%s%u", i > 0 ? "," : "", deal_rank(go, i));
	r->overflow |= sink.full;
	r->used += sink.used + 1;
	return value;
}

/* Whether the nodes have equally many tasks, by a text such as "2(x3)". If they have not, each node keeps its
   place in all generations, so that the text stays. */
static bool is_even(const char *tasks_per_node)
{
	return tasks_per_node == NULL || strchr(tasks_per_node, ',') == NULL;
}

static bool says(char *const *environment, const char *name, const char *value)
{
	const char *present = environment_get(environment, name);

	return present != NULL && value != NULL && strcmp(present, value) == 0;
}

bool renumber(struct renumbered *r, char *const *environment, const struct deal_go *go, uint32_t local_task,
              uint32_t pid, struct error *error)
{
	const char *old_nodes = environment_get(environment, "SLURM_STEP_NODELIST");
	const char *old_count = environment_get(environment, "SLURM_STEP_NUM_NODES");
	const char *old_tasks = environment_get(environment, "SLURM_STEP_TASKS_PER_NODE");
	const char *world, *nodes, *tasks;

	r->count = 0;
	r->used = 0;
	r->overflow = false;
	world = keep(r, "%u", go->world_size);
	nodes = keep(r, "%u", go->node_count);
	tasks = !is_even(old_tasks) ? old_tasks
	        : go->node_count > 1 ? keep(r, "%u(x%u)", go->local_count, go->node_count)
	                             : keep(r, "%u", go->local_count);
	point(r, "SLURM_PROCID", keep(r, "%u", deal_rank(go, local_task)));
	point(r, "SLURM_NTASKS", world);
	point(r, "SLURM_NPROCS", world);
	point(r, "SLURM_STEP_NUM_TASKS", world);
	point(r, "SLURM_NODEID", keep(r, "%u", go->node_rank));
	point(r, "SLURM_STEP_NUM_NODES", nodes);
	point(r, "SLURM_STEP_NODELIST", go->nodes);
	point(r, "SLURM_STEP_TASKS_PER_NODE", tasks);
	point(r, "SLURM_GTIDS", list_ranks(r, go));
	point(r, "SLURM_TASK_PID", keep(r, "%u", pid));
	if (says(environment, "SLURM_NNODES", old_count))
		point(r, "SLURM_NNODES", nodes);
	if (says(environment, "SLURM_JOB_NUM_NODES", old_count))
		point(r, "SLURM_JOB_NUM_NODES", nodes);
	if (says(environment, "SLURM_NODELIST", old_nodes))
		point(r, "SLURM_NODELIST", go->nodes);
	if (says(environment, "SLURM_JOB_NODELIST", old_nodes))
		point(r, "SLURM_JOB_NODELIST", go->nodes);
	if (says(environment, "SLURM_TASKS_PER_NODE", old_tasks))
		point(r, "SLURM_TASKS_PER_NODE", tasks);
	return !r->overflow || error_set(error, "the variables of a generation with %u ranks on this node are longer than "
	                                 "%d bytes", go->local_count, RENUMBER_TEXT_MAX);
}

bool renumber_hides(const char *text)
{
	return strncmp(text, "PMIX_", 5) == 0 || strncmp(text, "PMI_", 4) == 0 || strncmp(text, "PMI2_", 5) == 0;
}
