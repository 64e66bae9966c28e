/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/identity.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Reads a port number; returns what stands behind it, NULL if there is none. */
static const char *read_one(const char *text, uint32_t *port)
{
	char *end;
	unsigned long number;

	if (*text < '0' || *text > '9')
		return NULL;
	errno = 0;
	number = strtoul(text, &end, 10);
	if (errno != 0 || number > 65535)
		return NULL;
	*port = (uint32_t)number;
	return end;
}

bool port_from_reservation(const char *text, uint16_t *port, struct error *error)
{
	uint32_t first;
	const char *end = read_one(text, &first);

	if (end == NULL || first == 0 || (*end != '\0' && *end != '-' && *end != ','))
		return error_set(error, "SLURM_STEP_RESV_PORTS='%.80s' is not a list of ports", text);
	*port = (uint16_t)first;
	return true;
}

/* Returns how many ports an item such as "12000-12003" or "12010" has; 0: the text is no item. Sets what stands behind
   the item. */
static uint32_t read_ports(const char *text, uint32_t *low, const char **behind)
{
	const char *end = read_one(text, low);
	uint32_t high = end != NULL ? *low : 0;

	if (end != NULL && *end == '-')
		end = read_one(end + 1, &high);
	*behind = end;
	return end != NULL && *low > 0 && high >= *low && (*end == '\0' || *end == ',') ? high - *low + 1 : 0;
}

uint16_t port_of_reservation(const char *text, uint32_t skipped)
{
	uint32_t total = 0, count, low = 0;

	for (int pass = 0; pass < 2; pass++) {
		const char *behind;
		for (const char *p = text; (count = read_ports(p, &low, &behind)) > 0; p = behind + 1) {
			if (pass == 1 && skipped < count)
				return (uint16_t)(low + skipped);
			if (pass == 0)
				total += count;
			else
				skipped -= count;
			if (*behind == '\0')
				break;
		}
		if (count == 0)
			return 0;
		if (pass == 0)
			skipped %= total;
	}
	return 0;
}

/* The finalizer of SplitMix64 (Steele et al., OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint16_t port_from_hash(uint32_t job_id, uint32_t step_id, uint32_t restart_count,
                        uint16_t low, uint16_t high)
{
	uint64_t span = (uint64_t)(high - low) + 1;
	uint64_t start = mix((uint64_t)job_id << 32 | restart_count) % span;

	return (uint16_t)(low + (start + step_id) % span);
}

static bool list_has(const char *list, uint16_t port)
{
	const char *p = list;

	while (*p != '\0') {
		uint32_t low, high;
		const char *end = read_one(p, &low);
		if (end == NULL)
			return false;
		high = low;
		if (*end == '-') {
			end = read_one(end + 1, &high);
			if (end == NULL)
				return false;
		}
		if (port >= low && port <= high)
			return true;
		p = end + strspn(end, ", \n");
	}
	return false;
}

bool port_is_ephemeral(uint16_t port, const char *local_range, const char *reserved)
{
	uint32_t low, high;
	const char *end = read_one(local_range, &low);

	if (end == NULL || read_one(end + strspn(end, " \t"), &high) == NULL)
		return false;
	return port >= low && port <= high && !list_has(reserved, port);
}

/* 0, or the errno of the attempt. Like a server, it overlooks TIME_WAIT. */
static int try_bind(int family, const struct sockaddr *address, socklen_t bytes)
{
	const int yes = 1;
	int reason = 0;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    (family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) < 0) ||
	    bind(fd, address, bytes) < 0 || listen(fd, 1) < 0)
		reason = errno;
	close(fd);
	return reason;
}

bool port_probe(uint16_t port, struct error *error)
{
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port),
	                             .sin6_addr = in6addr_any };
	int reason = try_bind(AF_INET, (struct sockaddr *)&any4, sizeof(any4));

	if (reason == 0) {
		reason = try_bind(AF_INET6, (struct sockaddr *)&any6, sizeof(any6));
		if (reason == EAFNOSUPPORT || reason == EADDRNOTAVAIL)
			reason = 0;
	}
	if (reason != 0)
		return error_set(error, "%s", strerror(reason));
	return true;
}

