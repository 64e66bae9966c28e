/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/variables.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "spank/base/text.h"
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
static const char *keep_value(struct renumbered *r, const char *format, ...)
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
	world = keep_value(r, "%u", go->world_size);
	nodes = keep_value(r, "%u", go->node_count);
	tasks = !is_even(old_tasks) ? old_tasks
	        : go->node_count > 1 ? keep_value(r, "%u(x%u)", go->local_count, go->node_count)
	                             : keep_value(r, "%u", go->local_count);
	point(r, "SLURM_PROCID", keep_value(r, "%u", deal_rank(go, local_task)));
	point(r, "SLURM_NTASKS", world);
	point(r, "SLURM_NPROCS", world);
	point(r, "SLURM_STEP_NUM_TASKS", world);
	point(r, "SLURM_NODEID", keep_value(r, "%u", go->node_rank));
	point(r, "SLURM_STEP_NUM_NODES", nodes);
	point(r, "SLURM_STEP_NODELIST", go->nodes);
	point(r, "SLURM_STEP_TASKS_PER_NODE", tasks);
	point(r, "SLURM_GTIDS", list_ranks(r, go));
	point(r, "SLURM_TASK_PID", keep_value(r, "%u", pid));
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

#define TORCHRUN "--ddp=launcher: torchrun sets it"

enum { PYTHONPATH_MAX = 3000 };

/* The place of a name: a second value for it replaces the first. */
static struct variable *place(struct variables *variables, const char *name)
{
	for (int i = 0; i < variables->count; i++)
		if (strcmp(variables->item[i].name, name) == 0)
			return &variables->item[i];
	if (variables->count == VARIABLES_MAX) {
		variables->overflow = true;
		return NULL;
	}
	if (name_find(name) == NULL) {
		variables->unlisted = name;
		return NULL;
	}
	return &variables->item[variables->count++];
}

static void take_out(struct variables *variables, const char *name, const char *source)
{
	struct variable *variable = place(variables, name);

	if (variable != NULL)
		*variable = (struct variable){ name, NULL, source };
}

__attribute__((format(printf, 4, 5)))
static void put(struct variables *variables, const char *name, const char *source,
                const char *format, ...)
{
	struct variable *variable;
	va_list arguments;
	char *value;

	va_start(arguments, format);
	value = sink_keep(variables->text, sizeof(variables->text), &variables->used, format, arguments);
	va_end(arguments);
	variables->overflow |= value == NULL;
	variable = value != NULL ? place(variables, name) : NULL;
	if (variable != NULL)
		*variable = (struct variable){ name, value, source };
}

static void put_ranks(struct variables *v, const struct identity *id,
                      const struct task_extras *extras)
{
	bool brackets = strchr(extras->master_address, ':') != NULL;

	put(v, "RANK", "the step", "%u", id->rank);
	put(v, "WORLD_SIZE", "the step", "%u", id->world_size);
	put(v, "LOCAL_RANK", "the step", "%u", id->local_rank);
	put(v, "LOCAL_WORLD_SIZE", "the step", "%u", id->local_world_size);
	put(v, "NODE_RANK", "the step", "%u", id->node_rank);
	put(v, "NNODES", "the step", "%u", id->node_count);
	put(v, "GROUP_RANK", "the step", "%u", id->node_rank);
	put(v, "MASTER_ADDR", id->node_source, "%s", extras->master_address);
	put(v, "MASTER_PORT", id->port_source, "%u", id->master_port);
	put(v, "JAX_COORDINATOR_ADDRESS", "MASTER_ADDR and MASTER_PORT", "%s%s%s:%u",
	    brackets ? "[" : "", extras->master_address, brackets ? "]" : "", id->master_port);
	put(v, "JAX_NUM_PROCESSES", "WORLD_SIZE", "%u", id->world_size);
	put(v, "JAX_PROCESS_ID", "RANK", "%u", id->rank);
	if (extras->gpu.device >= 0)
		put(v, "DDP_LOCAL_DEVICE", "the GPUs that the task sees", "%d", extras->gpu.device);
}

/* Under Slurm JAX takes the device SLURM_LOCALID, which is wrong where each task
   sees devices of its own, numbered from 0. The user's own list stays. */
