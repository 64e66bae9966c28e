/* SPDX-License-Identifier: Apache-2.0 */
/* rank_storage: one rank of the benchmark "storage".

     rank_storage checkpoint FOLDER TENSORS ELEMENTS   saves a model with AdamW's state, and loads it
     rank_storage tokens FILE LENGTH BATCH BATCHES READERS
     rank_storage images FILE BATCH BATCHES READERS    CIFAR-10's format; crops, flips and normalises

   Prints "save SECONDS" and "load SECONDS", or the seconds of one batch. The first batches, and the first save,
   are not in them. */
#include <ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rank.h"

enum { WARM_UP_BATCHES = 10, NAME_BYTES = 32 };

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "rank_storage: %s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(1);
}

static long number(const char *text)
{
	return rank_number("argument", text, 1, 1L << 40);
}

static ddp_model *make_model(ddp_context *context, int tensors, int64_t elements)
{
	ddp_param *params = calloc((size_t)tensors, sizeof *params);
	char (*names)[NAME_BYTES] = calloc((size_t)tensors, sizeof *names);
	ddp_model_options options = DDP_MODEL_OPTIONS;
	ddp_step_stats stats;
	ddp_model *model;

	if (!params || !names)
		exit(1);
	for (int i = 0; i < tensors; i++) {
		snprintf(names[i], sizeof names[i], "weight%d", i);
		params[i] = (ddp_param){.name = names[i], .ndim = 1, .shape = {elements}};
	}
	options.optimizer = DDP_ADAMW;
	check(ddp_model_create(context, params, tensors, &options, &model));
	check(ddp_model_broadcast_params(model));
	for (int i = tensors - 1; i >= 0; i--)
		check(ddp_model_grad_ready(model, i));
	check(ddp_model_step(model, 1, 1, &stats));
	free(params);
	free(names);
	return model;
}

static void checkpoints(ddp_context *context, char **arguments)
{
	ddp_model *model = make_model(context, (int)number(arguments[1]), number(arguments[2]));
	int64_t step;
	uint64_t start;

	check(ddp_checkpoint_save(model, NULL, arguments[0], 1));
	start = ddp_now_ns();
	check(ddp_checkpoint_save(model, NULL, arguments[0], 1));
	printf("save %.9f\n", ddp_seconds_since(start));
	start = ddp_now_ns();
	check(ddp_checkpoint_load(model, NULL, arguments[0], &step));
	printf("load %.9f\n", ddp_seconds_since(start));
	ddp_model_free(model);
}

static void batches(ddp_context *context, ddp_dataset *dataset, char **arguments, const ddp_image_shape *shape)
{
	ddp_loader_options options = DDP_LOADER_OPTIONS;
	ddp_image_transform transform = DDP_IMAGE_TRANSFORM;
	const long count = number(arguments[1]);
	float *images = shape ? calloc((size_t)number(arguments[0]) * 3072, sizeof *images) : NULL;
	int32_t *labels = shape ? calloc((size_t)number(arguments[0]), sizeof *labels) : NULL;
	ddp_loader *loader;
	ddp_batch batch;
	uint64_t start = 0;

	transform.crop_padding = 4;
	transform.flip = true;
	options.batch_size = (int)number(arguments[0]);
	options.readers = (int)number(arguments[2]);
	options.prefetch = options.readers + 1;
	check(ddp_loader_create(context, dataset, &options, &loader));
	for (long i = -WARM_UP_BATCHES; i < count; i++) {
		if (i == 0)
			start = ddp_now_ns();
		check(ddp_loader_next(loader, &batch));
		if (shape)
			check(ddp_transform_images(shape, &transform, batch.data, batch.samples,
			                           (uint64_t)(i + WARM_UP_BATCHES) * (uint64_t)options.batch_size, images, labels));
	}
	printf("batch %.9f\n", ddp_seconds_since(start) / (double)count);
	ddp_loader_free(loader);
	ddp_dataset_close(dataset);
	free(images);
	free(labels);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	ddp_spawn_result spawned;
	ddp_context *context;
	ddp_image_shape shape;
	ddp_dataset dataset;

	if (!(argc == 5 && strcmp(what, "checkpoint") == 0) && !(argc == 7 && strcmp(what, "tokens") == 0) &&
	    !(argc == 6 && strcmp(what, "images") == 0)) {
		fprintf(stderr, "usage: see rank_storage.c\n");
		return 2;
	}
	check(ddp_spawn(1, &spawned));
	if (!spawned.is_rank)
		return spawned.exit_code;
	check(ddp_init(NULL, &context));
	if (what[0] == 'c') {
		checkpoints(context, argv + 2);
	} else if (what[0] == 't') {
		check(ddp_tokens_open(argv[2], DDP_TOKENS_U16, (int)number(argv[3]), 0, 1, &dataset));
		batches(context, &dataset, argv + 4, NULL);
	} else {
		const char *path = argv[2];

		check(ddp_cifar10_open(&path, 1, &shape, &dataset));
		batches(context, &dataset, argv + 3, &shape);
	}
	fflush(stdout);
	check(ddp_finalize(context));
	return 0;
}
