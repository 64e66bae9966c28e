/* SPDX-License-Identifier: Apache-2.0 */
/* vision: data-parallel training on images, by libddp's public interface and the kernels.
   Every rank that fails says why on stderr and ends with 1; the others then end too, since
   the communicator is aborted. */
#include "vision/vision.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"
#include "progress.h"
#include "rank.h"
#include "table.h"
#include "threads.h"
#include "vision/options.h"

enum { NORM_LANE = 1 }; /* of sums that must not wait behind gradients */

struct trainer {
	const vision_example *example;
	vision_options options;
	struct rank self;
	dk_queue *kernels; /* NULL: the host's */
	net *net;
	ddp_request *sum; /* of the last normalisation on a device; NULL: it has been ended */
	ddp_model *params;
	ddp_image_shape shape;
	ddp_dataset dataset;
	ddp_loader *loader;
	ddp_image_transform transform;
	float *images;   /* [batch, height, width, channels] */
	int32_t *labels; /* [batch] */
	bool synthetic;
	int accumulate;  /* micro-batches of a step */
	bool stopped;
	progress progress; /* of rank 0 */
};

/* ---- data -------------------------------------------------------------------------------- */

/* Returns the usual shift and scale of such images. */
static ddp_image_transform transform_of(vision_data data, bool augment, uint64_t seed)
{
	static const float means[][3] = {[VISION_MNIST] = {0.1307f}, [VISION_CIFAR10] = {0.4914f, 0.4822f, 0.4465f}};
	static const float deviations[][3] = {[VISION_MNIST] = {0.3081f, 1, 1},
		[VISION_CIFAR10] = {0.2470f, 0.2435f, 0.2616f}};
	ddp_image_transform t = DDP_IMAGE_TRANSFORM;

	memcpy(t.mean, means[data], sizeof(means[data]));
	memcpy(t.deviation, deviations[data], sizeof(deviations[data]));
	if (augment) {
		t.crop_padding = 4;
		t.flip = data == VISION_CIFAR10; /* a mirrored digit is none */
		t.seed = seed;
	}
	return t;
}

