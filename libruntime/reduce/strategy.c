/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/strategy.h"

const ddp_strategy *ddp_strategy_choose(const ddp_model_settings *settings, int ranks, int nodes,
                                        bool on_host)
{
	if (ranks == 1)
		return &ddp_all_reduce_strategy;
	if (settings->hook.start != NULL)
		return &ddp_hook_strategy;
	if (settings->local_steps > 0)
		return &ddp_local_strategy;
	if (settings->compress == DDP_COMPRESS_POWERSGD)
		return &ddp_powersgd_strategy;
	if (settings->compress != DDP_COMPRESS_NONE)
		return &ddp_compress_strategy;
	if (settings->shard == DDP_SHARD_NONE)
		return &ddp_all_reduce_strategy;
	if (settings->shard == DDP_SHARD_GRADIENTS)
		return &ddp_scatter_gradients_strategy;
	const bool shared = on_host && settings->params_memory == NULL && settings->grads_memory == NULL;
	/* In shared memory, sum, update and publication are one pass. */
	if (nodes == 1 && shared)
		return &ddp_node_strategy;
	if (ranks > nodes && shared && settings->shard == DDP_SHARD_AUTO)
		return &ddp_hybrid_strategy;
	return settings->shard == DDP_SHARD_STATE ? &ddp_scatter_strategy : &ddp_all_reduce_strategy;
}
