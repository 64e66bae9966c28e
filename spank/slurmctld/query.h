/* SPDX-License-Identifier: Apache-2.0 */
/* The shell asks Slurm for this besides options and tasks, in srun and in slurmstepd, and has it end a step. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/options/options.h"
#include "spank/witness/witness.h"

/* One number of the step or task; `name` is for the sentence. */
bool query_fact(spank_t spank, spank_item_t item, const char *name, uint32_t *fact, struct error *error);

/* Slurm's own configuration; NULL: not found in this process. */
const slurm_conf_t *query_configuration(void);

/* In srun, once it has read its options: sets one of them, by its letter, as if it stood
   last in the line. False: this srun does not let a plugin do so. */
bool set_srun_option(int letter, const char *value);

/* Whether Slurm finds a step's processes by their process group alone. */
bool query_tracks_groups(void);
/* Whether it finds them by their control group. */
bool query_tracks_cgroups(void);
/* In slurmstepd: whether SLURM's signals, except SIGKILL, reach the children of slurmstepd only. */
bool query_signals_children_only(void);

/* Slurm's KillWait. */
uint32_t query_kill_wait_ms(void);

/* How long a step may go on of which a task has ended as if asked to stop. */
uint32_t query_grace_ms(const struct settings *settings);

/* Asks the controller about a job, for query_free_jobs(); NULL: it knows nothing. In a thread: it
   takes as long as the controller likes. */
job_info_msg_t *query_jobs(uint32_t job_id);
void query_free_jobs(job_info_msg_t *jobs);

/* The job among them, NULL if it is not; slurmctld tells of all components of a heterogeneous one. */
const job_info_t *query_job_in(const job_info_msg_t *jobs, uint32_t job_id);

enum { QUERY_JOB_NAME_MAX = 32 };

/* The name by which requests mean this job alone: the last element of an array has the array's number. All components
   of a heterogeneous job have the first one's number. */
void query_job_name(const job_info_t *job, char name[QUERY_JOB_NAME_MAX]);

/* 0, or Slurm's reason, of a request's answer, which it gives back. `code` is what the function returned. */
int query_answer_code(int code, job_array_resp_msg_t *answer);

/* Changes the job: its nodes, a list of those that stay, and its comment. NULL: as it is. `release`: SLURM no longer
   holds the job. 0, or Slurm's reason. */
int change_job(const char *job_name, char *nodes, char *comment, bool release);

/* The job by which a request reaches the steps of all components of the job: the first of
   its heterogeneous job. The controller is asked: slurmstepd acts on it as root, and what
   the environment says is the user's word. job_id if there is none, or no answer. */
uint32_t query_leader(uint32_t job_id);

/* Whether Slurm is about to end the job: it is being preempted, or there is not more
   time left than --signal may have been given for. */
bool query_is_ending(uint32_t job_id);

/* The job's state (enum job_states), without flags; JOB_END: SLURM does not tell. */
uint32_t query_job_state(uint32_t job_id);

/* Whether Slurm takes the node for down, or has taken it out of the job, as it does where
   a job outlives its nodes: the node itself may answer again already. In a thread. */
bool query_node_failed(uint32_t job_id, const char *node);

/* Whether Slurm has ended the job for a node's failure, and for which one's; "" before
   Slurm 23.11, which does not tell. In a thread. */
bool query_lost_node(uint32_t job_id, char node[HOST_NAME_MAX_BYTES]);

/* The nodes of a step that need not be launched yet, as Slurm writes lists, allocated; NULL: Slurm does not tell. */
char *query_step_nodes(uint32_t job_id, uint32_t step_id);

/* CPUs on which this process may run; 0: not known. */
uint32_t query_affinity(void);

/* A line on the user's stderr. */
void print_to_user(const char *text);

/* srun takes nodes that do not answer out of its job, as the user may. It asks slurmctld, waits for the answer, and
   asks again for some seconds if a later answer may be another one. When the nodes, named with commas, have left the
   job, the running step ends without them, and a later step does not wait for them. Nodes that are not in the job are
   left out. False, with the reason: the nodes stay in the job, as a batch host and a heterogeneous job's nodes do, or
   all where slurm.conf says SchedulerParameters=disable_job_shrink. */
bool shrink_job(uint32_t job_id, const char *nodes, struct error *error);

/* Returns the nodes of a list of SLURM's without those named with commas, likewise, for free(3); NULL: none is left,
   or there is no memory. */
char *shrink_list(const char *nodes, const char *without);

/* ---- the end of a step on all its nodes ---- */

/* Asks once, and says to the user what goes wrong. That the step has ended
   meanwhile is as it should be. The components of a heterogeneous step are steps of the
   same number in jobs of their own; the first one's job stands for all. */
void kill_step(uint32_t job_id, uint32_t step_id);

/* A node whose srun does not answer asks for this. */
struct kill_alone {
	uint32_t job_id, step_id;
	long delay_ms;
	bool heterogeneous;            /* the step has components in other jobs, which end, too */
	const struct witness *witness; /* its end tells that somebody else has asked, */
	const atomic_bool *witness_lost; /* unless it was not Slurm that has killed it */
	bool with_tasks;               /* not once the node's own tasks have ended */
};

/* Asks in a thread, once in the life of the process. In a contained callback (child.h) it asks
   before it returns, and does not ask at all `with_tasks`. */
void kill_start_alone(const struct kill_alone *request);

/* Before the witness goes: waits for the thread as long as timeline.h says. The
   .so stays mapped (-z nodelete), so a slower controller does no harm. */
void kill_finish_alone(void);
