/* SPDX-License-Identifier: Apache-2.0 */
/* Who a task is, from what slurmstepd knows of its step. Pure: the shell
   collects the facts, tests make them up. Never a guess: facts that
   contradict each other are an error. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/options/options.h"

/* The port of rank 0's listener. Pure, but for port_probe(). */

/* The first port of SLURM_STEP_RESV_PORTS, such as "12000-12003,12010". */
bool port_from_reservation(const char *text, uint16_t *port, struct error *error);

/* Returns the port behind so many others of the list. Behind the last one comes the first one again. 0: the text is no
   list of ports. */
uint16_t port_of_reservation(const char *text, uint32_t skipped);

/* A port in [low, high] that all tasks of the step agree on: steps of one job
   get different ports as long as their ids differ by less than the range. */
uint16_t port_from_hash(uint32_t job_id, uint32_t step_id, uint32_t restart_count,
                        uint16_t low, uint16_t high);

/* Whether the kernel may hand the port to an outgoing connection. The texts
   are those of /proc/sys/net/ipv4/ip_local_port_range ("32768 60999") and
   ip_local_reserved_ports ("8080,20000-29999" or ""), which exempts ports. */
bool port_is_ephemeral(uint16_t port, const char *local_range, const char *reserved);

/* Whether a listener can have the port here and now, on any address. */
bool port_probe(uint16_t port, struct error *error);

struct step_facts {
	/* SPANK items; of a heterogeneous step they describe one component. */
	uint32_t job_id, step_id, restart_count;
	uint32_t node_id, node_count;
	uint32_t local_tasks, total_tasks;
	uint32_t local_id, global_id;
	bool holds_task_zero; /* the node runs the step's (component's) task 0 */
	/* With restart=, these facts and the environment are those of a generation, except job_id, step_id and
	   restart_count. */
	uint32_t restarts_in_step; /* before the generation */
	uint32_t port_seed;        /* moves the port */
	uint32_t joins;            /* the generation, if its task joins ranks that have stayed; otherwise 0 */
	const char *master_node;   /* rank 0's; NULL: the list tells it */
	/* The task's environment as slurmstepd made it, NULL-terminated. */
	char *const *environment;
};

struct identity {
	uint32_t job_id, step_id, restart_count; /* job_id: the leader's */
	uint32_t rank, world_size;
	uint32_t local_rank, local_world_size;
	uint32_t node_rank, node_count;
	bool heterogeneous;       /* the step spans components */
	bool holds_rank_zero;     /* rank 0 runs on this node */
	bool spare;               /* the task waits: rank, world_size and node_count are those of the others */
	char node_name[HOST_NAME_MAX_BYTES];
	char master_node[HOST_NAME_MAX_BYTES]; /* NodeName of rank 0's node */
	uint16_t master_port;
	bool port_hashed;
	bool port_reserved;        /* by SLURM */
	const char *node_source, *port_source; /* for people */
};

/* The value of a variable, or NULL. */
const char *environment_get(char *const *environment, const char *name);

/* Whether the step, by its environment, has more tasks than this component. */
bool step_spans_components(char *const *environment, uint32_t component_tasks);

/* A dry run with spare= shows who the task is in the first generation, as srun will deal it. */
void identity_without_spares(struct identity *identity, const struct settings *settings);

bool identity_derive(const struct step_facts *facts, const struct settings *settings,
                     struct identity *identity, struct error *error);

/* ---- which GPUs a task sees, and whether that suits one task per GPU ---- */

/* How the GPUs of a node are parted among its tasks. */
enum gpu_binding {
	GPU_COMMON,  /* all tasks see the same ones */
	GPU_OWN,     /* each task sees its own only */
	GPU_OVERLAP, /* a task sees some, which others may see, too */
};

struct gpu_view {
	uint32_t visible;   /* devices that the task sees; 0: none, or not known */
	enum gpu_binding binding;
	const char *asked;  /* the binding in Slurm's words, of the environment; NULL: none */
	int device;         /* the task's device among the visible ones, -1: none, or not known */
};

enum gpu_verdict { GPU_FINE, GPU_NOTE, GPU_MISMATCH };

struct gpu_view gpu_view_of(char *const *environment, uint32_t local_rank, uint32_t local_world_size);

/* A note or a mismatch comes with a sentence. */
enum gpu_verdict gpu_judge(const struct gpu_view *view, uint32_t local_world_size, bool launcher,
                           struct error *sentence);
