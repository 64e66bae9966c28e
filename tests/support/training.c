/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/options.h"
#include "tests/support/training.h"

const ddp_shard shards[SHARDS] = { DDP_SHARD_NONE, DDP_SHARD_STATE, DDP_SHARD_GRADIENTS };

training start(ddp_context *context, const setup *with)
{
	const ddp_dataset dataset = mlp_dataset(SAMPLES);
	ddp_comm *comm = with->comm != NULL ? with->comm : ddp_world(context);
	const ddp_model_options model_options = {
		DDP_MODEL_OPTIONS_FIELDS,
		.learning_rate = 0.01, .weight_decay = 0.1, .clip_norm = with->clip_norm,
		.bucket_mb = with->bucket_bytes / (1 << 20), .shard = with->shard,
		.loss_scaling.kind = with->scaled ? DDP_SCALING_DYNAMIC : DDP_SCALING_NONE, .comm = with->comm,
	};
	const ddp_loader_options loader_options = {
		DDP_LOADER_OPTIONS_FIELDS,
		.batch_size = GLOBAL_BATCH / ddp_comm_size(comm) / with->accumulate,
		.seed = SEED, .tail = DDP_TAIL_UNEVEN, .comm = with->comm,
	};
	training t;

	CHECK_OK(ddp_model_create(context, mlp_params, MLP_PARAMS, &model_options, &t.model));
	/* Only rank 0's start counts. */
	for (int p = 0; p < MLP_PARAMS && ddp_comm_rank(comm) == 0; p++)
		mlp_init(p, ddp_model_param_data(t.model, p), ddp_model_param_count(t.model, p));
	CHECK_OK(ddp_model_broadcast_params(t.model));
	CHECK_OK(ddp_loader_create(context, &dataset, &loader_options, &t.loader));
	return t;
}

void finish(training t)
{
	ddp_loader_free(t.loader);
	ddp_model_free(t.model);
}

void train(ddp_context *context, const setup *with, float *out)
{
	const ddp_train_options options = {
		DDP_TRAIN_OPTIONS_FIELDS,
		.steps = with->steps, .accumulate = with->accumulate,
		.checkpoint_dir = with->checkpoint_dir, .resume = with->resume,
	};
	ddp_summary summary;

	const training t = start(context, with);
	CHECK_OK(ddp_train(t.model, t.loader, mlp_batch, &options, &summary));
	CHECK(summary.last_loss < summary.first_loss || with->resume);
	mlp_pack(t.model, out);
	finish(t);
}
