/* SPDX-License-Identifier: Apache-2.0 */
/* What srun knows of its step's end from the nodes' reports. It decides which sentence srun prints, and when
   srun asks slurmctld to end the step. srun asks once, and again only if that had no effect, as happens for a
   component that Slurm was just launching. Pure: the caller gives the time, and acts on the result. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/identity/nodelist.h"
#include "spank/srun/links.h"
#include "spank/srun/stall_step.h"
#include "spank/wire/channel.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"

enum { STEP_TEXT_MAX = RELAY_TEXT_MAX + 128 + STALL_WHO_MAX + STALL_DOING_MAX };

/* Slurm itself ends a step that it has asked to stop, whenever that is. */
#define STOP_BY_SLURM UINT32_MAX

struct step_policy {
	uint32_t silence_ms; /* after which a node counts as lost; 0: nobody looks */
	uint32_t hold_ms, ask_ms, timeout_hold_ms, doubt_ms, grace_ms; /* see timeline.h; ask_ms 0: no node is asked */
	uint32_t stop_ms; /* or STOP_BY_SLURM */
	bool slurm_may_grant_more; /* than stop_ms: it is asked before the step's end */
	bool kill_on_failure;
	bool outlives_nodes; /* srun --no-kill */
	uint32_t stall_seconds; /* 0: no matter how long it stalls */
	bool kill_on_stall;
	struct stall_asked asked;
	uint32_t slow_percent; /* of slow=: pace_step.h; 0: nobody asks */
	bool restarts; /* what would end the step may restart it: then `ends` of an action tells why */
};

/* A task's end that may come to be said, or to end the step. */
struct step_case {
	bool held, said;
	struct end_facts facts;
	uint64_t happened_ns, taken_ns;
	int wait_status;
	char node[HOST_NAME_MAX_BYTES]; /* "": not told */
	char text[RELAY_TEXT_MAX + 1];
};

/* A failure, its consequence in another rank, and an end whose verdict waits longer. */
enum { CASE_CAUSE, CASE_HEARSAY, CASE_LATER, CASE_COUNT };

struct step {
	struct step_policy policy;
	struct step_case cases[CASE_COUNT];
	struct stall_step stall;
	bool stopping; /* a node saw Slurm ask for it */
	bool signalled; /* a node saw another signal of Slurm's shortly before an end; with restarts, before one that the
	                   signal may have led to */
	uint64_t doubt_ns; /* until then a node may still tell of an earlier failure, or is in doubt itself: what fails
	                      meanwhile may be its consequence. 0: none does */
	bool said;     /* a failure, by srun or by a node itself */
	bool over;     /* the end was asked for: nothing more is said */
	uint64_t again_ns, pause_ns; /* then: when to ask again, and how long after the last time */
	int wait_status; /* of the failure that was said; 0: none */
	bool failed;     /* a task has failed, and the others do not go on without it */
	bool survived;   /* a rank that has gone on without others has ended well */
};

/* The step ends for this reason. */
struct step_end {
	bool hearsay;  /* a rank gave up because of another rank */
	bool stopping; /* the step was asked to stop or was sent a signal, or SLURM has ended it */
	bool survived; /* the rank's page says that the other ranks go on */
	int wait_status;
	char node[HOST_NAME_MAX_BYTES]; /* on which it happened; "": not told */
};

struct step_action {
	char text[STEP_TEXT_MAX]; /* "": nothing to say */
	bool kill;
	bool ask; /* whether Slurm is about to end the step: step_answer() */
	struct step_end end; /* with `kill`, if the policy has restarts */
	/* The sentence is about this, for the job's comment; EVENT_NOTHING: there is nothing to note. */
	enum event_kind kind;
	int wait_status;
	char node[HOST_NAME_MAX_BYTES]; /* "": not told */
};

/* Whoever restarts a step's programs, in the thread of relay_srun.h. */
struct relay_restart {
	void (*fail)(const struct step_action *action); /* the step would end for this */
	uint64_t (*due)(void); /* when act() has something to do; UINT64_MAX: not before there is news */
	void (*act)(uint64_t now_ns);
	const char *(*host)(uint32_t rank); /* the node of a rank of the generation; NULL: not known */
};

/* srun calls these functions when they are due: srun says a sentence, in printable bytes and in
   a separate thread (requests.h), ends the step, or asks. */
struct relay_actions {
	void (*say)(const char *text);
	void (*end_step)(void);
	void (*note)(const struct event *event); /* a failure that is said; it does not wait. NULL: nobody notes */
	bool (*slurm_ends_it)(void); /* whether Slurm itself is about to */
	bool (*node_failed)(const char *node); /* whether Slurm says so; NULL: not known */
	/* Whether Slurm has ended the job for a node's failure, and which one's, "" if it does
	   not tell. NULL: not known. */
	bool (*lost_node)(char node[HOST_NAME_MAX_BYTES]);
	/* Takes silent nodes out of the job: their names with commas. The step ends behind that, and srun then waits for
	   no such node longer than it has to. NULL: nothing is done. */
	void (*lose_nodes)(const char *nodes);
	/* A node's frame, and what becomes of its link, for who restarts the step, in the thread of
	   relay_srun.h; or NULL. */
	void (*take_frame)(uint32_t node, const struct frame *frame);
	void (*take_link)(uint32_t node, enum links_event event);
	const struct relay_restart *restart; /* NULL: nobody restarts the step */
};

/* Before anything else. */
void step_start(struct step *step, const struct step_policy *policy);

/* `alone`: the node that sent it does not wait for the answer any more, and acts itself. */
void step_take(struct step *step, const struct relay_news *news, bool alone, uint64_t now_ns);

/* Takes a node's note of a stall, packed. If the step ends or stops, or if a failure is still to be said, no stall
   is said. */
void step_take_stall(struct step *step, const unsigned char note[STALL_NOTE_BYTES], uint64_t now_ns);

/* Whether a failure is held because an earlier one may be told. */
bool step_holds(const struct step *step);

/* Whether the step has come to a good end without the ranks that it has lost. */
bool step_has_survived(const struct step *step);

/* When step_act() has something to do; UINT64_MAX: not before more news. */
uint64_t step_due(const struct step *step);

/* The next thing to do at that time; false if there is nothing. */
bool step_act(struct step *step, uint64_t now_ns, struct step_action *action);

/* The same when a node falls silent of which srun last heard at `heard_ns`: a failure that is held because an earlier
   one may be told, and was before the silence or on that node, is its own cause. False: there is none. */
bool step_act_before(struct step *step, const char *node, uint64_t heard_ns, uint64_t now_ns,
                     struct step_action *action);

void step_answer(struct step *step, bool slurm_ends_it);

/* All ranks have been started again: nothing of what was told before counts any more, except that the step was asked
   to stop. */
void step_begin_again(struct step *step);

/* Whoever restarts it has given up: the step is to end. step_act() then asks again as long as that has no effect. */
void step_end(struct step *step, int wait_status, uint64_t now_ns);

/* Called when srun ends. If a failure is still held back, it is said now; everything else is dropped. */
bool step_finish(struct step *step, struct step_action *action);
