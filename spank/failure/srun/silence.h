/* SPDX-License-Identifier: Apache-2.0 */
/* srun says these sentences of nodes that have fallen silent. Pure. */
#ifndef SPANK_SILENCE_H
#define SPANK_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/sink.h"
#include "spank/failure/srun/links.h"
#include "spank/failure/srun/presence.h"

/* "node n2 (ranks 4-5) has been silent for 5.0 s: ..." */
void silence_describe(const struct links_node *node, const struct presence *presence, uint64_t now_ns,
                      struct sink *sink);

/* Says that all nodes are silent at once, and on which host srun runs. */
void silence_describe_all(const struct links *links, uint64_t now_ns, struct sink *sink);

/* Whether nothing is left of the step except silent nodes: all of its nodes have opened a link, at least one is silent,
   and the others' tasks have ended. */
bool silence_is_all_that_is_left(const struct links *links, const struct presence *presence);

#endif
