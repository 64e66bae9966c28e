/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a step lack the plugin, as srun sees it. Slurm tells srun of each node
   that has started its tasks, and the plugin there reports before its first program runs,
   and again until srun answers. A node that has started tasks and does not report lacks the
   plugin, or has an older one, which does not report, or cannot reach srun's port.
   presence_, releases_ and silence_ functions are pure: the caller brings tasks and time. Only the last two functions,
   presence_tasks_of_table() and presence_read_table(), look at srun's own memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/srun/links.h"

struct presence_policy {
	bool refuse; /* absent=refuse: such a node ends the step */
	bool unsure; /* a plugin before this one may still be preparing the tasks */
	bool check;  /* a dry run: nothing runs on such a node */
	uint16_t port; /* where srun listens, for the sentence; 0: nowhere */
};

struct presence_task {
	char *host;    /* where Slurm has started it; NULL: not yet */
	bool reported; /* its node has reported by this task */
};

struct presence {
	struct presence_policy policy;
	struct presence_task *task; /* by rank; NULL: no step yet */
	char **names;            /* of nodes that have reported, sorted, each once */
	uint32_t tasks, started, reports, name_count;
	uint32_t unplaced;       /* tasks whose node has reported by them and that have no host yet */
	uint32_t nodes, silent;  /* nodes that have started tasks, and silent ones, at the last count */
	bool grown;              /* tasks have started since that count */
	bool changed;            /* tasks have started, or nodes have reported, since that count */
	uint64_t begin_ns, changed_ns; /* when tasks were last seen to start */
	bool said;
};

/* A step with so many tasks, of all its components. False without memory for it. */
bool presence_begin(struct presence *presence, uint32_t tasks, uint64_t now_ns);
void presence_end(struct presence *presence);

/* A node has sent an authenticated message, of whatever kind. The message tells the rank of one of
   its tasks (UINT32_MAX: it does not) and the node's name ("": it does not). */
void presence_report(struct presence *presence, uint32_t rank, const char *node);

/* Slurm has started the task on that host: the node's name, or its address if slurm.conf says
   LaunchParameters=mpir_use_nodeaddr. Any other text is not taken. */
void presence_start(struct presence *presence, uint32_t rank, const char *host, uint64_t now_ns);

/* When to look at what Slurm has started again; UINT64_MAX: all nodes are there, or one that
   is not was said. */
uint64_t presence_due(struct presence *presence, uint64_t now_ns);

/* Whether nodes have been silent for so long that it is to be said, which is once. */
bool presence_is_late(struct presence *presence, uint64_t now_ns);

/* Until when a node that has not reported may be about to tell of its first end, if each has so long after
   `asked_ns`, or after the start of the last task; 0: all have reported, or it was said that some do not. */
uint64_t presence_untold_until(struct presence *presence, uint64_t asked_ns, uint64_t wait_ns);

/* How many nodes have started tasks and not reported, and whether any node has reported. None
   while srun does not know yet where a task has started whose node has reported by it. */
uint32_t presence_silent(struct presence *presence, bool *any_reported);

/* The nodes of a step of which srun has heard nothing: no task has started there, and none has reported. Returns how
   many of `nodes` these are, and adds their names if the list is that of the step's nodes; otherwise none is added.
   */
uint32_t presence_unstarted(const struct presence *presence, uint32_t nodes, const char *list, struct sink *names);

/* Whether SLURM has given up the launch because tasks have not started for ten minutes. */
bool presence_launch_timed_out(const struct presence *presence, uint64_t now_ns);

/* Whether the step still runs, or has ended with all tasks' success or without. */
enum presence_state { PRESENCE_RUNS, PRESENCE_FAILED, PRESENCE_SUCCEEDED };

/* Adds which ranks Slurm has started on the same node as this one, as "ranks 4-5"; false if that is not known. */
bool presence_add_ranks(const struct presence *presence, uint32_t rank, struct sink *sink);

/* At the end: what is to be said of nodes without the plugin now that the step has ended, with success or not; false:
   nothing. `refuse`: the step counts as failed. */
bool presence_has_silent(struct presence *presence, bool succeeded, struct sink *sink, bool *refuse);

/* The sentence about the silent nodes. */
void presence_describe(struct presence *presence, enum presence_state state, struct sink *sink);

/* Which nodes of a step have a plugin of another release than srun's, as while a site's nodes are upgraded. Pure;
   nothing is allocated. */
enum { RELEASES_NAMED = 8, RELEASE_BYTES = 32 };

struct releases {
	struct {
		char node[HOST_NAME_MAX_BYTES], release[RELEASE_BYTES];
	} named[RELEASES_NAMED]; /* the first ones */
	uint32_t count; /* of those that are named */
	bool more;      /* there are others */
};

/* A node has told its release, in an authenticated message, so both texts are only printed with care. `bytes`: of the
   release, which may lack an end. A node's second message changes nothing. */
void releases_note(struct releases *releases, const char *own, const char *node, const char *release, size_t bytes);

/* Adds the sentence about these nodes. False: all have srun's own release. */
bool releases_describe(const struct releases *releases, const char *own, struct sink *sink);

/* srun says these sentences of nodes that have fallen silent. Pure. */

/* "node n2 (ranks 4-5) has been silent for 5.0 s: ..." */
void silence_describe(const struct links_node *node, const struct presence *presence, uint64_t now_ns,
                      struct sink *sink);

/* Says that all nodes are silent at once, and on which host srun runs. */
void silence_describe_all(const struct links *links, uint64_t now_ns, struct sink *sink);

/* Whether nothing is left of the step except silent nodes: all of its nodes have opened a link, at least one is silent,
   and the others' tasks have ended. */
bool silence_is_all_that_is_left(const struct links *links, const struct presence *presence);

/* No callback of a plugin tells which tasks Slurm has started, but srun keeps a table of the tasks for debuggers
   (MPIR_proctable of the MPIR interface). These two functions find it by dlsym(), and read it by process_vm_readv(). */

/* How many tasks the step has, over all components; 0: srun does not know yet, or has no
   table. */
uint32_t presence_tasks_of_table(void);

/* Tells presence_start() of what is new. Safe while srun changes or frees the table; does
   nothing where there is none. */
void presence_read_table(struct presence *presence, uint64_t now_ns);
