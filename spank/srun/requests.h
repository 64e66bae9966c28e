/* SPDX-License-Identifier: Apache-2.0 */
/* In a step, srun wants of slurmctld: to know whether a node has failed whose tasks slurmctld seems to have killed,
   and whether slurmctld is about to end the step; to take lost nodes out of the job; and to end the step. These
   requests are made one at a time and from a thread of their own, so that srun goes on taking and answering the nodes'
   reports while slurmctld does not answer. Lost nodes leave the job before the step ends.

   srun prints its sentences from a third thread, so a pager or a terminal that takes no output delays neither the
   step's end nor the nodes' reports. libc only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/srun/links.h"
#include "spank/srun/presence.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"

enum controller_request {
	REQUEST_NONE,
	REQUEST_NODE_FAILED, /* of relay_actions */
	REQUEST_SLURM_ENDS_IT,
	REQUEST_LOSE_NODES,
	REQUEST_END_STEP,
};

/* A descriptor that is readable once the request under way is done; -1: there is none. */
int controller_descriptor(void);

/* Whether a request is done that controller_finish() has not told yet, and that has no descriptor. */
bool controller_has_answer(void);

/* True if no request is under way after `ms` at most. Then `request` is the one that was done since
   the last call, with its answer, or REQUEST_NONE. */
bool controller_finish(int ms, enum controller_request *request, bool *answer);

/* The nodes that are to leave the job, because they are lost. SLURM without slurmdbd changes the nodes of a job once,
   so all of them leave it in one request, as late as possible. Pure, but it allocates memory. */
struct losses {
	uint32_t *nodes;       /* of the links, */
	uint32_t count, room;
	uint32_t asked;        /* and so many were in a request */
};

/* Adds a node that is not among them yet. Without memory it does nothing: the caller comes again. */
void losses_add(struct losses *losses, uint32_t node);

/* Adds all nodes for which srun does not wait any more: those that are silent or lost, and have not said good-bye. */
void losses_add_all(struct losses *losses, const struct links *links);

/* Whether one was in no request yet. */
bool losses_any_new(const struct losses *losses);

/* Gives the names of these, with commas, for free(3); NULL: there is none, or no memory. */
char *losses_names(const struct losses *losses, const struct links *links);

/* A request with these names is under way. */
void losses_note_request(struct losses *losses);

void losses_end(struct losses *losses);

/* News of a node's tasks, which wait until slurmctld tells whether the node has failed. */
struct held_news {
	struct relay_message message;
	bool alone; /* as of step_take() */
	uint64_t taken_ns;
};

struct requests {
	const struct relay_actions *actions;
	struct losses losses;
	struct held_news held;
	bool holds;      /* there are such news */
	bool asked;      /* about a node */
	bool asks_end;   /* whether Slurm is about to end the step: no answer yet */
	bool ends_step;  /* as soon as slurmctld has answered an earlier request, */
	bool ended_step; /* and slurmctld was asked to */
};

/* `actions` stay the caller's, and have to live as long. */
void requests_start(struct requests *requests, const struct relay_actions *actions);
void requests_end(struct requests *requests);

/* A generation begins: nothing that was asked about the last one counts. */
void requests_begin_again(struct requests *requests);

/* Asks about the node of the news, if slurmctld may have killed its tasks: of a step that was cancelled that is one
   question, not one of each node. A step that outlives nodes may lose several. True: the news are held until the
   answer comes. */
bool requests_hold(struct requests *requests, const struct step *step, const struct held_news *held);

/* Gives the news that are held, which then are not held any more. False: there are none. */
bool requests_take_held(struct requests *requests, struct held_news *held);

/* Asks whether Slurm is about to end the step, in its turn; and whether the answer is missing. */
void requests_ask_end(struct requests *requests);
bool requests_await_end(const struct requests *requests);

/* Ends the step, in its turn. */
void requests_end_step(struct requests *requests, const struct links *links);

/* Starts the request whose turn it is. */
void requests_go_on(struct requests *requests, const struct links *links);

/* Waits so long for slurmctld's answer, if a request is under way. Returns the request that was answered,
   REQUEST_NONE if none was. The caller takes the answer in, and then calls requests_go_on(). */
enum controller_request requests_await_answer(struct requests *requests, int ms, bool *answer);

/* Whether a request waits for requests_go_on(); and whether slurmctld was asked to end the step, and nothing more is
   to be asked. */
bool requests_any_waits(const struct requests *requests);
bool requests_have_ended_step(const struct requests *requests);

/* ---- srun names the failure that happened first, and not the one whose news came first. While it holds a failure, it
   asks all nodes whether they have told of all ends that they have seen (links_ask()), and the step waits for what
   may still turn out to be an earlier one: for nodes that have not answered, or have not reported yet, for nodes that
   may be about to fall silent, and for news that wait until slurmctld tells whether their node has failed. ---- */

struct first_failure {
	uint64_t asked_ns; /* when the nodes were asked about the failure that is held; 0: none is held */
};

/* Asks when a failure begins to be held, and tells the step until when it is to wait (doubt_ns). To be called after
   each turn in which news may have come, and before step_act(). */
void first_failure_update(struct first_failure *first, struct step *step, struct links *links,
                          struct presence *presence, const struct requests *requests, uint64_t now_ns);

/* Whether srun is about to say a failure, and has waited long enough for slurmctld's word about other news: these
   then count as they are, because they may be its cause. To be called behind first_failure_update(). */
bool first_failure_needs_held(const struct first_failure *first, const struct step *step, uint64_t now_ns);

/* A generation begins: its first failure is a question of its own. */
void first_failure_begin_again(struct first_failure *first, struct links *links);

/* ---- sentences ---- */

/* Has `say` called with a copy of the text, after those of earlier calls. Does not wait for
   it. Where so many wait that there is no room, the oldest goes. */
void printer_print(void (*say)(const char *text), const char *text);

/* Waits until all has been said, as long as that takes: as any program waits with its
   last line for who reads it. */
void printer_finish(void);
