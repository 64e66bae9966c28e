/* SPDX-License-Identifier: Apache-2.0 */
/* A node's side when a task ends: what it tells srun, and what it does itself if
   srun does not answer. It runs in slurmstepd, as root. libc only. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/node/flight.h"
#include "spank/node/link.h"
#include "spank/node/supervise.h"
#include "spank/wire/judge.h"
#include "spank/wire/relay.h"

struct node {
	struct supervise supervise;
	struct relay relay; /* where srun listens */
	bool kill_on_failure;
	bool launcher;      /* the tasks are launchers */
	uint32_t stall_seconds; /* of stall=; 0: nobody looks for a stall */
	uint32_t silence_ms; /* of silence=; 0: there is no link to srun */
	struct link link;    /* made and served by the thread of ends.h */
	uint32_t node_id;
	/* Takes srun's frames, in that thread, with the lock of ends.h; or NULL. */
	void (*take_frame)(void *about, const struct frame *frame);
	void *about_frames;
	uint64_t report_ns; /* when to tell srun again that the node has the plugin; 0: not set yet */
	uint64_t reported_ns; /* when slurmstepd last did so; 0: never */
	uint32_t report_looks;
	atomic_bool witness_lost; /* somebody other than Slurm has killed the witness and its keeper */
	bool told_later, told_hearsay, told_cause; /* by what the verdict was */
	struct flight flight; /* of record= */
	uint16_t relay_port; /* with restart=: srun's, that of `relay` in a new generation */
	/* With restart=, as in generation.h; NULL: nobody asks. */
	bool (*find_address)(const char *node, char *address, size_t bytes);
	void (*say)(const char *text); /* to the user, past srun's relay */
	void (*log)(const char *line); /* to slurmd's log: a failure as one line (report.h); NULL: nobody logs */
	uint32_t job_id, step_id;      /* for that line */
	uid_t owner;
};

struct node_task {
	uint32_t local_id, global_id;
	int wait_status;
};

/* True if srun has the news. What is wrong before a task starts is told this way,
   too. */
bool node_tell(struct node *node, const struct relay_news *news);

/* A new generation begins: all that the node has told is about an earlier one. */
void node_begin_again(struct node *node);

/* News of a task that could not start. */
struct relay_news node_error(const char *text);

/* A task has ended: after what delay this node is to ask for the step's end by
   itself, which is never where srun has the news. */
enum end_delay node_take_end(struct node *node, const struct node_task *task);

/* The witness and its keeper were killed LOSS_MS ago: finds out whether it was Slurm, which kills the tasks, too.
   If it was not, this node judges by the ends alone from now on. False: srun does not know it yet, so this is to
   be called again. */
bool node_lose_witness(struct node *node);

/* Tells srun again that the node has the plugin, if that is due: until srun has answered. Gives after
   how many milliseconds to call it again; -1: never. */
int node_report_again(struct node *node);

/* Opens the link to srun as soon as a task has told where srun is, and serves it (link_tick()). Returns after how many
   milliseconds to call it again; -1: never. */
int node_serve_link(struct node *node);

/* All tasks have been taken: tells srun of the node, if srun has not answered yet, and ends the witness. Slurm waits
   for this before it tells srun of the last end. */
void node_end_witness(struct node *node);

/* Then: tells srun if others may wait for the tasks. */
void node_tell_end(struct node *node);

/* A node keeps account of those of its ranks for which other ranks have waited: they still run, or they have
   ended without a report. */

/* Says what `rank` does, or how it had ended (see blame_describe()). False: it is
   not of this node, or its end has a report of its own. */
bool blame_local(const struct supervise *supervise, uint32_t rank, uint64_t now_ns, char *text,
                 size_t bytes);

/* Says which task of the node had ended with code 0. False: none. */
bool blame_early_end(const struct supervise *supervise, uint64_t now_ns, char *text, size_t bytes);
