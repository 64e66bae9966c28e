/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/rule.h"

static const ddp_optim_rule *const rules[] = {
	[DDP_ADAMW] = &ddp_adamw_rule, [DDP_SGD] = &ddp_sgd_rule, [DDP_ADAM] = &ddp_adam_rule,
	[DDP_LAMB] = &ddp_lamb_rule, [DDP_ADAFACTOR] = &ddp_adafactor_rule, [DDP_MUON] = &ddp_muon_rule,
};

const ddp_optim_rule *ddp_optim_rule_of(ddp_optimizer kind)
{
	return (size_t)kind < sizeof(rules) / sizeof(rules[0]) ? rules[kind] : NULL;
}
