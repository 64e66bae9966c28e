/* SPDX-License-Identifier: Apache-2.0 */
/* gpt: trains a GPT-2 on a file, data-parallel, by libddp's public interface
   and the kernels. Every rank that fails says why on stderr and ends with 1;
   the others then end too, since the communicator is aborted. What all ranks see
   alike, rank 0 tells. */
#include <ctype.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt/options.h"
#include "gpt/report.h"
#include "kernels.h"
#include "models/gpt_ddp.h"
#include "rank.h"
#include "table.h"
#include "threads.h"

struct trainer {
	gpt_options options;
	struct rank self;
	dk_queue *kernels; /* of the model's passes; NULL: the host's, of f32 */
	gpt *model;
	ddp_model *params;
	ddp_dataset dataset, test; /* the latter if there is one to test with */
	ddp_loader *loader, *test_loader;
	report report;
	uint16_t **f16;     /* the parameters in f16, if the model is; else NULL */
	ddp_status arrived; /* of parameters that come while forward runs: the first error */
	bool stopped;
};

/* ---- set up ------------------------------------------------------------------------------ */

static bool start_library(struct trainer *t)
{
	const gpt_options *o = &t->options;
	ddp_options options = DDP_OPTIONS;
	options.metrics_path = o->metrics;
	options.trace_dir = o->trace;
	options.device = o->device;

	ddp_set_log(ddp_log_stderr, NULL, o->verbose ? DDP_LOG_DEBUG : DDP_LOG_WARN);
	ddp_status status = ddp_init(&options, &t->self.context);
	if (!rank_fine(&t->self, status))
		return false;
	t->self.job = ddp_get_job(t->self.context);
	dk_flush_denormals();
	dk_set_threads(choose_threads(t->options.threads, t->self.job));
	const dk_type type = o->model.f16 ? DK_MIXED_F16 : o->model.mixed ? DK_MIXED : o->tf32 ? DK_TF32 : DK_F32;
	status = ddp_kernels_open(t->self.context, DK_TABLE_VERSION, type, NULL, &t->kernels);
	return rank_fine(&t->self, status);
}

static bool open_data(struct trainer *t)
{
	const gpt_options *o = &t->options;
	ddp_loader_options options = DDP_LOADER_OPTIONS;
	options.batch_size = o->batch;
	options.seed = o->seed;
	options.readers = o->readers;

	ddp_status status = ddp_tokens_open(o->data, o->format, o->model.length, 0, 1, &t->dataset);
	if (status == DDP_OK)
		status = ddp_loader_create(t->self.context, &t->dataset, &options, &t->loader);
	if (status == DDP_OK && o->test != NULL)
		status = ddp_tokens_open(o->test, o->format, o->model.length, 0, 1, &t->test);
	return rank_fine(&t->self, status);
}

/* Makes room for the parameters in f16, which await_param() fills. */
static bool make_f16(struct trainer *t, int count)
{
	t->f16 = calloc((size_t)count, sizeof(*t->f16));
	for (int i = 0; t->f16 != NULL && i < count; i++)
		if ((t->f16[i] = malloc((size_t)ddp_model_param_count(t->params, i) * sizeof(**t->f16))) == NULL)
			return false;
	return t->f16 != NULL;
}

static void free_f16(struct trainer *t)
{
	int count = 0;

	if (t->f16 == NULL)
		return;
	gpt_params(t->model, &count);
	for (int i = 0; i < count; i++)
		free(t->f16[i]);
	free(t->f16);
}

/* The passes read the parameters in 16 bits. */
static bool bind_narrow(struct trainer *t, int count)
{
	float **data = calloc(2 * (size_t)count, sizeof(*data));

	if (data == NULL || (t->options.model.f16 && !make_f16(t, count))) {
		free(data);
		return false;
	}
	for (int i = 0; i < count; i++) {
		data[i] = t->f16 != NULL ? (float *)(void *)t->f16[i] : (float *)(uintptr_t)ddp_model_param_bf16(t->params, i);
		data[count + i] = ddp_model_param_grad(t->params, i);
	}
	gpt_bind(t->model, data, data + count);
	free(data);
	return true;
}

