/* SPDX-License-Identifier: Apache-2.0 */
/* linear - the smallest training: fits y = 3 a - 2 b + 1 to samples that each rank draws for
   itself, and says what it found.

     srun --ddp -N2 --ntasks-per-node=2 linear
     linear --spawn 4 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "option_table.h"
#include "rank.h"

enum { SAMPLES = 16, EXIT_WRONG_RESULT = 1, EXIT_USAGE = 2 };
enum { WEIGHT, BIAS, PARAMS };

struct options {
	int spawn;
	int64_t steps;
	double learning_rate;
	bool survive;
};

#define AT(member) .at = offsetof(struct options, member)

static const option_row rows[] = {
	{OPTION_INT, "spawn", "N", AT(spawn), "start N ranks on this host, without a launcher", 1, 1024},
	{OPTION_INTEGER, "steps", "N", AT(steps), "steps", 1, INT32_MAX},
	{OPTION_REAL, "lr", "X", AT(learning_rate), "learning rate"},
	{OPTION_FLAG, "survive", NULL, AT(survive), "if a rank or a node dies, the other ranks go on"},
};

static const option_form form = {.program = "linear", .usage = "[OPTION]...",
	.about = "Fits y = 3 a - 2 b + 1 to random samples by gradient descent, 16 samples a rank\n"
	         "and step. Start it with srun --ddp, or with --spawn.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]),
	.end = "Exit status: 0 it found the numbers, 1 it did not, 2 usage, 3 the library\n"
	       "reports an error.\n",
	.wrong = EXIT_USAGE};

static void check(ddp_status status)
{
	rank_must("linear", status);
}

/* Adds the gradient of the summed loss of this rank's samples; returns that loss. */
static double compute(ddp_model *model, unsigned *seed)
{
	const float *weight = ddp_model_param_data(model, WEIGHT), *bias = ddp_model_param_data(model, BIAS);
	float *weight_grad = ddp_model_param_grad(model, WEIGHT), *bias_grad = ddp_model_param_grad(model, BIAS);
	double loss = 0;

	for (int i = 0; i < SAMPLES; i++) {
		const float a = (float)rand_r(seed) / (float)RAND_MAX, b = (float)rand_r(seed) / (float)RAND_MAX;
		const float error = weight[0] * a + weight[1] * b + bias[0] - (3 * a - 2 * b + 1);
		loss += error * error;
		weight_grad[0] += 2 * error * a;
		weight_grad[1] += 2 * error * b;
		bias_grad[0] += 2 * error;
	}
	return loss;
}

static ddp_status step(ddp_model *model, unsigned *seed, ddp_step_stats *stats)
{
	const double loss = compute(model, seed);
	ddp_status status = ddp_model_grad_ready(model, BIAS);

	if (status == DDP_OK)
		status = ddp_model_grad_ready(model, WEIGHT);
	return status == DDP_OK ? ddp_model_step(model, SAMPLES, loss, stats) : status;
}

static int train(const struct options *o)
{
	const ddp_param params[PARAMS] = {[WEIGHT] = {.name = "weight", .ndim = 1, .shape = {2}},
		[BIAS] = {.name = "bias", .ndim = 1, .shape = {1}}};
	ddp_model_options options = DDP_MODEL_OPTIONS;
	options.optimizer = DDP_SGD;
	options.learning_rate = o->learning_rate;
	ddp_context *context;
	ddp_model *model;
	ddp_step_stats stats = {0};

	check(ddp_init(NULL, &context));
	const ddp_job *job = ddp_get_job(context);
	check(ddp_model_create(context, params, PARAMS, &options, &model));
	check(ddp_model_broadcast_params(model)); /* they start as zero here */
	int64_t done = 0;
	if (o->survive)
		check(ddp_survive(model, NULL, DDP_OK, &done));
	while (done < o->steps) {
		/* Each rank draws its own samples, which are the same if another process becomes that rank. */
		unsigned seed = 1 + (unsigned)(done * job->world_size + job->rank);
		ddp_status status = step(model, &seed, &stats);
		done++;
		if (o->survive)
			status = ddp_survive(model, NULL, status, &done);
		check(status);
	}
	const float *w = ddp_model_param_data(model, WEIGHT), b = *ddp_model_param_data(model, BIAS);
	const bool found = fabsf(w[0] - 3) < 0.1f && fabsf(w[1] + 2) < 0.1f && fabsf(b - 1) < 0.1f;
	const ddp_comm *comm = ddp_model_comm(model); /* of the ranks that are left */
	if (ddp_comm_rank(comm) == 0)
		printf("%d ranks, %" PRId64 " steps: loss %.6f, y = %.2f a %+.2f b %+.2f%s\n", ddp_comm_size(comm), o->steps,
		       stats.loss, w[0], w[1], b, found ? "" : ": not y = 3 a - 2 b + 1");
	ddp_model_free(model);
	check(ddp_finalize(context));
	return found ? EXIT_SUCCESS : EXIT_WRONG_RESULT;
}

int main(int argc, char **argv)
{
	struct options o = {.steps = 400, .learning_rate = 0.3};

	options_read(&form, argc, argv, &o);
	if (!(o.learning_rate > 0))
		options_wrong(&form, "--lr %g: must be above 0", o.learning_rate);
	rank_spawn(form.program, o.spawn);
	return train(&o);
}
