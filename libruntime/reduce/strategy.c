#include "reduce/strategy.h"

const ddp_strategy *ddp_strategy_choose(ddp_shard shard, int ranks, int nodes)
{
	if (ranks == 1 || shard == DDP_SHARD_NONE)
		return &ddp_all_reduce_strategy;
	if (shard == DDP_SHARD_GRADIENTS)
		return &ddp_scatter_gradients_strategy;
	/* In shared memory, sum, update and publication are one pass. */
	if (nodes == 1)
		return &ddp_node_strategy;
	return shard == DDP_SHARD_STATE ? &ddp_scatter_strategy : &ddp_all_reduce_strategy;
}