/* Gives the model the library's arenas to work on, and initialises the parameters. */
static bool bind(struct trainer *t, int count)
{
	dk_queue *before = dk_use(t->kernels);
	const bool possible = gpt_bind_model(t->model, t->params) && gpt_initialise(t->model, t->options.seed);

	dk_use(before);
	gpt_bind_loss(t->model, ddp_model_device_loss(t->params));
	if (possible && (!t->options.model.mixed || bind_narrow(t, count)))
		return true;
	return rank_fail(&t->self, "no memory for the first values of %d parameters", count);
}

static bool create_model(struct trainer *t)
{
	const gpt_options *o = &t->options;
	const gpt_memory memory = {.alloc = rank_allocate, .release = rank_release, .user = &t->self};

	t->model = gpt_create_on(gpt_on_device(o) ? &memory : NULL, &o->model, o->batch, o->accumulate);
	if (t->model != NULL)
		gpt_use_graphs(t->model, !o->no_graphs);
	if (t->model != NULL || t->self.told)
		return t->model != NULL;
	return rank_fail(&t->self, "not enough memory for %d samples of %d tokens; give a smaller --batch or --length",
	                 o->batch, o->model.length);
}

/* Muon is for the layers' matrices; embeddings whose gradients have rows are none to it. */
static ddp_status make_params(struct trainer *t, const ddp_model_options *options)
{
	const ddp_param_group by_adamw = {.learning_rate_factor = 1, .weight_decay = options->weight_decay, .adamw = true};
	int count;
	const ddp_param *params = gpt_params(t->model, &count);
	ddp_param *own = calloc((size_t)count, sizeof(*own));

	if (own == NULL) {
		rank_fail(&t->self, "no memory for a list of %d parameters", count);
		return DDP_ERR_NOMEM;
	}
	for (int i = 0; i < count; i++) {
		own[i] = params[i];
		if (strcmp(own[i].name, "wpe.weight") == 0 || strcmp(own[i].name, "lm_head.weight") == 0)
			own[i].group = &by_adamw;
	}
	ddp_status status = ddp_model_create(t->self.context, own, count, options, &t->params);
	free(own);
	return status;
}

static double momentum_of(const gpt_options *o)
{
	if (o->momentum < 0)
		return o->optimizer == DDP_SGD ? 0.9 : DDP_AUTO;
	return o->momentum;
}

static bool make_model(struct trainer *t)
{
	const gpt_options *o = &t->options;
	ddp_model_options options = DDP_MODEL_OPTIONS;
	options.bucket_mb = o->bucket_mb;
	options.optimizer = o->optimizer;
	options.momentum = momentum_of(o);
	options.muon.match_rms = true;
	options.learning_rate = o->learning_rate;
	options.beta2 = 0.95;
	options.weight_decay = o->weight_decay;
	options.clip_norm = o->clip;
	options.shard = o->shard;
	options.buddy = o->buddy;
	options.late_gather = true;
	options.compress = o->compress;
	options.powersgd.rank = o->powersgd_rank;
	options.powersgd.start = o->powersgd_start;
	options.local_sgd.steps = o->local_steps;
	options.local_sgd.start = o->local_start;
	options.bf16_params = o->model.mixed && !o->model.f16;
	if (o->model.f16)
		options.loss_scaling.kind = DDP_SCALING_DYNAMIC;
	if (o->loss_scale > 0)
		options.loss_scaling.initial = o->loss_scale;
	options.memory = gpt_on_device(o) ? DDP_MEMORY_DEVICE : DDP_MEMORY_HOST;
	int count;

	if (!create_model(t))
		return false;
	ddp_status status = make_params(t, &options);
	if (!rank_fine(&t->self, status))
		return false;
	gpt_params(t->model, &count);
	if (!bind(t, count))
		return false;
	status = ddp_model_broadcast_params(t->params);
	return rank_fine(&t->self, status);
}

