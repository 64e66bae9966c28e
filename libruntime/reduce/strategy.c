/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/strategy.h"

const ddp_strategy *ddp_strategy_choose(const ddp_model_settings *settings, int ranks, int nodes,
                                        bool on_host)
{
	if (ranks == 1)
		return &ddp_all_reduce_strategy;
	if (settings->options.hook.start != NULL)
		return &ddp_hook_strategy;
	if (settings->options.local_sgd.steps > 0)
		return &ddp_local_strategy;
	if (settings->options.compress == DDP_COMPRESS_POWERSGD)
		return &ddp_powersgd_strategy;
	if (settings->options.compress != DDP_COMPRESS_NONE)
		return &ddp_compress_strategy;
	if (settings->options.shard == DDP_SHARD_NONE)
		return &ddp_all_reduce_strategy;
	if (settings->options.shard == DDP_SHARD_GRADIENTS)
		return &ddp_scatter_gradients_strategy;
	const bool shared = on_host && settings->options.params_memory == NULL && settings->options.grads_memory == NULL;
	/* In shared memory, sum, update and publication are one pass. */
	if (nodes == 1 && shared)
		return &ddp_node_strategy;
	if (ranks > nodes && shared && settings->options.shard == DDP_SHARD_AUTO)
		return &ddp_hybrid_strategy;
	return settings->options.shard == DDP_SHARD_STATE ? &ddp_scatter_strategy : &ddp_all_reduce_strategy;
}