static void put_jax_devices(struct variables *v, const struct task_extras *extras)
{
	char list[128] = "0";
	size_t used = 1;

	if (extras->gpu.binding != GPU_OWN ||
	    environment_get(extras->environment, "JAX_LOCAL_DEVICE_IDS") != NULL)
		return;
	for (uint32_t i = 1; i < extras->gpu.visible && used + sizeof(",4294967295") <= sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, ",%u", i);
	put(v, "JAX_LOCAL_DEVICE_IDS", "the GPUs that the task sees", "%s", list);
}

static bool one_task_per_node(const struct identity *id)
{
	return id->world_size == id->node_count && id->local_world_size == 1;
}

/* For one torchrun per node, started by the one task of the node: what it takes
   for its own options where those are not given. */
static void put_torchrun(struct variables *v, const struct identity *id,
                         const struct task_extras *extras)
{
	put(v, "PET_NNODES", "the step", "%u", id->node_count);
	put(v, "PET_NODE_RANK", "the step", "%u", id->node_rank);
	put(v, "PET_MASTER_ADDR", id->node_source, "%s", extras->master_address);
	put(v, "PET_MASTER_PORT", id->port_source, "%u", id->master_port);
	put(v, "PET_RDZV_ID", "job, step and restart", "%u.%u.%u", id->job_id, id->step_id,
	    id->restart_count);
	if (extras->gpu.visible > 0)
		put(v, "PET_NPROC_PER_NODE", "the GPUs that the task sees", "%u", extras->gpu.visible);
}

/* By which NCCL tells on the page what the task waits for. The user's own plugin stays. */
static void put_watch(struct variables *v, const struct settings *settings,
                      const struct task_extras *extras)
{
	if (settings->watch && extras->progress_fd >= 0 &&
	    environment_get(extras->environment, "NCCL_PROFILER_PLUGIN") == NULL)
		put(v, "NCCL_PROFILER_PLUGIN", "watch", "%s",
		    settings->watch_path[0] != '\0' ? settings->watch_path : extras->nccl_profiler);
}

/* Names the plugin for NCCL's traffic between nodes. The user's own choice stays. */
static void put_nccl_net(struct variables *v, const struct settings *settings,
                         const struct task_extras *extras)
{
	if (settings->nccl_net && environment_get(extras->environment, "NCCL_NET_PLUGIN") == NULL)
		put(v, "NCCL_NET_PLUGIN", "nccl-net", "%s",
		    settings->nccl_net_path[0] != '\0' ? settings->nccl_net_path : extras->nccl_net);
}

/* The folder `site` before the user's own makes each Python that a task starts look at DDP_PYTHON. A list that
   is too long stays as it is: the program then runs without slurm_ddp. */
static void put_python(struct variables *v, const struct settings *settings, const struct task_extras *extras)
{
	const char *own = environment_get(extras->environment, "PYTHONPATH");
	char folder[NCCL_PATH_MAX + sizeof("/site")];
	size_t length;

	if (!settings->python)
		return;
	length = (size_t)snprintf(folder, sizeof(folder), "%s/site",
	                          settings->python_path[0] != '\0' ? settings->python_path : extras->python);
	if (length >= sizeof(folder) || (own != NULL && strlen(own) > PYTHONPATH_MAX))
		return;
	/* A program that is started again has the folder already. */
	if (own != NULL && strncmp(own, folder, length) == 0 && (own[length] == ':' || own[length] == '\0'))
		return;
	if (own != NULL && own[0] != '\0')
		put(v, "PYTHONPATH", "python", "%s:%s", folder, own);
	else
		put(v, "PYTHONPATH", "python", "%s", folder);
}

/* The options that a library reads from variables. */
static void put_told(struct variables *v, const struct settings *settings)
{
	const struct option *option;
	char text[32];

	for (int i = 0; (option = option_at(i)) != NULL; i++) {
		const char *value = option->variable != NULL
			? option->tell(option, settings, text, sizeof(text)) : NULL;
		if (value != NULL)
			put(v, option->variable, option->name, "%s", value);
	}
}

