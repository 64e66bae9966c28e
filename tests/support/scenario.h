/* SPDX-License-Identifier: Apache-2.0 */
/* scenario: a random model, and how random ranks train it: what they use, in which step, until
   when; and what a plain loop makes of that, which gathers all ranks' gradients and averages
   them. All is a function of the scenario's seed: who asks the same is told the same. */
#pragma once

#include "tests/support/context_ranks.h"

enum { PARAMS_MAX = 6, RANKS_MAX = 4, STEPS = 3, STEPS_MAX = 9, ROWS_MAX = 5, ELEMENTS_MAX = 16384 };

/* All ranks draw the same. */
typedef struct scenario {
	unsigned int seed;
	int ranks, node_of[RANKS_MAX];
	int count;
	char names[PARAMS_MAX][16];
	ddp_param params[PARAMS_MAX];
	ddp_model_options options;
	int steps;                        /* STEPS, or STEPS_MAX: by the default cut, which over nodes is
	                                     replaced then */
	int accumulate;
	bool own_params, own_grads;       /* in memory of the program */
	bool whole;                       /* numbers, so that sums are exact */
	unsigned int users[STEPS_MAX + 1][PARAMS_MAX]; /* by step: a bit for each rank with a gradient of it */
	bool early[PARAMS_MAX];           /* it is used in a step's first micro-batch only */
	int last;                         /* the rank that trains to the end, and has samples */
	int joins[RANKS_MAX];             /* the step from which on a rank has finished */
	int poisoned, forgotten;          /* the step before which one is tried whose gradients, or loss, are
	                                     not finite, or whose gradients are forgotten; 0: none */
	bool hooked[PARAMS_MAX];          /* a gradient's hook makes it twice what micro-batches add */
} scenario;

/* What the plain loop trains. */
typedef struct plain {
	float params[PARAMS_MAX][ELEMENTS_MAX];
	float m[PARAMS_MAX][ELEMENTS_MAX], v[PARAMS_MAX][ELEMENTS_MAX];
	float sums[PARAMS_MAX][ELEMENTS_MAX];
	int missed[PARAMS_MAX]; /* steps */
} plain;

/* What a step tells. */
typedef struct plain_stats {
	double norm, weight, loss;
} plain_stats;

/* Scenario number so many. */
void scenario_make(scenario *s, unsigned int number);

/* A number from `least` to `most`; a number made of two. */
int scenario_draw(unsigned int *seed, int least, int most);
unsigned int scenario_mix(unsigned int a, unsigned int b);

int64_t scenario_elements(const ddp_param *param);
bool scenario_is_trained(const scenario *s, int p);
bool scenario_is_buffer(const scenario *s, int p);

bool scenario_has_joined(const scenario *s, int rank, int step);
int scenario_active_ranks(const scenario *s, int step);
double scenario_weight(const scenario *s, int rank, int step);
double scenario_loss(const scenario *s, int rank, int step);
bool scenario_is_used(const scenario *s, int rank, int step, int p);
/* What a micro-batch adds to a dense gradient, if it does, before a hook; 7: what rows add. */
bool scenario_adds(const scenario *s, int rank, int step, int batch, int p);
float scenario_gradient(const scenario *s, int rank, int step, int batch, int p, int64_t i);
/* Rows of the step's last micro-batch: how many; their index. */
int scenario_rows(const scenario *s, int rank, int step, int p, int32_t *index);
/* What a rank's forward writes to a buffer: the mean over ranks is a whole number. */
float scenario_buffer(const scenario *s, int rank, int step, int64_t i);

void plain_start(const scenario *s, plain *x);
plain_stats plain_step(const scenario *s, plain *x, int rank, int step);

/* ---- scenario_model.c: a scenario's model, and what its ranks do in a step, by the library; on the host or on the
   fake GPU. A failed call ends the rank. ---- */

/* The device is in use as long as the communicator is there. */
void scenario_open_device(ddp_comm *comm, ddp_context *context);
void scenario_close_device(void);
/* Models are made there from now on, or on the host again. */
void scenario_use_device(bool there);
/* Between the memory of a model that is where models are made now, and the host's. */
void scenario_copy(void *to, const void *from, size_t bytes);
/* Of a parameter, or its gradient. */
size_t scenario_bytes(const ddp_model *model, int p);

/* A model of the scenario's tensors, by these options, with the numbers of plain_start(). */
ddp_model *scenario_model_make(ddp_context *context, const scenario *s, const ddp_model_options *options);
void scenario_model_free(ddp_model *model);

/* What the rank does in this step of the scenario: trains, or joins. */
void scenario_train(const scenario *s, ddp_model *model, int rank, int step, ddp_step_stats *stats);
/* Steps that change nothing. One rank makes a mistake, or all do: all get an error. */
enum { SCENARIO_MISTAKES = 5 };
void scenario_make_mistake(const scenario *s, ddp_model *model, int rank, int step, int mistake);
/* A gradient or the loss of a rank is not finite: no rank updates. */
void scenario_train_poisoned(const scenario *s, ddp_model *model, int rank, int step);
/* What is added is forgotten by each rank, and then what is reduced by all. No rank has joined. */
void scenario_train_forgotten(const scenario *s, ddp_model *model, int rank, int step);
