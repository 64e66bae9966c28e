/* SPDX-License-Identifier: Apache-2.0 */
/* A row has what ddp-status knows of one rank, or of a node that waits as a spare. The probe, a task on each node of
   the job, writes a row as one line of JSON; ddp-status reads it back, and trusts nothing in it: it may be root, and
   the probe runs as the job's user. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Grows when a program that reads the JSON has to change: not for members that come to it. */
enum { ROW_SCHEMA = 1 };
enum { ROW_NAME_MAX = 64, ROW_TEXT_MAX = 320, ROW_STACK_MAX = 12288, ROW_WORLD_MAX = 1 << 20 };

/* Numbers below 0 and empty texts are not known. */
struct row {
	int64_t job, slurm_step, rank, world_size, pid, processes;
	char node[ROW_NAME_MAX], program[ROW_NAME_MAX];
	/* SLURM's words, as the task has them in its environment. */
	char partition[ROW_NAME_MAX];
	int64_t restarts; /* of the programs in this step, by restart= */
	int64_t requeues; /* of the job */
	/* The reader of rows knows the user, who may say anything in a row. */
	char user[ROW_NAME_MAX];
	/* The kernel knows these. */
	char state[ROW_NAME_MAX];   /* "running", "sleeping", ...; "gone": no process; "spare": see row_is_spare() */
	char waits_in[ROW_NAME_MAX]; /* the kernel's function in which it sleeps; "": not told */
	double cpu_percent;
	/* A program of libddp says these; below 0, or "": it does not. */
	char phase[ROW_NAME_MAX], doing[ROW_TEXT_MAX], error[ROW_TEXT_MAX];
	double phase_seconds, since_seconds; /* of the phase; of the wait, or the last collective */
	double progress_seconds; /* since the last sign of progress */
	double exposed_ratio;    /* how much of the last step the rank waited for gradients, from 0 to 1 */
	double compute_seconds;  /* how long it has computed in its steps, without waits for other ranks, */
	int64_t compute_steps;   /* and in how many steps */
	int64_t step, steps, collective; /* `steps`: with which the training ends */
	bool waiting;
	char waits_for[ROW_TEXT_MAX]; /* "#45 all_reduce f32[10] sum" */
	double steps_per_second, samples_per_second;
	int64_t stalls; /* how often all of the node's ranks made no progress for the time of stall=; below 0: no stall= */
	bool has_loss;
	double loss; /* of the last step; only programs of Python say it */
	char *stack; /* lines of Python's threads, to be freed; NULL: nobody asked, or nothing came */
};

/* Whether the row is about a node that waits to take another one's place. It has no rank. */
bool row_is_spare(const struct row *row);

/* Nothing of the row is known. */
struct row row_unknown(void);

/* No byte of a row's JSON is this one, so it shows where a row begins (RFC 7464 does the same). */
enum { ROW_BEGIN = 0x1e };

/* Texts go cut and printable. */
json_t *row_to_json(const struct row *row);
/* Writes ROW_BEGIN and the row as a line of JSON. False: no memory, or the file took not all. */
bool row_write(FILE *file, const struct row *row);
/* False if the object is no row. Strings come cut and printable. rows_free() frees what the row holds. */
bool row_from_json(const json_t *json, struct row *row);
void rows_free(struct row *rows, size_t count);

/* Adds a row with state "gone" for each rank of a step that has none, and sorts:
   by step, and in it stragglers first: ranks that are gone, then those that do
   not wait for others, least progress first, then the others, and spares last. A step that would come
   to more than `ranks_max` ranks gets none added. False: no memory. */
bool rows_arrange(struct row **rows, size_t *count, size_t ranks_max);

/* Only sorts, by job and as above: for rows of one node, which lack those of others. */
void rows_sort(struct row *rows, size_t count);

/* For people; with colour if asked for. Without `job`, rows of several jobs come one after the other. */
void rows_print(FILE *file, const struct row *rows, size_t count, const char *job, bool colour);
/* For programs: one object, as ddp-status(1) describes it. `job` may be NULL. False: no memory, or the file took not
   all. */
bool rows_print_json(FILE *file, const struct row *rows, size_t count, const char *job);
