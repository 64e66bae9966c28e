/* SPDX-License-Identifier: Apache-2.0 */
/* compare: do all ranks have the same parameters? Ranks compare a checksum before the first step, before each
   checkpoint and, with the option compare_every, after so many steps. In a step the checksum travels in the consensus
   (reduce/consensus.h), so there is no further message. If ranks have once had the same parameters and then differ,
   memory or a processor is damaged, and the error names the rank that differs from most others.

   The checksum is of what each rank should have the same: trained and frozen parameters and, with compare_every, the
   optimizer's state where each rank keeps all of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ddp.h"

struct ddp_model;

/* Whether ranks compare in the step under way: the same on all ranks. */
bool ddp_compare_is_due(const struct ddp_model *model);

/* All parameters have come. */
ddp_status ddp_compare_checksum(const struct ddp_model *model, uint32_t *sum);

/* DDP_ERR_MISMATCH, on all ranks: names those whose checksum is not the one of most ranks. `own` is this rank's.
   Collective. DDP_OK: all ranks gave the same. */
ddp_status ddp_compare_name(struct ddp_model *model, uint32_t own);

/* Compares between two steps. Collective; DDP_OK where ranks do not communicate. */
ddp_status ddp_model_compare(struct ddp_model *model);