/* The names that files are published by. */
static const char *const mnist[][2] = {
	{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"},
	{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
};
static const char *const cifar[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
	"data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
enum { CIFAR_PARTS = 5 };

typedef char path[PATH_MAX];

static void name_file(path file, const char *folder, bool synthetic, const char *name)
{
	snprintf(file, sizeof(path), "%s/%s%s", folder, synthetic ? "synthetic-" : "", name);
}

static ddp_status open_cifar(const char *folder, bool test, bool synthetic, ddp_image_shape *shape,
                             ddp_dataset *dataset)
{
	path files[CIFAR_PARTS];
	const char *paths[CIFAR_PARTS];
	/* Synthetic data are one file. */
	const int count = test || synthetic ? 1 : CIFAR_PARTS;

	for (int i = 0; i < count; i++) {
		name_file(files[i], folder, synthetic, cifar[test ? CIFAR_PARTS : i]);
		paths[i] = files[i];
	}
	return ddp_cifar10_open(paths, count, shape, dataset);
}

/* Opens the images to train on, or those to test with, of a folder: under the names that
   they are published by, or, if there are none, with "synthetic-" before them. *synthetic
   tells which. */
static ddp_status open_images(vision_data data, const char *folder, bool test, ddp_image_shape *shape,
                              ddp_dataset *dataset, bool *synthetic)
{
	path images, labels;

	name_file(images, folder, false, data == VISION_MNIST ? mnist[test][0] : cifar[test ? CIFAR_PARTS : 0]);
	*synthetic = false;
	if (access(images, F_OK) != 0) {
		path other;
		name_file(other, folder, true, data == VISION_MNIST ? mnist[test][0] : cifar[test ? CIFAR_PARTS : 0]);
		*synthetic = access(other, F_OK) == 0;
	}
	if (data == VISION_CIFAR10)
		return open_cifar(folder, test, *synthetic, shape, dataset);
	name_file(images, folder, *synthetic, mnist[test][0]);
	name_file(labels, folder, *synthetic, mnist[test][1]);
	return ddp_idx_open(images, labels, shape, dataset);
}

/* ---- set up ------------------------------------------------------------------------------ */

static bool start_library(struct trainer *t)
{
	ddp_options options = DDP_OPTIONS;
	options.metrics_path = t->options.metrics;
	options.trace_dir = t->options.trace;
	options.device = t->options.device;

	ddp_set_log(ddp_log_stderr, NULL, t->options.verbose ? DDP_LOG_DEBUG : DDP_LOG_WARN);
	if (!rank_fine(&t->self, ddp_init(&options, &t->self.context)))
		return false;
	t->self.job = ddp_get_job(t->self.context);
	dk_flush_denormals();
	dk_set_threads(choose_threads(t->options.threads, t->self.job));
	if (!rank_fine(&t->self, ddp_kernels_open(t->self.context, DK_TABLE_VERSION, DK_F32, NULL, &t->kernels)))
		return false;
	dk_use(t->kernels);
	return true;
}

static bool open_data(struct trainer *t)
{
	const vision_options *o = &t->options;
	ddp_loader_options options = DDP_LOADER_OPTIONS;
	options.batch_size = o->batch;
	options.seed = o->seed;
	options.readers = o->readers;

	t->transform = transform_of(t->example->data, t->example->augment && !o->plain, o->seed);
	if (!rank_fine(&t->self, open_images(t->example->data, o->data, false, &t->shape, &t->dataset, &t->synthetic)) ||
	    !rank_fine(&t->self, ddp_loader_create(t->self.context, &t->dataset, &options, &t->loader)))
		return false;
	const size_t size = (size_t)t->shape.channels * (size_t)t->shape.height * (size_t)t->shape.width;
	t->images = calloc((size_t)o->batch, size * sizeof(float));
	t->labels = calloc((size_t)o->batch, sizeof(int32_t));
	return t->images != NULL && t->labels != NULL ? true : rank_fail(&t->self, "no memory for %d images", o->batch);
}

/* Gives the network the library's arenas to work on. */
static bool bind(struct trainer *t, int count)
{
	float **data = calloc((size_t)count, sizeof(*data)), **grad = calloc((size_t)count, sizeof(*grad));
	const bool possible = data != NULL && grad != NULL;

	for (int i = 0; possible && i < count; i++) {
		data[i] = ddp_model_param_data(t->params, i);
		grad[i] = ddp_model_param_grad(t->params, i);
	}
	if (possible) {
		net_bind(t->net, data, grad);
		net_bind_loss(t->net, ddp_model_device_loss(t->params));
	}
	free(data);
	free(grad);
	return possible ? true : rank_fail(&t->self, "no memory for a list of %d parameters", count);
}

static ddp_status end_sum(struct trainer *t)
{
	ddp_request *sum = t->sum;

	t->sum = NULL;
	return sum != NULL ? ddp_wait(sum) : DDP_OK;
}

/* On a device the queue waits for it, and the host for the one before. */
static ddp_status sum_over_ranks(void *user, double *sums, int64_t count, ddp_memory memory)
{
	struct trainer *t = user;
	const ddp_operation operation = {.kind = DDP_ALL_REDUCE, .recv = sums, .count = (size_t)count, .type = DDP_F64,
		.op = DDP_SUM, .lane = NORM_LANE, .memory = memory};

	if (memory == DDP_MEMORY_HOST)
		return ddp_run(ddp_model_comm(t->params), &operation);
	ddp_status status = end_sum(t);
	if (status == DDP_OK)
		status = ddp_issue(ddp_model_comm(t->params), &operation, &t->sum);
	return status == DDP_OK ? ddp_wait_on(t->sum, NULL) : status;
}

static bool make_net(struct trainer *t)
{
	const vision_options *o = &t->options;
	const net_memory memory = {.alloc = rank_allocate, .release = rank_release, .user = &t->self};

	t->net = net_create_on(t->kernels != NULL ? &memory : NULL, o->batch, &t->shape, t->accumulate);
	if (t->net != NULL)
		t->example->build(t->net, o);
	if (t->net != NULL && net_is_too_small(t->net))
		return rank_fail(&t->self, "images of %d x %d are too small for this network", t->shape.height, t->shape.width);
	if (t->net != NULL && net_finish(t->net)) {
		net_use_graphs(t->net, !o->no_graphs);
		return true;
	}
	return t->self.told ? false : rank_fail(&t->self, "not enough memory for %d images; give a smaller --batch", o->batch);
}

static bool make_model(struct trainer *t)
{
	const vision_options *o = &t->options;
	ddp_model_options options = DDP_MODEL_OPTIONS;
	options.optimizer = o->optimizer;
	options.learning_rate = o->learning_rate;
	options.momentum = o->momentum;
	options.muon.match_rms = true;
	options.weight_decay = o->weight_decay;
	options.memory = t->kernels != NULL ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	int count;

	if (!make_net(t))
		return false;
	if (o->plain)
		net_drop_nothing(t->net);
	if (o->sync_batch_norm)
		net_sync_batch_norm(t->net, sum_over_ranks, t);
	const ddp_param *params = net_params(t->net, &count);
	if (!rank_fine(&t->self, ddp_model_create(t->self.context, params, count, &options, &t->params)) || !bind(t, count))
		return false;
	if (!net_initialise(t->net, o->seed))
		return rank_fail(&t->self, "no memory for the first values of %d parameters", count);
	return rank_fine(&t->self, ddp_model_broadcast_params(t->params));
}

/* ---- training ---------------------------------------------------------------------------- */

/* Fills t->images and t->labels. `batches` of an epoch come before this one. */
static bool prepare(struct trainer *t, const ddp_loader *loader, const ddp_batch *batch,
                    const ddp_image_transform *transform)
{
	const ddp_comm *comm = ddp_model_comm(t->params);
	const int64_t number = (batch->epoch * ddp_loader_batches_per_epoch(loader) + batch->batch) *
	                       ddp_comm_size(comm) + ddp_comm_rank(comm);

	if (!rank_fine(&t->self, ddp_transform_images(&t->shape, transform, batch->data, batch->samples,
	                                              (uint64_t)(number * t->options.batch), t->images, t->labels)))
		return false;
	for (int64_t i = 0; i < batch->samples; i++)
		if (t->labels[i] >= VISION_CLASSES)
			return rank_fail(&t->self, "%s holds an image of label %d, but there are %d classes", t->options.data,
			                 t->labels[i], VISION_CLASSES);
	return true;
}

/* The checkpoint holds the seed and counter of dropout; each rank has a part of the counters. */
static net_random random_of(const struct trainer *t)
{
	enum { COUNTER_BITS = 48 };
	const uint64_t part = (uint64_t)t->self.job->rank << COUNTER_BITS;
	net_random random = {.seed = t->options.seed};
	size_t bytes;
	const void *saved = ddp_model_user_state(t->params, &bytes);

	if (bytes == sizeof(random))
		memcpy(&random, saved, sizeof(random));
	/* A rank that was started in place of a dead one has got what another rank had. */
	random.counter = part | (random.counter & ((UINT64_C(1) << COUNTER_BITS) - 1));
	return random;
}

static ddp_status ready(void *user, int param)
{
	return ddp_model_grad_ready(user, param);
}

static ddp_status announce_all(struct trainer *t)
{
	ddp_status status = DDP_OK;
	int count;
	const ddp_param *params = net_params(t->net, &count);

	for (int i = count - 1; i >= 0 && status == DDP_OK; i--)
		if (params[i].kind == DDP_PARAM_TRAINED)
			status = ddp_model_grad_ready(t->params, i);
	return status;
}

static ddp_status compute(void *user, ddp_model *params, const ddp_batch *batch, double *weight, double *loss_sum)
{
	struct trainer *t = user;
	net_random random = random_of(t);

	if (batch->samples == 0 && !t->options.sync_batch_norm)
		return announce_all(t);
	if (batch->samples > 0 && !prepare(t, t->loader, batch, &t->transform))
		return DDP_ERR_FORMAT;
	const net_result result = net_forward(t->net, t->images, t->labels, (int)batch->samples, &random);
	if (result.status != DDP_OK)
		return result.status;
	*loss_sum += result.loss;
	*weight += (double)batch->samples;
	ddp_model_set_phase(params, DDP_PHASE_BACKWARD);
	ddp_status status = net_backward(t->net, ready, params);
	if (status == DDP_OK)
		status = end_sum(t);
	rank_tell_of_graphs(&t->self, net_graph_failure(t->net));
	if (dk_failure() != NULL) {
		rank_fail(&t->self, "%s", dk_failure());
		return DDP_ERR_NOMEM;
	}
	return status == DDP_OK ? ddp_model_set_user_state(params, &random, sizeof(random)) : status;
}

static ddp_status on_step(void *user, const ddp_step_stats *stats)
{
	struct trainer *t = user;

	if (rank_leads(t->params))
		progress_step(&t->progress, stats);
	return DDP_OK;
}

static bool train(struct trainer *t)
{
	const vision_options *o = &t->options;
	ddp_schedule schedule = DDP_SCHEDULE;
	schedule.kind = o->schedule;
	schedule.peak = o->learning_rate;
	schedule.floor = o->learning_rate / 10;
	schedule.warmup = o->warmup;
	schedule.total = o->steps;
	schedule.decay = o->decay;
	ddp_train_options options = DDP_TRAIN_OPTIONS;
	options.steps = o->steps;
	options.accumulate = t->accumulate;
	options.checkpoint_dir = o->checkpoint;
	options.resume = o->resume;
	options.survive = o->survive;
	options.schedule = &schedule;
	options.on_step = on_step;
	options.user = t;
	options.stop_signal = SIGTERM;
	ddp_summary summary;

	progress_start(&t->progress, stdout, o->steps, "images");
	if (t->self.job->rank == 0)
		printf("%s: %" PRId64 " %simages of %d x %d x %d; %d ranks on %d nodes, %" PRId64 " images a step\n", t->example->name,
		       t->dataset.size, t->synthetic ? "synthetic " : "", t->shape.channels, t->shape.height,
		       t->shape.width, t->self.job->world_size, t->self.job->nnodes,
		       (int64_t)o->batch * t->accumulate * t->self.job->world_size);
	if (!rank_fine(&t->self, ddp_train(t->params, t->loader, compute, &options, &summary)))
		return false;
	t->stopped = summary.stopped;
	if (rank_leads(t->params) && summary.first_step > 1)
		printf("resumed at step %" PRId64 "; of the steps since:\n", summary.first_step);
	if (rank_leads(t->params) && summary.steps > 0)
		printf("trained %" PRId64 " steps in %.1f s: %.0f images/s, loss %.4f -> %.4f\n", summary.steps,
		       summary.seconds, summary.units_per_second, summary.first_loss, summary.last_loss);
	else if (rank_leads(t->params))
		printf("nothing left to train: the checkpoint has done all of %" PRId64 " steps; for more, give a larger --steps\n",
		       o->steps);
	return true;
}

/* ---- test -------------------------------------------------------------------------------- */

/* Each image once, whatever the number of ranks; sums of all ranks. */
static bool test_with(struct trainer *t, ddp_loader *loader)
{
	enum { BATCHES_APART = 64 }; /* so many at most, lest a slow rank be taken for one that hangs; none
	                                before rank 0 has told of the training */
	const ddp_image_transform plain = transform_of(t->example->data, false, 0);
	double sums[3] = {0}; /* images, right ones, loss */
	ddp_batch batch;

	ddp_model_set_phase(t->params, DDP_PHASE_EVAL);
	for (int64_t i = 0; i < ddp_loader_batches_per_epoch(loader); i++) {
		if (i % BATCHES_APART == 0 && !rank_fine(&t->self, ddp_barrier(ddp_model_comm(t->params))))
			return false;
		if (!rank_fine(&t->self, ddp_loader_next(loader, &batch)))
			return false;
		if (batch.samples == 0)
			continue;
		if (!prepare(t, loader, &batch, &plain))
			return false;
		const net_result r = net_forward(t->net, t->images, t->labels, (int)batch.samples, NULL);
		if (dk_failure() != NULL)
			return rank_fail(&t->self, "%s", dk_failure());
		sums[0] += (double)batch.samples;
		sums[1] += (double)r.right;
		sums[2] += r.loss;
	}
	if (!rank_fine(&t->self, ddp_all_reduce(ddp_model_comm(t->params), sums, sums, 3, DDP_F64, DDP_SUM)))
		return false;
	if (rank_leads(t->params))
		printf("test: %.2f%% of %.0f images are right, loss %.4f\n", 100 * sums[1] / sums[0], sums[0],
		       sums[2] / sums[0]);
	return true;
}

static bool test(struct trainer *t)
{
	ddp_loader_options options = DDP_LOADER_OPTIONS;
	options.batch_size = t->options.batch;
	options.sequential = true;
	options.tail = DDP_TAIL_UNEVEN;
	options.readers = t->options.readers;
	options.comm = ddp_model_comm(t->params);
	ddp_dataset dataset = {0};
	ddp_loader *loader = NULL;
	ddp_image_shape shape;
	bool synthetic;

	bool passed = rank_fine(&t->self, open_images(t->example->data, t->options.data, true, &shape, &dataset, &synthetic));
	if (passed && (shape.height != t->shape.height || shape.width != t->shape.width))
		passed = rank_fail(&t->self, "%s: images to test with are of another size", t->options.data);
	passed = passed && rank_fine(&t->self, ddp_loader_create(t->self.context, &dataset, &options, &loader)) &&
	         test_with(t, loader);
	ddp_loader_free(loader);
	ddp_dataset_close(&dataset);
	return passed;
}

/* ---- main -------------------------------------------------------------------------------- */

static bool run_rank(struct trainer *t)
{
	bool passed = start_library(t) &&
	              rank_accumulate(&t->self, "--images-per-update", t->options.images_per_update, t->options.batch,
	                              &t->accumulate) &&
	              open_data(t) && make_model(t) && train(t) && (t->stopped || test(t));

	ddp_loader_free(t->loader);
	ddp_dataset_close(&t->dataset);
	ddp_model_free(t->params);
	(void)end_sum(t); /* of a training that failed */
	net_free(t->net);
	dk_use(NULL);
	ddp_kernels_close(t->kernels);
	free(t->images);
	free(t->labels);
	return rank_end(&t->self, passed);
}

int vision_main(int argc, char **argv, const vision_example *example)
{
	struct trainer t = {.example = example, .self.program = example->name, .accumulate = 1};

	vision_read_options(argc, argv, example, &t.options);
	rank_spawn(t.self.program, t.options.spawn);
	if (!run_rank(&t))
		return EXIT_FAILURE;
	/* Not 0: jobs that wait for this one's end would begin with half a model. */
	return t.stopped ? t.options.stopped_exit : EXIT_SUCCESS;
}
