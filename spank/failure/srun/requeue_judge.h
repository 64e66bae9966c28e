/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether srun asks Slurm to start its job again (requeue=), and which sentence srun prints about it. Pure: the
 * caller brings what slurmctld tells about the job, and what srun knows of its step.
 */
#ifndef SPANK_REQUEUE_JUDGE_H
#define SPANK_REQUEUE_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

enum {
	REQUEUE_TEXT_MAX = 256,
	REQUEUE_CODE = 75,             /* EX_TEMPFAIL: the program asks to be started again */
	REQUEUE_LEAD_SECONDS = 10,     /* srun asks so long before the job's time limit */
	REQUEUE_AT_ONCE_SECONDS = 60,  /* a run that fails earlier has made no progress */
	REQUEUE_NOTE_MAX = 64,
};

enum requeue_state {
	REQUEUE_RUNS,
	REQUEUE_TIMED_OUT, /* the job's time limit has passed; its tasks still have KillWait */
	REQUEUE_PREEMPTED, /* Slurm ends the job, and does not start it again by itself */
	REQUEUE_CANCELLED, /* a user or an administrator has ended the job */
	REQUEUE_WAITS,     /* the job is requeued already, by Slurm or by another srun */
	REQUEUE_OVER,
};

/* What slurmctld tells. */
struct requeue_job {
	enum requeue_state state;
	bool batch;         /* there is a script that Slurm could start again */
	bool may_requeue;   /* by JobRequeue of slurm.conf, --requeue and --no-requeue */
	bool preempted;     /* Slurm has told a running job that it will take its nodes */
	uint32_t restarts;  /* how often the job was requeued, whoever asked for it */
	bool failed_before; /* the run before this one failed without progress (requeue_read_note()) */
};

/* What srun knows of its step. */
struct requeue_step {
	uint32_t allowed; /* requeue=N; 0: srun never asks */
	bool given;       /* the user has given requeue=, and not the site alone */
	bool ended;       /* false: the step runs, and the job's time limit is near */
	int status;       /* srun's exit status */
	bool failed;      /* srun has named a failure */
	bool stopping;    /* Slurm has asked the step to stop */
	double seconds;   /* how long the step ran */
};

/* Whether to ask. `text` says why, or why not; "": nothing is to be said. */
bool requeue_judge(const struct requeue_step *step, const struct requeue_job *job, char text[REQUEUE_TEXT_MAX]);

/* Whether the step has failed without any progress: if two runs in a row do so, the next one will not succeed. */
bool requeue_failed_at_once(const struct requeue_step *step);

/* Whether there is a reason why this job can never be requeued. It is to be said when the step starts. */
bool requeue_is_impossible(const struct requeue_step *step, const struct requeue_job *job,
                           char text[REQUEUE_TEXT_MAX]);

/*
 * A note in the job's comment is the only memory that one run leaves the next one: it says that this run failed
 * without progress. `comment` may be NULL.
 */
bool requeue_read_note(const char *comment, uint32_t run);
/* Puts the note behind the comment, in place of an earlier note. False if there is no room for it. */
bool requeue_write_note(const char *comment, uint32_t run, char *text, uint32_t bytes);

#endif