/* ---- training ---------------------------------------------------------------------------- */

static ddp_status announce_all(ddp_model *params, gpt *model)
{
	ddp_status status = DDP_OK;
	int count;

	gpt_params(model, &count);
	for (int i = count - 1; i >= 0 && status == DDP_OK; i--)
		status = ddp_model_grad_ready(params, i);
	return status;
}

/* With shards, the parameters of later layers come while earlier ones compute. A model of f16 rounds each anew, before
   its first use in a pass. */
static void await_param(void *user, int param)
{
	struct trainer *t = user;

	if (t->arrived == DDP_OK)
		t->arrived = ddp_model_param_wait(t->params, param);
	if (t->arrived == DDP_OK && t->f16 != NULL)
		dk_to_f16(t->f16[param], ddp_model_param_data(t->params, param), ddp_model_param_count(t->params, param), 1);
}

/* A batch's place in the data decides what it drops. A checkpoint has that place, so a training that
   goes on drops what it would have dropped. */
static uint64_t pass_number(const struct trainer *t, const ddp_batch *batch)
{
	const int64_t number = batch->epoch * ddp_loader_batches_per_epoch(t->loader) + batch->batch;
	const ddp_comm *comm = ddp_model_comm(t->params);

	return (uint64_t)number * (uint64_t)ddp_comm_size(comm) + (uint64_t)ddp_comm_rank(comm);
}

static ddp_status pass(struct trainer *t, const ddp_batch *batch, double *loss_sum)
{
	dk_queue *before = dk_use(t->kernels);

	gpt_set_dropout(t->model, t->options.dropout, t->options.seed, pass_number(t, batch));
	*loss_sum += gpt_forward(t->model, batch->data, (int)batch->samples, t->options.model.length);
	ddp_model_set_phase(t->params, DDP_PHASE_BACKWARD);
	ddp_status status = t->arrived;
	gpt_scale_loss(t->model, ddp_model_loss_scale(t->params));
	if (status == DDP_OK)
		status = gpt_backward(t->model, gpt_grad_ready, gpt_grad_rows, t->params);
	const char *failure = dk_failure();
	dk_use(before);
	rank_tell_of_graphs(&t->self, gpt_graph_failure(t->model));
	if (failure != NULL) {
		rank_fail(&t->self, "%s", failure);
		return DDP_ERR_NOMEM;
	}
	return status;
}

/* That the model knows all tokens of a batch of a file. */
static bool knows(struct trainer *t, const char *file, const ddp_batch *batch)
{
	const int32_t *tokens = batch->data;
	const int64_t stray = gpt_stray_token(t->model, tokens, batch->samples * (t->options.model.length + 1));

	return stray < 0 ? true
	                 : rank_fail(&t->self, "%s holds token %d, but the vocabulary has %d; give --vocab %d or more, or "
	                             "another --format", file, tokens[stray], t->options.model.vocab, tokens[stray] + 1);
}

static ddp_status compute(void *user, ddp_model *params, const ddp_batch *batch,
                          double *weight, double *loss_sum)
{
	struct trainer *t = user;

	if (batch->samples == 0)
		return announce_all(params, t->model);
	if (!knows(t, t->options.data, batch))
		return DDP_ERR_FORMAT;
	*weight += (double)batch->samples * t->options.model.length;
	return pass(t, batch, loss_sum);
}

static ddp_status on_step(void *user, const ddp_step_stats *stats)
{
	struct trainer *t = user;

	report_step(&t->report, stats, ddp_model_loss_scale(t->params), rank_leads(t->params));
	return DDP_OK;
}

