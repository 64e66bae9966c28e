/* SPDX-License-Identifier: Apache-2.0 */
/* The shell asks Slurm for this besides options and tasks, in srun and in slurmstepd. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/base/text.h"
#include "spank/identity/nodelist.h"
#include "spank/options/options.h"

/* One number of the step or task; `name` is for the sentence. */
bool ask_fact(spank_t spank, spank_item_t item, const char *name, uint32_t *fact,
              struct error *error);

/* Slurm's own configuration; NULL: not found in this process. */
const slurm_conf_t *ask_configuration(void);

/* In srun, once it has read its options: sets one of them, by its letter, as if it stood
   last in the line. False: this srun does not let a plugin do so. */
bool ask_to_set_option(int letter, const char *value);

/* Whether Slurm finds a step's processes by their process group alone. */
bool ask_tracks_groups(void);
/* Whether it finds them by their control group. */
bool ask_tracks_cgroups(void);
/* In slurmstepd: whether SLURM's signals, except SIGKILL, reach the children of slurmstepd only. */
bool ask_signals_children_only(void);

/* Slurm's KillWait. */
uint32_t ask_kill_wait_ms(void);

/* How long a step may go on of which a task has ended as if asked to stop. */
uint32_t ask_grace_ms(const struct settings *settings);

/* Asks the controller about a job, for ask_free_jobs(); NULL: it knows nothing. In a thread: it
   takes as long as the controller likes. */
job_info_msg_t *ask_jobs(uint32_t job_id);
void ask_free_jobs(job_info_msg_t *jobs);

enum { ASK_JOB_NAME_MAX = 32 };

/* The name by which requests mean this job alone: the last element of an array has the array's number. All components
   of a heterogeneous job have the first one's number. */
void ask_name_job(const job_info_t *job, char name[ASK_JOB_NAME_MAX]);

/* 0, or Slurm's reason, of a request's answer, which it gives back. `code` is what the function returned. */
int ask_take_answer(int code, job_array_resp_msg_t *answer);

/* Changes the job: its nodes, a list of those that stay, and its comment. NULL: as it is. `release`: SLURM no longer
   holds the job. 0, or Slurm's reason. */
int ask_to_change(const char *job_name, char *nodes, char *comment, bool release);

/* The job by which a request reaches the steps of all components of the job: the first of
   its heterogeneous job. The controller is asked: slurmstepd acts on it as root, and what
   the environment says is the user's word. job_id if there is none, or no answer. */
uint32_t ask_leader(uint32_t job_id);

/* Whether Slurm is about to end the job: it is being preempted, or there is not more
   time left than --signal may have been given for. */
bool ask_is_ending(uint32_t job_id);

/* The job's state (enum job_states), without flags; JOB_END: SLURM does not tell. */
uint32_t ask_state(uint32_t job_id);

/* Whether Slurm takes the node for down, or has taken it out of the job, as it does where
   a job outlives its nodes: the node itself may answer again already. In a thread. */
bool ask_node_failed(uint32_t job_id, const char *node);

/* Whether Slurm has ended the job for a node's failure, and for which one's; "" before
   Slurm 23.11, which does not tell. In a thread. */
bool ask_lost_node(uint32_t job_id, char node[HOST_NAME_MAX_BYTES]);

/* The nodes of a step that need not be launched yet, as Slurm writes lists, allocated; NULL: Slurm does not tell. */
char *ask_step_nodes(uint32_t job_id, uint32_t step_id);

/* CPUs on which this process may run; 0: not known. */
uint32_t ask_affinity(void);

/* A line on the user's stderr. */
void ask_to_say(const char *text);

/* srun takes nodes that do not answer out of its job, as the user may. It asks slurmctld, waits for the answer, and asks
   again for some seconds if a later answer may be another one. When the nodes, named with commas, have left the job, the
   running step ends without them, and a later step does not wait for them. Nodes that are not in the job are left out.
   False, with the reason: the nodes stay in the job, as a batch host and a heterogeneous job's nodes do, or all where
   slurm.conf says SchedulerParameters=disable_job_shrink. */
bool shrink_job(uint32_t job_id, const char *nodes, struct error *error);

/* Returns the nodes of a list of SLURM's without those named with commas, likewise, for free(3); NULL: none is left,
   or there is no memory. */
char *shrink_list(const char *nodes, const char *without);
