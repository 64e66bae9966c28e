/* SPDX-License-Identifier: Apache-2.0 */
/* A task for tests of what it is told: rank 3 of 4, on the second of two nodes; and an
   srun for tests of what nodes tell. */
#pragma once

#include <stdatomic.h>

#include "spank/launch/variables.h"
#include "spank/srun/relay_srun.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"
#include "spank/witness/witness.h"

#define ENVIRONMENT(...) ((char *[]){ (char[]){ "PATH=/bin" }, __VA_ARGS__ NULL })
#define V(text) (char[]){ text },

/* As srun hands it over; the task gets it with STEP_KEY before it. */
#define TASK_KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct identity task(void);
struct task_extras extras(char *const *environment);

/* The variables of --ddp=LIST; fails the test where that is refused. */
void build(struct variables *variables, const char *list, const struct identity *identity,
           const struct task_extras *with);

/* Longer than any test runs; relay_close() says what is held. */
enum { LONG_MS = 600000 };

/* What srun has said last, and how often it did so and ended the step. */
extern char said[STEP_TEXT_MAX];
extern atomic_int times_said, times_ended;
extern const struct relay_actions actions;
/* Until one of them has come to `wanted`, for up to 20 s. */
void wait_for(atomic_int *count, int wanted);

/* Kills a witness and its keeper, as Slurm does with a step. */
void kill_witness(const struct witness *witness);

/* Opens srun's relay; who tells it something waits LONG_MS for the answer. */
struct relay open_srun(const struct step_policy *policy);

/* A socket that listens at 127.0.0.1, and its port; and a connection to one. */
int listen_here(uint16_t *port);
int connect_here(uint16_t port);