/* Each sample once, whatever the number of ranks, which are those that are left. */
static bool open_test(struct trainer *t)
{
	ddp_loader_options once = DDP_LOADER_OPTIONS;
	once.batch_size = t->options.batch;
	once.sequential = true;
	once.tail = DDP_TAIL_UNEVEN;
	once.readers = t->options.readers;
	once.comm = ddp_model_comm(t->params);

	ddp_status status = ddp_loader_create(t->self.context, &t->test, &once, &t->test_loader);
	return rank_fine(&t->self, status);
}

static void test_batch(struct trainer *t, double sums[2])
{
	const int length = t->options.model.length;
	ddp_batch batch;
	const ddp_status status = ddp_loader_next(t->test_loader, &batch);

	if (!rank_fine(&t->self, status))
		return;
	if (batch.samples == 0 || !knows(t, t->options.test, &batch))
		return;
	sums[0] += gpt_evaluate(t->model, batch.data, (int)batch.samples, length);
	sums[1] += (double)(batch.samples * length);
}

/* Sums of all ranks: of the loss, and how many tokens it is of. A rank that fails stays until
   the others have come to know it: its end would be theirs. */
static bool test(struct trainer *t, double sums[2])
{
	enum { BATCHES_APART = 64 }; /* so many at most, lest a slow rank be taken for one that hangs; none
	                                before rank 0 has told of the training */
	double all[3] = {0}; /* the last one: ranks that failed */
	ddp_status status = DDP_OK;

	t->self.stays = true;
	ddp_model_set_phase(t->params, DDP_PHASE_EVAL);
	dk_queue *before = dk_use(t->kernels);
	for (int64_t i = 0; i < ddp_loader_batches_per_epoch(t->test_loader) && status == DDP_OK; i++) {
		if (i % BATCHES_APART == 0)
			status = ddp_barrier(ddp_model_comm(t->params));
		if (status == DDP_OK && !t->self.told)
			test_batch(t, all);
	}
	const char *failure = dk_failure();
	dk_use(before);
	if (failure != NULL)
		rank_fail(&t->self, "%s", failure);
	all[2] = t->self.told;
	if (status == DDP_OK)
		status = ddp_all_reduce(ddp_model_comm(t->params), all, all, 3, DDP_F64, DDP_SUM);
	if (!rank_fine(&t->self, status))
		return false;
	sums[0] = all[0];
	sums[1] = all[1];
	return all[2] == 0;
}

/* ---- text of a byte model ---------------------------------------------------------------- */

static const double temperature = 0.8;

static int draw(const float *logits, int count, unsigned short random[3])
{
	double top = logits[0], total = 0;

	for (int i = 1; i < count; i++)
		top = fmax(top, logits[i]);
	for (int i = 0; i < count; i++)
		total += exp((logits[i] - top) / temperature);
	double point = erand48(random) * total;
	for (int i = 0; i < count; i++) {
		point -= exp((logits[i] - top) / temperature);
		if (point < 0)
			return i;
	}
	return count - 1;
}

/* Writes `bytes` bytes to `out`, each drawn from what the model expects after
   those before it, a little sharpened. Control characters come as '.', so
   that no terminal is upset. False if memory ran out. */
static bool generate_text(gpt *model, const gpt_config *config, int bytes, uint64_t seed, FILE *out)
{
	unsigned short random[3] = {(unsigned short)seed, (unsigned short)(seed >> 16), 0x330e};
	int32_t *tokens = calloc((size_t)config->length, sizeof(*tokens));
	float *logits = calloc((size_t)config->vocab, sizeof(*logits));
	int used = 1;
	bool possible = tokens != NULL && logits != NULL;

	if (possible)
		tokens[0] = '\n' < config->vocab ? '\n' : 0;
	for (int i = 0; possible && i < bytes; i++) {
		gpt_next_logits(model, tokens, used, logits);
		int token = draw(logits, config->vocab, random);
		bool plain = token == '\n' || token == '\t' || (token < 128 ? isprint(token) : token < 256);
		putc(plain ? token : '.', out);
		/* A full window slides by half, so that most bytes see a long past. */
		if (used == config->length) {
			used = (config->length + 1) / 2;
			memmove(tokens, tokens + config->length - used, (size_t)used * sizeof(*tokens));
		}
		if (used < config->length)
			tokens[used++] = token;
		else
			tokens[used - 1] = token;
	}
	putc('\n', out);
	free(tokens);
	free(logits);
	return possible;
}

