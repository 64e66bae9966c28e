/* SPDX-License-Identifier: Apache-2.0 */
/* scenario_model: a scenario's model, and what its ranks do in a step, by the library; on the host or
   on the fake GPU. A failed call ends the rank. */
#pragma once

#include "tests/support/context_ranks.h"
#include "tests/support/scenario.h"

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
