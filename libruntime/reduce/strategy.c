#include "reduce/strategy.h"

const ddp_strategy *ddp_strategy_choose(ddp_update_mode mode, int ranks, int nodes)
{
	if (ranks > 1 && nodes == 1 && mode != DDP_REPLICATED)
		return &ddp_node_strategy;
	return &ddp_all_reduce_strategy;
}
