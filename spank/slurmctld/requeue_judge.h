/* SPDX-License-Identifier: Apache-2.0 */
/* Whether srun asks Slurm to start its job again (requeue=), and which sentence srun prints about it. Pure: the
   caller brings what slurmctld tells about the job, and what srun knows of its step. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	REQUEUE_TEXT_MAX = 256,
	REQUEUE_CODE = 75,             /* EX_TEMPFAIL: the program asks to be started again */
	REQUEUE_LEAD_SECONDS = 10,     /* srun asks so long before the job's time limit */
	REQUEUE_AT_ONCE_SECONDS = 60,  /* a run that fails earlier has made no progress, if it shows no steps */
	REQUEUE_NOTE_MAX = 96,
};

enum requeue_state {
	REQUEUE_RUNS,
	REQUEUE_TIMED_OUT, /* the job's time limit has passed; its tasks still have KillWait */
	REQUEUE_PREEMPTED, /* Slurm ends the job, and does not start it again by itself */
	REQUEUE_CANCELLED, /* a user or an administrator has ended the job */
	REQUEUE_WAITS,     /* the job is requeued already, by Slurm or by another srun */
	REQUEUE_OVER,
};

/* How a run of the job has failed. */
struct requeue_note {
	bool fruitless; /* it made no new step, or failed at once */
	uint64_t step;  /* the last one of all runs so far; 0: not known */
};

/* slurmctld tells this of the job. */
struct requeue_job {
	enum requeue_state state;
	bool batch;         /* there is a script that Slurm could start again */
	bool may_requeue;   /* by JobRequeue of slurm.conf, --requeue and --no-requeue */
	bool held;          /* in state REQUEUE_WAITS: SLURM holds the job until somebody releases it, because a node could not
	                       start the step */
	bool preempted;     /* Slurm has told a running job that it will take its nodes */
	uint32_t restarts;  /* how often the job was requeued, whoever asked for it */
	struct requeue_note before; /* of the run before this one; zero if that run has left none */
};

/* srun knows this of its step. */
struct requeue_step {
	uint32_t allowed; /* requeue=N; 0: srun never asks */
	bool given;       /* the user has given requeue=, and not the site alone */
	bool ended;       /* false: the step runs, and the job's time limit is near */
	int status;       /* srun's exit status */
	bool failed;      /* srun has named a failure */
	bool stopping;    /* Slurm has asked the step to stop */
	double seconds;   /* how long the step ran */
	uint64_t at;      /* in which step of the training it failed; 0: not known */
};

/* Whether srun is to ask for another run, or for the release of a job that is held. `text` says why, or why not; "":
   nothing is to be said. */
bool requeue_judge(const struct requeue_step *step, const struct requeue_job *job, char text[REQUEUE_TEXT_MAX]);

/* Whether there is a reason why this job can never be requeued. It is to be said when the step starts. */
bool requeue_is_impossible(const struct requeue_step *step, const struct requeue_job *job,
                           char text[REQUEUE_TEXT_MAX]);

/* Returns the highest step of a training that a sentence about a failure names; 0: none. */
uint64_t requeue_step_in(const char *sentence);

/* A note in the job's comment is the only memory that a run leaves the next one. A run that made steps is remembered by
   its last one, so that two runs in a row without a new step end the job's runs. */

/* Whether this run's failure is to be noted, and what the note says. */
bool requeue_make_note(const struct requeue_step *step, const struct requeue_job *job, struct requeue_note *note);

/* Reads the note that run number `run` has left. `comment` may be NULL. False, and a zero note, if there is none. */
bool requeue_read_note(const char *comment, uint32_t run, struct requeue_note *note);

/* Puts the note behind the comment, in place of an earlier one. False if there is no room for it. */
bool requeue_write_note(const char *comment, uint32_t run, const struct requeue_note *note, char *text, uint32_t bytes);
