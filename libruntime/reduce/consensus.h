/* SPDX-License-Identifier: Apache-2.0 */
/* consensus: the facts of a step on which ranks must agree at its end. One sum over all ranks
   carries them, so all ranks get the same values. It is issued after the buckets that are complete
   by then. The last elements of the sum say which parameters the step has used (reduce/uses.c). */
#pragma once

#include <math.h>

#include "params/layout.h"

/* All are summed. */
typedef struct ddp_consensus {
	double weight, loss_sum;
	double rate, rate_squared; /* the learning rate; the two sums show whether all ranks have the same */
	double wrong;              /* ranks that gave a wrong weight or learning rate */
	double stop;               /* ranks that were asked to stop */
	double joined;             /* ranks that have finished, and contribute nothing */
	double halves;             /* ranks in ddp_model_reduce_grads() */
	double changed;            /* ranks whose static graph has changed */
	double not_finite;         /* ranks whose loss or gradient is not finite */
	double bad_buffers;        /* ranks that have not joined and have a buffer that is not finite */
	double largest;            /* magnitude of a gradient; the sum bounds each sum of gradients */
	double checksum[2], checksum_squared[2]; /* two halves; the sums show whether all ranks have the
	                              same. It is of the parameters in a step that compares them
	                              (reduce/compare.h), and otherwise of the loss and gradients of
	                              the rank's samples */
} ddp_consensus;

enum { DDP_CONSENSUS_COUNT = sizeof(ddp_consensus) / sizeof(double) };

/* This rank's gradients of the step under way, as far as they are complete. */
typedef struct ddp_magnitude {
	double largest;      /* of those that are finite */
	const ddp_slot *bad; /* the first that is not; NULL: none */
} ddp_magnitude;

/* Notes the largest magnitude of a gradient that is complete on this rank, before it is reduced. Sums and norms would
   later show that a gradient is not finite, but not on which rank. tests/bench/README.md has the cost. */
static inline void ddp_magnitude_note(ddp_magnitude *magnitude, const ddp_slot *slot, double largest)
{
	if (!isfinite(largest)) {
		if (magnitude->bad == NULL)
			magnitude->bad = slot;
	} else if (largest > magnitude->largest) {
		magnitude->largest = largest;
	}
}

struct ddp_model;

/* Fills this rank's values, except `halves`, `changed` and `bad_buffers`. A rank with a wrong argument takes part
   in the step, so all ranks end the step with an error. A status other than DDP_OK is this rank's alone. */
ddp_status ddp_consensus_state(const struct ddp_model *model, double weight, double loss_sum,
                               ddp_consensus *own);
/* DDP_ERR_INVALID, DDP_ERR_MISMATCH, DDP_ERR_STATE, on all ranks alike: a rank made a mistake.
   `weight` is this rank's. */
ddp_status ddp_consensus_check(const struct ddp_model *model, double weight,
                               const ddp_consensus *all);
/* Whether all ranks gave the same checksum. */
bool ddp_consensus_same(const struct ddp_model *model, const ddp_consensus *own,
                        const ddp_consensus *all);
/* The checksum in it. */
uint32_t ddp_consensus_checksum(const ddp_consensus *own);
/* Warns once if the samples of all ranks have given the same loss and gradients for many steps. Called in steps that
   do not compare parameters. */
void ddp_consensus_watch_samples(struct ddp_model *model, const ddp_consensus *own,
                                 const ddp_consensus *all);
/* The divisor of the sum of all ranks' gradients. */
double ddp_consensus_divisor(const struct ddp_model *model, const ddp_consensus *all);
/* Ranks that have not joined. */
int ddp_consensus_active(const struct ddp_model *model, const ddp_consensus *all);
/* Whether the loss, the gradients and their mean are finite. */
bool ddp_consensus_finite(const struct ddp_model *model, const ddp_consensus *all);
/* DDP_ERR_STATE, which names the first rank whose static graph has changed, and the
   parameter; or another status, if ranks could not tell each other. Collective. */
ddp_status ddp_consensus_name_changed(struct ddp_model *model);
/* DDP_ERR_NOT_FINITE, which names the first rank and what is not finite there; or
   another status, if ranks could not tell each other. Collective. */
ddp_status ddp_consensus_name(struct ddp_model *model, double loss_sum, const ddp_consensus *all);
