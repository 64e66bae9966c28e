/* SPDX-License-Identifier: Apache-2.0 */
/* rank: one rank of a benchmark contender. The driver sends every rank the
   same commands, a line each, and every rank answers with lines of its own,
   into the pipe BENCH_ANSWERS that all ranks of a contender share. Not by way of
   their launcher's output: mpirun and srun mix lines of several ranks, but a
   pipe takes up to PIPE_BUF bytes written at once in one piece.

     open COUNT          allocate COUNT floats     -> "@ RANK open"
     check               reduce a known pattern    -> "@ RANK check INDEX", -1: right
     run BATCH SAMPLES REWRITE  time SAMPLES batches -> "@ RANK times NS ...", "@ RANK run"
     close               free the memory           -> "@ RANK close"

   After start-up, with its commands open, a rank says "@ RANK ready SIZE"; an
   error is "@ RANK error TEXT" and ends it. A batch is BATCH operations back to
   back after a barrier that is not timed; the driver takes the slowest rank's
   time of each batch. If REWRITE is 1, each rank writes its buffer before each
   operation, within the batch's time. Each run begins with one more batch, which is not
   reported: it warms caches. Before each barrier, ranks rest for
   BENCH_REST_US microseconds: links whose rate is limited by a bucket begin
   with a full one, whatever a barrier takes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct rank_engine;

/* Each function returns false after writing a sentence to engine->error. */
struct rank_engine {
	int rank;
	int size;
	bool reduces; /* the operation is an all-reduce: its result can be checked */
	float *data;  /* [count], in place; valid between open and close */
	size_t count;
	bool (*open)(struct rank_engine *engine);
	bool (*operate)(struct rank_engine *engine);
	bool (*barrier)(struct rank_engine *engine);
	bool (*close)(struct rank_engine *engine);
	char error[512];
};

/* Opens this rank's commands: the pipe BENCH_COMMANDS.RANK if that variable is
   set, else standard input (to try a rank by hand, as are answers to standard
   output without BENCH_ANSWERS). -1 with errno. */
int rank_command_fd(int rank);

/* Serves commands until the descriptor ends. Returns the exit code. */
int rank_serve(struct rank_engine *engine, int command_fd);

/* Writes "@ RANK error TEXT" and returns 1, the exit code. */
int rank_report_error(int rank, const char *text);

/* false, with the sentence in engine->error. */
bool rank_fail(struct rank_engine *engine, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* With BENCH_PIN, rank r stays on core r modulo cores: the scheduler may
   otherwise leave two ranks on one core for a while. false with errno. */
bool rank_pin(int rank);

/* Turns a decimal argument into a number; exits with a message if it is none. */
long rank_number(const char *name, const char *text, long least, long most);
