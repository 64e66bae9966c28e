/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/differences: in what nodes and ranks differ that should not, and which facts are wrong by themselves.
   Pure. */
#pragma once

#include "preflight/facts.h"
#include "preflight/finding.h"

/* facts[rank] of all ranks */
void preflight_differences(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks);
