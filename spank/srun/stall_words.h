/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of srun's sentences on stalls that take several nodes' notes. Pure. */
#pragma once

#include "spank/base/sink.h"
#include "spank/srun/stall_step.h"

/* "0-23,25-7999", in order, whatever ranks the nodes have: those that wait, or those that are not seen. */
void stall_words_ranges(const struct stall_step *step, bool unseen, struct sink *sink);

/* "ranks call different operations as collective #14: ..."; false: the ranks that wait in it call the same one. */
bool stall_words_different(const struct stall_step *step, uint64_t collective, struct sink *sink);

/* The sentence on ranks that are not seen. */
void stall_words_unseen(const struct stall_step *step, struct sink *sink);