enum { HET_GROUPS_MAX = 128, LEADER_TRIES_MAX = 4096 };

const char *environment_get(char *const *environment, const char *name)
{
	size_t length = strlen(name);

	for (; environment != NULL && *environment != NULL; environment++)
		if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

static bool read_count(const struct step_facts *facts, const char *name, uint32_t *number,
                       struct error *error)
{
	const char *text = environment_get(facts->environment, name);
	unsigned long value;
	char *end;

	if (text == NULL)
		return error_set(error, "%s is not in the task's environment", name);
	errno = 0;
	value = strtoul(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
		return error_set(error, "%s='%.40s' is not a number", name, text);
	*number = (uint32_t)value;
	return true;
}

/* slurmstepd knows its own component of a heterogeneous step only; the ranks
   of the whole step are in the environment that it made. */
static bool read_whole_step(const struct step_facts *facts, struct identity *identity,
                            struct error *error)
{
	return read_count(facts, "SLURM_PROCID", &identity->rank, error) &&
	       read_count(facts, "SLURM_STEP_NUM_TASKS", &identity->world_size, error) &&
	       read_count(facts, "SLURM_NODEID", &identity->node_rank, error) &&
	       read_count(facts, "SLURM_STEP_NUM_NODES", &identity->node_count, error) &&
	       read_count(facts, "SLURM_JOB_ID", &identity->job_id, error);
}

/* Whether the step spans components: it then has more tasks than this one. */
static bool read_ranks(const struct step_facts *facts, struct identity *identity,
                       struct error *error)
{
	uint32_t procid, tasks = facts->total_tasks;

	if (!read_count(facts, "SLURM_PROCID", &procid, error))
		return false;
	if (environment_get(facts->environment, "SLURM_STEP_NUM_TASKS") != NULL &&
	    !read_count(facts, "SLURM_STEP_NUM_TASKS", &tasks, error))
		return false;
	identity->heterogeneous = tasks > facts->total_tasks;
	identity->holds_rank_zero = facts->holds_task_zero && procid == facts->global_id;
	if (identity->heterogeneous)
		return read_whole_step(facts, identity, error);
	if (procid != facts->global_id || tasks != facts->total_tasks)
		return error_set(error, "Slurm says rank %u of %u, but the environment says SLURM_PROCID=%u "
		                 "and SLURM_STEP_NUM_TASKS=%u", facts->global_id, facts->total_tasks, procid,
		                 tasks);
	return true;
}

static bool check_counts(const struct identity *identity, struct error *error)
{
	if (identity->world_size == 0 || identity->rank >= identity->world_size)
		return error_set(error, "Slurm gives rank %u in a step of %u tasks", identity->rank,
		                 identity->world_size);
	if (identity->local_rank >= identity->local_world_size ||
	    identity->local_world_size > identity->world_size)
		return error_set(error, "Slurm gives local rank %u of %u in a step of %u tasks",
		                 identity->local_rank, identity->local_world_size, identity->world_size);
	if (identity->node_count == 0 || identity->node_rank >= identity->node_count)
		return error_set(error, "Slurm gives node %u in a step of %u nodes", identity->node_rank,
		                 identity->node_count);
	return true;
}

static bool copy_host(char host[HOST_NAME_MAX_BYTES], const char *text, const char *name,
                      struct error *error)
{
	size_t length = text != NULL ? strlen(text) : 0;

	if (length == 0 || length >= HOST_NAME_MAX_BYTES)
		return error_set(error, "%s is missing or no host name", name);
	memcpy(host, text, length + 1);
	return true;
}

struct leader {
	const char *step_list;
	char *host;
	int tried;
	bool found;
};

static bool take_if_in_step(void *user, const char *host)
{
	struct leader *leader = user;

	leader->found = nodelist_has(leader->step_list, host);
	if (leader->found)
		memcpy(leader->host, host, strlen(host) + 1);
	return !leader->found && ++leader->tried < LEADER_TRIES_MAX;
}

/* Rank 0 of a step over components is in the lowest of them. A heterogeneous
   job names their nodes (PACK_GROUP is what older releases, and a plain srun,
   call them); of a step made heterogeneous by ':' alone only the list is known. */
static bool find_leader(const struct step_facts *facts, const char *list,
                        struct identity *identity, struct error *error)
{
	struct leader leader = { .step_list = list, .host = identity->master_node };
	char name[48];

	for (int group = 0; group < HET_GROUPS_MAX && !leader.found; group++) {
		snprintf(name, sizeof(name), "SLURM_JOB_NODELIST_HET_GROUP_%d", group);
		const char *nodes = environment_get(facts->environment, name);
		if (nodes == NULL) {
			snprintf(name, sizeof(name), "SLURM_JOB_NODELIST_PACK_GROUP_%d", group);
			nodes = environment_get(facts->environment, name);
		}
		if (nodes == NULL)
			break;
		if (!nodelist_walk(nodes, take_if_in_step, &leader, error))
			return false;
	}
	identity->node_source = "first node of the step's lowest component";
	return leader.found || nodelist_first(list, identity->master_node, error);
}

/* Which node runs rank 0. The step's list is sorted, so its first host is that
   node unless the user laid the tasks out by hand. */
static bool find_master(const struct step_facts *facts, struct identity *identity,
                        struct error *error)
{
	const char *list = environment_get(facts->environment, "SLURM_STEP_NODELIST");
	const char *first = environment_get(facts->environment, "SLURM_DDP_FIRST_HOST");
	const char *distribution = environment_get(facts->environment, "SLURM_DISTRIBUTION");
	uint32_t count;
	bool named;

	if (list == NULL)
		return error_set(error, "SLURM_STEP_NODELIST is not in the task's environment");
	if (!nodelist_count(list, &count, error))
		return false;
	named = nodelist_has(list, identity->node_name);
	if (count != identity->node_count || !named)
		return error_set(error, "SLURM_STEP_NODELIST='%.80s' is not the list of this step: it has "
		                 "%u hosts %s '%.60s', the step has %u nodes; was the variable changed?",
		                 list, count, named ? "with" : "without", identity->node_name,
		                 identity->node_count);
	if (facts->master_node != NULL) {
		identity->node_source = "srun, for this generation";
		return copy_host(identity->master_node, facts->master_node, "rank 0's node", error);
	}
	if (identity->heterogeneous)
		return find_leader(facts, list, identity, error);
	if (first != NULL && distribution != NULL && strncmp(distribution, "arbitrary", 9) == 0) {
		identity->node_source = "the first host of SLURM_HOSTFILE";
		if (!nodelist_has(list, first))
			return error_set(error, "SLURM_HOSTFILE begins with '%.60s', which is not a node of the "
			                 "step (%.80s)", first, list);
		return copy_host(identity->master_node, first, "SLURM_DDP_FIRST_HOST", error);
	}
	identity->node_source = "the first host of SLURM_STEP_NODELIST";
	return nodelist_first(list, identity->master_node, error);
}

/* Only rank 0's node can tell, and the node that was taken for it. */
static bool self_check(const struct identity *identity, struct error *error)
{
	bool named = strcmp(identity->node_name, identity->master_node) == 0;

	if (named == identity->holds_rank_zero)
		return true;
	return error_set(error, "rank 0 %s on %.60s, but %s is %.60s: with -m arbitrary, give the hosts "
	                 "in a SLURM_HOSTFILE; else leave rank 0 on the first node of the sorted list",
	                 identity->holds_rank_zero ? "runs" : "does not run", identity->node_name,
	                 identity->node_source, identity->master_node);
}

static bool choose_port(const struct step_facts *facts, const struct settings *settings,
                        struct identity *identity, struct error *error)
{
	const char *reserved = environment_get(facts->environment, "SLURM_STEP_RESV_PORTS");
	bool fixed = option_given(settings, "port") || settings->port_low == settings->port_high;

	/* The components of a heterogeneous step reserve ports of their own. */
	if (reserved != NULL && reserved[0] != '\0' && !fixed && !identity->heterogeneous) {
		identity->port_source = "reserved by Slurm";
		identity->port_reserved = true;
		if (facts->port_seed == 0 || (identity->master_port = port_of_reservation(reserved, facts->port_seed)) == 0)
			return port_from_reservation(reserved, &identity->master_port, error);
		return true;
	}
	identity->port_hashed = settings->port_low != settings->port_high;
	identity->port_source = identity->port_hashed ? "hash of job, step and restart" : "port=";
	identity->master_port = port_from_hash(identity->job_id, identity->step_id,
	                                       identity->restart_count + facts->port_seed,
	                                       settings->port_low, settings->port_high);
	return true;
}

/* Slurm 22.05 knows a restart count in the batch script's step alone; the steps
   that srun starts from the script inherit the variable, which is set from the
   first restart on. */
static bool read_restarts(const struct step_facts *facts, struct identity *identity,
                          struct error *error)
{
	if (identity->restart_count > 0 ||
	    environment_get(facts->environment, "SLURM_RESTART_COUNT") == NULL)
		return true;
	return read_count(facts, "SLURM_RESTART_COUNT", &identity->restart_count, error);
}

bool step_spans_components(char *const *environment, uint32_t component_tasks)
{
	const struct step_facts facts = { .environment = environment };
	struct error ignored;
	uint32_t tasks;

	return read_count(&facts, "SLURM_STEP_NUM_TASKS", &tasks, &ignored) && tasks > component_tasks;
}

bool identity_derive(const struct step_facts *facts, const struct settings *settings,
                     struct identity *identity, struct error *error)
{
	*identity = (struct identity){
		.job_id = facts->job_id,
		.step_id = facts->step_id,
		.restart_count = facts->restart_count,
		.rank = facts->global_id,
		.world_size = facts->total_tasks,
		.local_rank = facts->local_id,
		.local_world_size = facts->local_tasks,
		.node_rank = facts->node_id,
		.node_count = facts->node_count,
	};
	if (!read_ranks(facts, identity, error) || !read_restarts(facts, identity, error) ||
	    !copy_host(identity->node_name, environment_get(facts->environment, "SLURMD_NODENAME"),
	               "SLURMD_NODENAME", error) ||
	    !check_counts(identity, error) || !find_master(facts, identity, error) ||
	    !self_check(identity, error) || !choose_port(facts, settings, identity, error))
		return false;
	/* A program counts both kinds of restarts alike. */
	identity->restart_count += facts->restarts_in_step;
	return true;
}

void identity_without_spares(struct identity *identity, const struct settings *settings)
{
	uint32_t nodes = identity->node_count, tasks = identity->local_world_size;

	if (settings->restarts == 0 || settings->spares == 0 || settings->spares >= nodes ||
	    identity->world_size != nodes * tasks)
		return;
	identity->node_count = nodes - settings->spares;
	identity->world_size = identity->node_count * tasks;
	identity->spare = identity->node_rank >= identity->node_count;
	/* If Slurm has dealt tasks to one node after the other, the spares leave gaps in the ranks. */
	if (tasks > 1 && identity->rank == identity->local_rank * nodes + identity->node_rank)
		identity->rank = identity->local_rank * identity->node_count + identity->node_rank;
}

static uint32_t count_devices(const char *list)
{
	uint32_t count = 1;

	/* Slurm's word for an allocation without GPUs. */
	if (list == NULL || list[0] == '\0' || strcmp(list, "NoDevFiles") == 0 ||
	    strcmp(list, "-1") == 0)
		return 0;
	for (const char *p = list; *p != '\0'; p++)
		count += *p == ',';
	return count;
}

/* Returns the text that tells how the GPUs are bound, such as "per_task:1"; NULL: they are not.
   slurmstepd's own word comes first, since a step may ask for another binding
   than the job whose variables it inherits. */
static const char *find_binding(char *const *environment)
{
	const char *resources = environment_get(environment, "SLURMD_TRES_BIND");
	const char *kind = environment_get(environment, "SLURM_GPU_BIND");

	if (resources == NULL)
		resources = environment_get(environment, "SLURM_TRES_BIND");
	if (resources != NULL) {
		/* Such as "gpu:KIND", "gres/gpu:KIND"; other resources beside it. */
		kind = strstr(resources, "gpu:");
		kind = kind != NULL ? kind + 4 : NULL;
	} else if (kind == NULL && environment_get(environment, "SLURM_GPUS_PER_TASK") != NULL) {
		kind = "per_task";
	}
	if (kind != NULL && strncmp(kind, "verbose,", 8) == 0)
		kind += 8;
	return kind == NULL || kind[0] == '\0' || strncmp(kind, "none", 4) == 0 ? NULL : kind;
}

static enum gpu_binding judge_binding(const char *asked, uint32_t visible, const char *on_node)
{
	if (asked == NULL)
		return GPU_COMMON;
	if (strncmp(asked, "per_task", 8) == 0)
		return GPU_OWN;
	/* single:N is N tasks on each GPU. */
	if (strncmp(asked, "single:", 7) == 0 && strtoul(asked + 7, NULL, 10) > 1)
		return GPU_OVERLAP;
	if (visible == 1)
		return GPU_OWN;
	/* Such as closest, where all GPUs are close to all tasks. */
	return on_node != NULL && strtoul(on_node, NULL, 10) == visible ? GPU_COMMON : GPU_OVERLAP;
}

struct gpu_view gpu_view_of(char *const *environment, uint32_t local_rank, uint32_t local_world_size)
{
	static const char *const lists[] = { "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
		                             "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK" };
	struct gpu_view view = { .device = -1 };

	for (int i = 0; i < 4 && view.visible == 0; i++)
		view.visible = count_devices(environment_get(environment, lists[i]));
	if (view.visible == 0)
		return view;
	if (local_world_size > 1) {
		view.asked = find_binding(environment);
		view.binding = judge_binding(view.asked, view.visible,
		                             environment_get(environment, "SLURM_GPUS_ON_NODE"));
	}
	/* A single task that sees several may be a launcher, whose ranks would all
	   take the one device. */
	if (view.binding == GPU_COMMON && (local_world_size > 1 || view.visible == 1))
		view.device = (int)(local_rank % view.visible);
	else if (view.binding == GPU_OWN || view.visible == 1)
		view.device = 0;
	return view;
}

enum gpu_verdict gpu_judge(const struct gpu_view *view, uint32_t local_world_size, bool launcher,
                           struct error *sentence)
{
	if (view->visible == 0 || launcher)
		return GPU_FINE;
	if (view->binding == GPU_OVERLAP) {
		error_set(sentence, "--gpu-bind=%.60s lets tasks share GPUs, and of the %u that a task sees "
		          "none is known to be its own%s: use --gpus-per-node alone, or "
		          "--gpu-bind=per_task:1", view->asked, view->visible,
		          view->device < 0 ? ", so DDP_LOCAL_DEVICE is not set" : "");
		return GPU_MISMATCH;
	}
	if (view->binding == GPU_OWN) {
		error_set(sentence, "each task sees GPUs of its own (%u), numbered from 0: select device "
		          "DDP_LOCAL_DEVICE, not LOCAL_RANK, or ask for --gpus-per-node instead of "
		          "--gpus-per-task, which also lets the GPUs of a node talk directly", view->visible);
		return GPU_NOTE;
	}
	if (view->visible < local_world_size) {
		error_set(sentence, "%u tasks share %u GPUs on this node: set --ntasks-per-node=%u, or "
		          "more GPUs with --gpus-per-node", local_world_size, view->visible, view->visible);
		return GPU_MISMATCH;
	}
	if (view->visible > local_world_size) {
		error_set(sentence, "%u of %u GPUs on this node have no task: set --ntasks-per-node=%u, "
		          "or --ddp=launcher for one torchrun per node",
		          view->visible - local_world_size, view->visible, view->visible);
		return GPU_MISMATCH;
	}
	return GPU_FINE;
}