static void put_own(struct variables *v, const struct identity *id,
                    const struct settings *settings, const struct task_extras *extras)
{
	put(v, "DDP_PLUGIN_VERSION", "the plugin", "%s", extras->version);
	put(v, "DDP_REQUESTED", "the step", "%u.%u", id->job_id, id->step_id);
	put(v, "DDP_JOB_ID", "the step", "%u", id->job_id);
	put(v, "DDP_STEP_ID", "the step", "%u", id->step_id);
	put(v, "DDP_RESTART_COUNT", "the job", "%u", id->restart_count);
	if (settings->restarts > 0 && !settings->launcher) {
		put(v, "TORCHELASTIC_RESTART_COUNT", "the generation", "%u", extras->restarts_in_step);
		put(v, "TORCHELASTIC_MAX_RESTARTS", "restart=", "%u", settings->restarts);
		put(v, "DDP_JOINS", "the generation", "%u", extras->joins);
	}
	put(v, "DDP_NODE_NAME", "SLURMD_NODENAME", "%s", id->node_name);
	put(v, "DDP_ON_FAILURE", "on-failure", "%s", settings->kill_on_failure ? "kill" : "continue");
	put(v, "DDP_KEY", "srun, at random", STEP_KEY "%s", extras->key);
	if (extras->progress_fd >= 0)
		put(v, "DDP_PROGRESS_FD", "the plugin", "%d", extras->progress_fd);
	else
		take_out(v, "DDP_PROGRESS_FD", "no memory file");
	put_watch(v, settings, extras);
	put_nccl_net(v, settings, extras);
	put_python(v, settings, extras);
	put_told(v, settings);
}

uint32_t cpus_of_task(const struct cpu_facts *facts)
{
	bool asked = facts->per_task > 1 || (facts->per_task == 1 && facts->asked == 1);
	uint32_t cpus = facts->share > facts->per_task ? facts->share : facts->per_task;

	if (asked && facts->per_task < cpus)
		cpus = facts->per_task;
	if (facts->bound > 0 && facts->bound < cpus)
		cpus = facts->bound;
	return cpus;
}

/* A number of threads that the user has set stays, unless --ddp says omp=. */
static void put_threads(struct variables *v, const struct settings *settings,
                        const struct task_extras *extras)
{
	const char *present = environment_get(extras->environment, "OMP_NUM_THREADS");

	if (settings->omp != OMP_KEEP && !option_given(settings, "omp") && extras->user_threads != NULL) {
		/* A container's plugin may have put its own there. */
		if (present == NULL || strcmp(present, extras->user_threads) != 0)
			put(v, "OMP_NUM_THREADS", "the user", "%s", extras->user_threads);
		return;
	}
	if (settings->omp == OMP_KEEP)
		return;
	if (settings->omp == OMP_ONE)
		put(v, "OMP_NUM_THREADS", "omp=1", "1");
	else if (extras->cpus > 0)
		put(v, "OMP_NUM_THREADS", "omp=cpus", "%u", extras->cpus);
}

/* Returns the value that the user has set. A container's plugin may have changed the number of
   threads since. */
static const char *value_of_user(const struct task_extras *extras, const char *name)
{
	return strcmp(name, "OMP_NUM_THREADS") == 0 ? extras->user_threads
	                                            : environment_get(extras->environment, name);
}

/* srun, sbatch and salloc take the plugin's own values out again where a task starts them,
   and leave what the user has set (launch_leave_step()). */
static void put_derived(struct variables *v, const struct task_extras *extras)
{
	char text[VARIABLES_TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));

	for (int i = 0; i < v->count; i++) {
		const struct variable *variable = &v->item[i];
		if (variable->value == NULL || name_find(variable->name)->kind != NAME_CHOICE)
			continue;
		const char *own = value_of_user(extras, variable->name);
		if (own == NULL || strcmp(own, variable->value) != 0)
			sink_add(&sink, "%s%s=%s", sink.used > 0 ? DERIVED_SEPARATOR : "", variable->name,
			         variable->value);
	}
	if (sink.full)
		v->overflow = true;
	else if (sink.used > 0)
		put(v, "DDP_DERIVED", "the plugin", "%s", text);
}

static bool holds_for_one_step(enum name_kind kind)
{
	return kind != NAME_CHOICE && kind != NAME_SLURM && kind != NAME_RENUMBERED && kind != NAME_LIST;
}

static void clear(struct variables *variables)
{
	variables->count = 0;
	variables->used = 0;
	variables->overflow = false;
	variables->unlisted = NULL;
}

/* Whose environment it is. */
struct leaver {
	bool in_step;        /* of a task of a step of --ddp */
	bool without_plugin; /* of such a task, on a node without the plugin */
	const char *derived; /* DDP_DERIVED, or NULL */
};

