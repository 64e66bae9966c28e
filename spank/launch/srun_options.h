/* SPDX-License-Identifier: Apache-2.0 */
/* These functions find what the user told srun, as far as it matters to the plugin. Slurm tells
   a plugin neither srun's options nor where the program's begin. All functions are pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The environment of an srun, or another command of Slurm's, that is started beside a job's own steps. Pure, but for
   memory. */

/* Returns a list of the entries of `environment` without those that srun takes for its options: SLURM_* and SRUN_*,
   which are of the job or step in which the caller runs. What finds slurmctld stays. With `binds`, what decides on
   which CPUs and GPUs tasks run stays, too. `more` is added behind, unless it is NULL. The caller frees the list; the
   texts stay where they are. NULL: no memory. */
char **srun_environment(char *const environment[], bool binds, char *more);

/* srun was started with these words: each has its NUL behind it, and all take `bytes` bytes. The
   first `own` words are srun's, and the program's begin behind them. */
struct srun_words {
	const char *words;
	size_t bytes;
	int own;
};

/* The user says nothing of a matter, or says no, or says yes. */
enum srun_say { SRUN_SILENT, SRUN_NO, SRUN_YES };

/* Whether srun is to end the step when a task fails: -K, --kill-on-bad-exit. The
   variable is SLURM_KILL_BAD_EXIT's value, or NULL; what stands in the line counts more. */
enum srun_say srun_kill_on_bad_exit(const struct srun_words *given, const char *variable);

/* --wait, or the variable SLURM_WAIT: after how many seconds srun ends the step once a
   task has ended; 0: never. Below 0: the user does not say. */
long srun_wait_seconds(const struct srun_words *given, const char *variable);

/* Whether the words hold --wait-for-children: Slurm then takes a task for running as
   long as any process is in its cgroup. */
bool srun_waits_for_children(const struct srun_words *given);

/* Whether srun is to copy the program to the nodes first: --bcast, or the variable SLURM_BCAST. */
bool srun_broadcasts(const struct srun_words *given, const char *variable);

/* Whether the words hold --multi-prog: the program is then the file that names programs. */
bool srun_starts_several(const struct srun_words *given);

/* Whether the step has several components, which ":" separates, or which --het-group names. */
bool srun_starts_components(const struct srun_words *given);

/* Whether the step outlives a node: -k, --no-kill, unless it is =off or =no, or the
   variable SLURM_NO_KILL. */
bool srun_outlives_nodes(const struct srun_words *given, const char *variable);

/* The value of --mpi, or the variable SLURM_MPI_TYPE; NULL: the user does not say. */
const char *srun_mpi(const struct srun_words *given, const char *variable);

/* Whether the step runs in an OCI container: --container, or the variable SLURM_CONTAINER. */
bool srun_runs_container(const struct srun_words *given, const char *variable);

/* The value of the words' last -w, --nodelist, -F or --nodefile, NULL without one: Slurm
   then does not look at SLURM_HOSTFILE. */
const char *srun_nodes(const struct srun_words *given);

/* Whether the words hold --jobid: the step is then of a job that somebody else has made. */
bool srun_names_job(const struct srun_words *given);

/* The value of the words' last -x or --exclude; NULL without one. */
const char *srun_excluded(const struct srun_words *given);

/* Whether what the user asks for also fits fewer nodes: not so many GPUs for the step (--gpus, or the variable
   SLURM_GPUS), and no tasks that are laid out by the list of nodes (--distribution=arbitrary, or the variable
   SLURM_DISTRIBUTION). */
bool srun_fits_fewer_nodes(const struct srun_words *given, const char *gpus, const char *distribution);

/* Whether the words hold --interactive, by which salloc starts its shell where slurm.conf
   says LaunchParameters=use_interactive_step. */
bool srun_starts_a_shell(const struct srun_words *given);

/* The program that srun starts; "" if the words hold none. */
const char *srun_program(const struct srun_words *given);

/* How Slurm itself will end the step, beside the plugin. */
struct srun_ends {
	bool kill_on_failure;   /* what the plugin does */
	bool grace_given;
	uint32_t grace_seconds; /* of grace=, or KillWait */
	long wait_seconds;      /* of --wait or SLURM_WAIT; below 0: the user does not say */
	uint32_t site_wait;     /* of WaitTime, if it is in force; 0: it is not */
	bool kills;             /* KillOnBadExit or -K is in force */
};

/* Says what of this the plugin's settings do not agree with. False: nothing. */
bool srun_contradicts(const struct srun_ends *ends, char *text, size_t bytes);

/* Whether a step's command is a daemon by which an MPI launcher starts its ranks on a node: mpirun starts one on each
   node by srun, which inherits --ddp from the job, and the daemon hands its environment on to all of its ranks. */
bool daemon_is_launched(int count, char *const words[]);
