/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/judge_facts: which facts of nodes and ranks are not those of most, and which are wrong by themselves.
   Pure. */
#pragma once

#include "preflight/facts.h"
#include "preflight/finding.h"

/* facts[rank] of all ranks */
void preflight_facts_judge(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks);