static bool is_of_another_step(const struct leaver *leaver, const struct name *name, const char *value)
{
	switch (name->kind) {
	case NAME_RANK:
	case NAME_TORCHRUN:
		return leaver->in_step || strcmp(value, PLUGIN_IS_ABSENT) == 0;
	case NAME_STEP:
		/* A step's key goes also where a program has kept nothing else of the step. */
		return leaver->in_step || leaver->without_plugin || value == leaver->derived ||
		       (strcmp(name->text, "DDP_KEY") == 0 && strncmp(value, STEP_KEY, strlen(STEP_KEY)) == 0);
	case NAME_CHOICE:
		return name_is_derived(leaver->derived, name->text, value);
	case NAME_SLURM:
		return leaver->in_step || leaver->without_plugin;
	case NAME_RENUMBERED:
		return false;
	case NAME_LIST:
		return false;
	case NAME_HANDOVER:
		return true;
	}
	return false;
}

void environment_leave_step(struct variables *variables, char *const *environment)
{
	struct leaver leaver = { .in_step = environment_get(environment, "DDP_STEP_ID") != NULL,
		                 .without_plugin = environment_get(environment, "SLURM_DDP_KEY") != NULL,
		                 .derived = environment_get(environment, "DDP_DERIVED") };
	const struct name *name;

	clear(variables);
	for (int i = 0; (name = name_at(i)) != NULL; i++) {
		const char *value = environment_get(environment, name->text);
		if (value != NULL && is_of_another_step(&leaver, name, value))
			take_out(variables, name->text, "of another step");
	}
}

void environment_clear(struct variables *variables)
{
	const struct name *name;

	clear(variables);
	for (int i = 0; (name = name_at(i)) != NULL; i++)
		if (holds_for_one_step(name->kind))
			take_out(variables, name->text, "not of this step");
}

static bool nothing_is_lost(const struct variables *variables, struct error *error)
{
	if (variables->unlisted != NULL)
		return error_set(error, "%s is not in the plugin's list of variables", variables->unlisted);
	return !variables->overflow ||
	       error_set(error, "the task's variables are longer than %d bytes", VARIABLES_TEXT_MAX);
}

bool environment_build(struct variables *variables, const struct identity *identity,
                       const struct settings *settings, const struct task_extras *extras,
                       struct error *error)
{
	if (!deal_is_key(extras->key))
		return error_set(error, "srun has handed on no key for the step: SLURM_DDP_KEY is %s",
		                 extras->key != NULL ? "not what it made" : "missing");
	environment_clear(variables);
	for (int i = 0; settings->launcher && name_at(i) != NULL; i++)
		if (name_at(i)->kind == NAME_RANK)
			take_out(variables, name_at(i)->text, TORCHRUN);
	if (settings->launcher && !one_task_per_node(identity))
		return error_set(error, "launcher is for one torchrun per node, but the step has %u tasks on "
		                 "%u nodes: set --ntasks-per-node=1, or leave launcher out",
		                 identity->world_size, identity->node_count);
	if (!settings->launcher)
		put_ranks(variables, identity, extras);
	/* Without `launcher`, too: a torchrun that is not told would make a world of
	   each node, and a program of another kind does not look at these. */
	if (one_task_per_node(identity))
		put_torchrun(variables, identity, extras);
	put_own(variables, identity, settings, extras);
	if (!settings->launcher) {
		put_threads(variables, settings, extras);
		put_jax_devices(variables, extras);
	}
	put_derived(variables, extras);
	return nothing_is_lost(variables, error);
}

void room_find(struct room *room, char *const *environment, const struct variables *variables)
{
	room->count = 0;
	for (int i = 0; i < variables->count; i++) {
		const char *name = variables->item[i].name, *now = environment_get(environment, name);
		if (variables->item[i].value != NULL || now == NULL)
			continue;
		room->name[room->count] = name;
		room->text[room->count++] = (char *)now - strlen(name) - 1;
	}
}

static bool take_place(struct room *room, const char *name, const char *value)
{
	const size_t name_length = strlen(name), value_bytes = strlen(value) + 1;

	for (int i = 0; i < room->count; i++) {
		char *text = room->text[i];
		if (text == NULL || strlen(text) < name_length + value_bytes)
			continue;
		memcpy(text, name, name_length);
		text[name_length] = '=';
		memcpy(text + name_length + 1, value, value_bytes);
		room->text[i] = NULL;
		return true;
	}
	return false;
}

bool room_put(struct room *room, char *const *environment, const char *name, const char *value)
{
	char *now = (char *)environment_get(environment, name);

	if (now == NULL)
		return take_place(room, name, value);
	if (strlen(now) < strlen(value))
		return false;
	memmove(now, value, strlen(value) + 1);
	return true;
}