/* ---- the training ------------------------------------------------------------------------ */

static int64_t parameter_count(const struct trainer *t)
{
	int64_t total = 0;
	int count;

	gpt_params(t->model, &count);
	for (int i = 0; i < count; i++)
		total += ddp_model_param_count(t->params, i);
	return total;
}

static bool train(struct trainer *t)
{
	const gpt_options *o = &t->options;
	ddp_schedule schedule = DDP_SCHEDULE;
	schedule.kind = o->schedule;
	schedule.peak = o->learning_rate;
	schedule.floor = o->learning_rate / 10;
	schedule.warmup = o->warmup;
	schedule.total = o->steps;
	schedule.decay = o->decay;
	ddp_train_options options = DDP_TRAIN_OPTIONS;
	options.steps = o->steps;
	options.accumulate = o->accumulate;
	options.checkpoint_dir = o->checkpoint;
	options.checkpoint_every = o->checkpoint_every;
	options.checkpoint_keep = o->keep;
	options.checkpoint_async = o->checkpoint_async;
	options.resume = o->resume;
	options.survive = o->survive;
	options.schedule = &schedule;
	options.on_step = on_step;
	options.user = t;
	options.stop_signal = SIGTERM;
	ddp_summary summary;
	double tested[2] = {0};

	gpt_bind_reads(t->model, await_param, t);
	report_start(&t->report, o, t->self.job, parameter_count(t), t->dataset.size, gpt_activation_bytes(t->model),
	             t->self.job->rank == 0);
	ddp_status status = ddp_train(t->params, t->loader, compute, &options, &summary);
	if (!rank_fine(&t->self, status))
		return false;
	t->stopped = summary.stopped;
	if (rank_leads(t->params))
		report_trained(&t->report, &summary, t->self.job);
	const bool fine = o->test == NULL || t->stopped || (open_test(t) && test(t, tested));
	if (rank_leads(t->params))
		report_tested(&t->report, &summary, t->self.job, fine && tested[1] > 0 ? tested[0] / tested[1] : NAN);
	if (!fine)
		(void)ddp_barrier(ddp_model_comm(t->params)); /* until rank 0 has told */
	if (!fine || !rank_leads(t->params))
		return fine;
	dk_queue *before = dk_use(t->kernels);
	const bool written = o->generate == 0 ||
		(generate_text(t->model, &o->model, o->generate, o->seed, t->report.out) &&
		 dk_failure() == NULL);
	dk_use(before);
	return written ? true : rank_fail(&t->self, "no memory to generate text");
}

static bool run_rank(struct trainer *t)
{
	gpt_options *o = &t->options;
	bool fine = start_library(t) &&
	            rank_accumulate(&t->self, "--tokens-per-update", o->tokens_per_update,
	                            (int64_t)o->batch * o->model.length, &o->accumulate) &&
	            open_data(t) && make_model(t) && train(t);

	ddp_loader_free(t->loader);
	ddp_loader_free(t->test_loader);
	ddp_dataset_close(&t->dataset);
	ddp_dataset_close(&t->test);
	free_f16(t);
	ddp_model_free(t->params);
	gpt_free(t->model);
	ddp_kernels_close(t->kernels);
	return rank_end(&t->self, fine);
}

int main(int argc, char **argv)
{
	struct trainer t = {.self.program = "gpt"};

	gpt_read_options(argc, argv, &t.options);
	rank_spawn(t.self.program, t.options.spawn);
	if (!run_rank(&t))
		return EXIT_FAILURE;
	/* Not 0: jobs that wait for this one's end would begin with half a model. */
	return t.stopped ? t.options.stopped_exit : EXIT_SUCCESS;
}
