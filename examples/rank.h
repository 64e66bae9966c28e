/* SPDX-License-Identifier: Apache-2.0 */
/* rank: one rank of a training, whatever it trains: it starts, it ends, and it says why it fails. It says so on stderr,
   and to the other ranks, which then end, too. What all ranks see alike, one of them says. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ddp.h>

enum { EXIT_LIBRARY = 3 };

struct rank {
	const char *program; /* its name, for messages */
	ddp_context *context;
	const ddp_job *job;  /* NULL before ddp_init() */
	bool told;           /* why this rank fails */
	bool stays;          /* if it does: the others come to know it from what they do together */
	bool told_of_graphs;
};

/* Whether another rank tells of the last error, in the same words. Then this one gives it a moment: a rank that exits
   has its launcher end the others. */
bool rank_another_tells(void);

/* Ends a program that has no more to say of an error than the library, with EXIT_LIBRARY; DDP_OK is no error. */
void rank_must(const char *program, ddp_status status);

/* Starts so many ranks on this host, in which it returns; of 0, the process is the rank. The process that started them
   ends with the code of the first that failed. */
void rank_spawn(const char *program, int count);

/* Says what is wrong. Returns false. */
bool rank_fail(struct rank *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* True for DDP_OK. Otherwise it says the library's sentence, unless this rank or another one has told why. */
bool rank_fine(struct rank *self, ddp_status status);

/* Whether this rank tells of the training for all: the first of those that are left (ddp_survive()). */
bool rank_leads(const ddp_model *model);

/* How many micro-batches of `weight` make a step of `wanted` over all ranks; a `wanted` of 0 changes nothing. All ranks
   see alike that there is no such number. */
bool rank_accumulate(struct rank *self, const char *option, int64_t wanted, int64_t weight, int *accumulate);

/* Memory of the rank's device, for a network. */
void *rank_allocate(void *self, size_t bytes);
void rank_release(void *self, void *memory);

/* Says once that passes go without graphs, which changes no result. `why` NULL: they do not. */
void rank_tell_of_graphs(struct rank *self, const char *why);

/* Closes the library. `fine`: all went well before. Returns whether all did. */
bool rank_end(struct rank *self, bool fine);
