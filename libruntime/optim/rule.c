/* SPDX-License-Identifier: Apache-2.0 */
#include "optim/rule.h"

const ddp_optim_rule *ddp_optim_rule_of(ddp_optimizer kind)
{
	switch (kind) {
#define RULE(NAME, name) case DDP_##NAME: return &ddp_##name##_rule;
	DDP_OPTIMIZERS(RULE)
#undef RULE
	}
	return NULL;
}

const char *ddp_optimizer_enumerators(void)
{
#define ENUMERATOR(NAME, name) ", DDP_" #NAME
	static const char list[] = DDP_OPTIMIZERS(ENUMERATOR);
#undef ENUMERATOR

	return list + sizeof(", ") - 1;
}
