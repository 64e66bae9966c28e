#include "tests/support/training.h"

const ddp_shard shards[SHARDS] = { DDP_SHARD_NONE, DDP_SHARD_STATE, DDP_SHARD_GRADIENTS };

void start(ddp_context *context, const ddp_dataset *dataset, const setup *with,
           ddp_model **model, ddp_loader **loader)
{
	const ddp_model_options model_options = {
		.size = sizeof(model_options),
		.learning_rate = 0.01, .weight_decay = 0.1, .clip_norm = with->clip_norm,
		.bucket_mb = with->bucket_bytes / (1 << 20), .shard = with->shard,
		.loss_scaling = with->scaled ? DDP_SCALING_DYNAMIC : DDP_SCALING_NONE,
	};
	const ddp_loader_options loader_options = {
		.size = sizeof(loader_options),
		.batch_size = GLOBAL_BATCH / ddp_get_job(context)->world_size / with->accumulate,
		.seed = SEED, .tail = DDP_TAIL_UNEVEN,
	};

	CHECK_OK(ddp_model_create(context, mlp_params, MLP_PARAMS, &model_options, model));
	/* Only rank 0's start counts. */
	for (int p = 0; p < MLP_PARAMS && ddp_get_job(context)->rank == 0; p++)
		mlp_init(p, ddp_param_data(*model, p), ddp_param_count(*model, p));
	CHECK_OK(ddp_broadcast_params(*model));
	CHECK_OK(ddp_loader_create(context, dataset, &loader_options, loader));
}

void train(ddp_context *context, const setup *with, float *out)
{
	const ddp_dataset dataset = mlp_dataset(SAMPLES);
	const ddp_train_options options = {
		.size = sizeof(options),
		.steps = with->steps, .accumulate = with->accumulate,
		.checkpoint_dir = with->checkpoint_dir, .resume = with->resume,
	};
	ddp_model *model;
	ddp_loader *loader;
	ddp_summary summary;

	start(context, &dataset, with, &model, &loader);
	CHECK_OK(ddp_train(model, loader, mlp_batch, &options, &summary));
	CHECK(summary.last_loss < summary.first_loss || with->resume);
	mlp_pack(model, out);
	ddp_loader_free(loader);
	ddp_model_free(model);
}
