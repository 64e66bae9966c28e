/* SPDX-License-Identifier: Apache-2.0 */
#include "gpt/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipes.h"

/* EX_TEMPFAIL of sysexits.h: it may be started again. */
enum { EXIT_STOPPED = 75 };

enum option_id {
	OPT_DATA = 1, OPT_TEST, OPT_FORMAT, OPT_MODEL, OPT_LAYERS, OPT_HEADS, OPT_WIDTH, OPT_VOCAB, OPT_LENGTH,
	OPT_UNTIED, OPT_BATCH, OPT_ACCUMULATE, OPT_TOKENS_PER_UPDATE, OPT_STEPS, OPT_OPTIMIZER, OPT_LR,
	OPT_SCHEDULE, OPT_WARMUP, OPT_DECAY, OPT_MOMENTUM, OPT_WEIGHT_DECAY, OPT_CLIP, OPT_DROPOUT, OPT_RECOMPUTE, OPT_SEED,
	OPT_DTYPE, OPT_LOSS_SCALE, OPT_CHECKPOINT, OPT_CHECKPOINT_EVERY, OPT_CHECKPOINT_ASYNC,
	OPT_RESUME, OPT_SURVIVE, OPT_BUDDY, OPT_KEEP, OPT_METRICS, OPT_TRACE, OPT_SHARD, OPT_COMPRESS, OPT_POWERSGD_RANK,
	OPT_POWERSGD_START, OPT_LOCAL_STEPS, OPT_LOCAL_START, OPT_BUCKET_MB, OPT_NO_GRAPHS,
	OPT_DEVICE, OPT_SPAWN, OPT_THREADS, OPT_READERS,
	OPT_STOPPED_EXIT, OPT_GENERATE, OPT_JSON, OPT_VERBOSE,
	OPT_VERSION, OPT_HELP
};

/* One option: its argument's name, or NULL, and its line of help. */
struct described {
	const char *name, *argument;
	enum option_id id;
	const char *help;
};

static const struct described described[] = {
	{"data", "FILE", OPT_DATA, "text or tokens to train on (required); a pattern in quotes, such as 'shard_*.bin', "
	                           "is several files"},
	{"test", "FILE", OPT_TEST, "measure the loss on this file, too, or pattern, once the model is trained"},
	{"format", "NAME", OPT_FORMAT, "bytes: each byte is a token (default); u16: raw little-endian "
	                               "uint16; llmc: llm.c's .bin"},
	{NULL, NULL, 0, "Model"},
	{"model", "NAME", OPT_MODEL, "sizes that have a name, where no option below says another: those of GPT-2, 124M, "
	                             "355M, 774M and 1558M, or 45M, of 6 layers of width 512"},
	{"layers", "N", OPT_LAYERS, "layers (4)"},
	{"heads", "N", OPT_HEADS, "attention heads; they divide the width (4)"},
	{"width", "N", OPT_WIDTH, "width of the residual stream (128)"},
	{"vocab", "N", OPT_VOCAB, "vocabulary (256 for bytes, else 50304)"},
	{"length", "N", OPT_LENGTH, "tokens in a sample (128)"},
	{"untied", NULL, OPT_UNTIED, "give the classifier a weight of its own"},
	{NULL, NULL, 0, "Training"},
	{"batch", "N", OPT_BATCH, "samples per rank and micro-batch (8)"},
	{"accumulate", "N", OPT_ACCUMULATE, "micro-batches per step (1)"},
	{"tokens-per-update", "N", OPT_TOKENS_PER_UPDATE, "of all ranks together: says how many micro-batches a "
	                                                 "step has"},
	{"steps", "N", OPT_STEPS, "steps in all, also when resumed (200)"},
	{"optimizer", "NAME", OPT_OPTIMIZER, NULL}, /* see print_help() */
	{"lr", "X", OPT_LR, "peak learning rate (1e-3)"},
	{"schedule", "NAME", OPT_SCHEDULE, "how it goes after the warm-up: cosine, to a tenth (default); linear, to a "
	                                   "tenth; wsd, at the end only; inverse-root; constant"},
	{"warmup", "N", OPT_WARMUP, "steps of linear warm-up (a twentieth of the steps)"},
	{"decay", "N", OPT_DECAY, "steps in which wsd falls (a tenth of the steps)"},
	{"momentum", "X", OPT_MOMENTUM, "of sgd (0.9) and muon (0.95)"},
	{"weight-decay", "X", OPT_WEIGHT_DECAY, "weight decay of matrices (0.1)"},
	{"clip", "X", OPT_CLIP, "limit of the gradient's norm, 0 for none (1)"},
	{"dropout", "X", OPT_DROPOUT, "probability of dropping elements of the embedding and of what layers add to "
	                              "it (0)"},
	{"recompute", NULL, OPT_RECOMPUTE, "keep only what goes into each layer, and compute the layer again in backward "
	                                   "(activation checkpointing): less memory, longer steps, the same bits"},
	{"seed", "N", OPT_SEED, "seed of parameters, sample order and dropout (1)"},
	{"dtype", "NAME", OPT_DTYPE, "type of parameters and activations in forward and backward: f32 "
	                             "(default); tf32, f32 whose matrix products a GPU rounds to TF32; "
	                             "bf16; f16, with a dynamic loss scale, on the host. Gradients and what is "
	                             "updated are f32"},
	{"loss-scale", "X", OPT_LOSS_SCALE, "first loss scale of f16, a power of two (65536)"},
	{"stopped-exit", "N", OPT_STOPPED_EXIT, "exit code if SIGTERM ends it before the last step, 0 to "
	                                        "124 (75)"},
	{NULL, NULL, 0, "Files"},
	{"checkpoint", "DIR", OPT_CHECKPOINT, "write checkpoints there, at least at the end"},
	{"checkpoint-every", "N", OPT_CHECKPOINT_EVERY, "steps between checkpoints"},
	{"checkpoint-async", NULL, OPT_CHECKPOINT_ASYNC, "write them, but for the last, while training goes on"},
	{"resume", NULL, OPT_RESUME, "go on from the newest checkpoint, if there is one"},
	{"survive", NULL, OPT_SURVIVE, "if a rank or a node dies, the other ranks go on"},
	{"buddy", NULL, OPT_BUDDY, "with --survive and --shard: another rank keeps a copy of each rank's shard"},
	{"keep", "N", OPT_KEEP, "checkpoints to keep (3)"},
	{"metrics", "FILE", OPT_METRICS, "one line of JSON per step"},
	{"trace", "DIR", OPT_TRACE, "a Chrome trace per rank"},
	{NULL, NULL, 0, "Ranks"},
	{"spawn", "N", OPT_SPAWN, "start N ranks on this host, without a launcher"},
	{"device", "NAME", OPT_DEVICE, "what computes: cpu (default); cuda, a GPU, or cuda:1"},
	{"no-graphs", NULL, OPT_NO_GRAPHS, "device: give it the kernels of each pass one by one, to measure"},
	{"threads", "N", OPT_THREADS, "threads per rank (OMP_NUM_THREADS, else the host's processors "
	                              "over its ranks)"},
	{"readers", "N", OPT_READERS, "threads per rank that read samples ahead (1)"},
	{"shard", "NAME", OPT_SHARD, "what a rank keeps a part of only: none; state, the optimizer's; "
	                            "gradients, too; auto: state, among the ranks of each node"},
	{"compress", "NAME", OPT_COMPRESS, "how gradients travel: none; bf16; f16; powersgd, in factors of "
	                                  "low rank"},
	{"powersgd-rank", "N", OPT_POWERSGD_RANK, "rank of these factors (4)"},
	{"powersgd-start", "N", OPT_POWERSGD_START, "steps before which gradients travel whole (the warm-up's)"},
	{"local-steps", "N", OPT_LOCAL_STEPS, "let ranks train by themselves, and average them after so many "
	                                      "steps"},
	{"local-start", "N", OPT_LOCAL_START, "steps before, in which gradients are reduced (the warm-up's)"},
	{"bucket-mb", "X", OPT_BUCKET_MB, "cap of a gradient bucket, MiB"},
	{NULL, NULL, 0, "Output"},
	{"generate", "N", OPT_GENERATE, "write N bytes of text after training (format bytes)"},
	{"json", NULL, OPT_JSON, "the summary as JSON on stdout, the rest on stderr"},
	{"verbose", NULL, OPT_VERBOSE, "tell what the library does, on stderr"},
	{"version", NULL, OPT_VERSION, "tell the version and exit"},
	{"help", NULL, OPT_HELP, "this text"},
};

enum { DESCRIBED = sizeof(described) / sizeof(described[0]) };

static void print_help(void)
{
	printf("usage: gpt --data FILE [options]\n"
	       "Trains a GPT-2 on a file, data-parallel: under srun --ddp, torchrun or mpirun, or\n"
	       "with --spawn on this host alone.\n\n");
	for (int i = 0; i < DESCRIBED; i++) {
		const struct described *d = &described[i];
		char left[32], names[128];
		if (d->name == NULL) {
			printf("\n%s\n", d->help);
			continue;
		}
		snprintf(left, sizeof(left), "--%s%s%s", d->name, d->argument != NULL ? " " : "",
		         d->argument != NULL ? d->argument : "");
		if (d->id == OPT_OPTIMIZER)
			printf("  %-24s %s (adamw); muon takes AdamW for what is no matrix of a layer\n", left,
			       recipe_list(optimizer_name, names, sizeof(names)));
		else
			printf("  %-24s %s\n", left, d->help);
	}
}

static const char *option_name(enum option_id id)
{
	for (int i = 0; i < DESCRIBED; i++)
		if (described[i].id == id)
			return described[i].name;
	return "?";
}

/* ---- numbers ------------------------------------------------------------------------- */

static bool read_integer(enum option_id id, const char *text, int64_t least, int64_t most,
                         int64_t *value)
{
	char *end;

	errno = 0;
	long long number = strtoll(text, &end, 10);
	if (errno == 0 && end != text && *end == '\0' && number >= least && number <= most) {
		*value = number;
		return true;
	}
	fprintf(stderr, "gpt: --%s %s: not a whole number from %lld to %lld\n", option_name(id),
	        text, (long long)least, (long long)most);
	return false;
}

static bool read_int(enum option_id id, const char *text, int least, int most, int *value)
{
	int64_t number;

	if (!read_integer(id, text, least, most, &number))
		return false;
	*value = (int)number;
	return true;
}

static bool read_real(enum option_id id, const char *text, double *value)
{
	char *end;

	double number = strtod(text, &end);
	if (end != text && *end == '\0' && isfinite(number) && number >= 0) {
		*value = number;
		return true;
	}
	fprintf(stderr, "gpt: --%s %s: not a number from 0 on\n", option_name(id), text);
	return false;
}

/* Which of `count` names `text` is. */
static bool read_name(enum option_id id, const char *text, const char *const *names, int count,
                      int *which)
{
	for (int i = 0; i < count; i++)
		if (strcmp(text, names[i]) == 0) {
			*which = i;
			return true;
		}
	fprintf(stderr, "gpt: --%s %s: choose ", option_name(id), text);
	for (int i = 0; i < count; i++)
		fprintf(stderr, "%s%s", i == 0 ? "" : i < count - 1 ? ", " : " or ", names[i]);
	fprintf(stderr, "\n");
	return false;
}

static bool read_format(const char *text, ddp_token_format *format)
{
	static const char *const names[] = {"bytes", "u16", "llmc"};
	int which = 0;

	if (!read_name(OPT_FORMAT, text, names, 3, &which))
		return false;
	*format = (ddp_token_format)which;
	return true;
}

static bool read_shard(const char *text, ddp_shard *shard)
{
	static const char *const names[] = {"auto", "none", "state", "gradients"};
	int which = 0;

	if (!read_name(OPT_SHARD, text, names, 4, &which))
		return false;
	*shard = (ddp_shard)which;
	return true;
}

static bool read_compression(const char *text, ddp_compression *compress)
{
	static const char *const names[] = {"none", "bf16", "f16", "powersgd"};
	int which = 0;

	if (!read_name(OPT_COMPRESS, text, names, 4, &which))
		return false;
	*compress = (ddp_compression)which;
	return true;
}

static bool read_recipe(enum option_id id, const char *text, recipe_name *name, int *which)
{
	char names[128];

	*which = recipe_of(name, text);
	if (*which < 0)
		fprintf(stderr, "gpt: --%s %s: choose %s\n", option_name(id), text, recipe_list(name, names, sizeof(names)));
	return *which >= 0;
}

static bool read_optimizer(const char *text, ddp_optimizer *optimizer)
{
	int which;

	if (!read_recipe(OPT_OPTIMIZER, text, optimizer_name, &which))
		return false;
	*optimizer = (ddp_optimizer)which;
	return true;
}

static bool read_schedule(const char *text, ddp_schedule_kind *schedule)
{
	int which;

	if (!read_recipe(OPT_SCHEDULE, text, schedule_name, &which))
		return false;
	*schedule = (ddp_schedule_kind)which;
	return true;
}

static bool read_dtype(const char *text, gpt_options *o)
{
	static const char *const names[] = {"f32", "tf32", "bf16", "f16"};
	int which = 0;

	if (!read_name(OPT_DTYPE, text, names, 4, &which))
		return false;
	o->tf32 = which == 1;
	o->model.mixed = which >= 2;
	o->model.f16 = which == 3;
	return true;
}

/* ---- options -------------------------------------------------------------------------- */

static const struct {
	const char *name;
	gpt_config config;
} models[] = {
	{"124M", {.layers = 12, .heads = 12, .width = 768, .vocab = 50257, .length = 1024}},
	{"355M", {.layers = 24, .heads = 16, .width = 1024, .vocab = 50257, .length = 1024}},
	{"774M", {.layers = 36, .heads = 20, .width = 1280, .vocab = 50257, .length = 1024}},
	{"1558M", {.layers = 48, .heads = 25, .width = 1600, .vocab = 50257, .length = 1024}},
	{"45M", {.layers = 6, .heads = 8, .width = 512, .vocab = 50257, .length = 256}},
};

enum { MODELS = sizeof(models) / sizeof(models[0]) };

static bool read_model(const char *text, int *which)
{
	const char *names[MODELS];

	for (int i = 0; i < MODELS; i++)
		names[i] = models[i].name;
	return read_name(OPT_MODEL, text, names, MODELS, which);
}

/* Fills in what no option has said. */
static void complete_model(gpt_options *o)
{
	const int vocab = o->format == DDP_TOKENS_BYTES ? 256 : 50304;
	const gpt_config small = {.layers = 4, .heads = 4, .width = 128, .vocab = vocab, .length = 128};
	const gpt_config *from = o->named >= 0 ? &models[o->named].config : &small;
	int *const sizes[] = {&o->model.layers, &o->model.heads, &o->model.width, &o->model.vocab, &o->model.length};
	const int known[] = {from->layers, from->heads, from->width, from->vocab, from->length};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		if (*sizes[i] == 0)
			*sizes[i] = known[i];
	}
}

static bool take_model(gpt_options *o, enum option_id id, const char *text)
{
	const int most = 1 << 24;

	switch (id) {
	case OPT_MODEL: return read_model(text, &o->named);
	case OPT_LAYERS: return read_int(id, text, 1, 1024, &o->model.layers);
	case OPT_HEADS: return read_int(id, text, 1, 1024, &o->model.heads);
	case OPT_WIDTH: return read_int(id, text, 1, 1 << 16, &o->model.width);
	case OPT_VOCAB: return read_int(id, text, 1, most, &o->model.vocab);
	case OPT_LENGTH: return read_int(id, text, 1, 1 << 20, &o->model.length);
	default: o->model.untied = true; return true;
	}
}

static bool take_training(gpt_options *o, enum option_id id, const char *text)
{
	int64_t seed;

	switch (id) {
	case OPT_BATCH: return read_int(id, text, 1, 1 << 20, &o->batch);
	case OPT_ACCUMULATE: return read_int(id, text, 1, 1 << 20, &o->accumulate);
	case OPT_TOKENS_PER_UPDATE: return read_integer(id, text, 1, INT64_C(1) << 40, &o->tokens_per_update);
	case OPT_STEPS: return read_integer(id, text, 1, INT64_C(1) << 40, &o->steps);
	case OPT_OPTIMIZER: return read_optimizer(text, &o->optimizer);
	case OPT_LR: return read_real(id, text, &o->learning_rate);
	case OPT_SCHEDULE: return read_schedule(text, &o->schedule);
	case OPT_DECAY: return read_integer(id, text, 1, INT64_C(1) << 40, &o->decay);
	case OPT_MOMENTUM: return read_real(id, text, &o->momentum);
	case OPT_WARMUP: return read_integer(id, text, 0, INT64_C(1) << 40, &o->warmup);
	case OPT_WEIGHT_DECAY: return read_real(id, text, &o->weight_decay);
	case OPT_CLIP: return read_real(id, text, &o->clip);
	case OPT_DROPOUT: return read_real(id, text, &o->dropout);
	case OPT_RECOMPUTE: o->model.recompute = true; return true;
	default:
		if (!read_integer(id, text, 0, INT64_MAX, &seed))
			return false;
		o->seed = (uint64_t)seed;
		return true;
	}
}

static bool take(gpt_options *o, enum option_id id, const char *text)
{
	switch (id) {
	case OPT_DATA: o->data = text; return true;
	case OPT_TEST: o->test = text; return true;
	case OPT_FORMAT: return read_format(text, &o->format);
	case OPT_CHECKPOINT: o->checkpoint = text; return true;
	case OPT_CHECKPOINT_EVERY:
		return read_integer(id, text, 1, INT64_C(1) << 40, &o->checkpoint_every);
	case OPT_DTYPE: return read_dtype(text, o);
	case OPT_LOSS_SCALE: return read_real(id, text, &o->loss_scale);
	case OPT_CHECKPOINT_ASYNC: o->checkpoint_async = true; return true;
	case OPT_RESUME: o->resume = true; return true;
	case OPT_SURVIVE: o->survive = true; return true;
	case OPT_BUDDY: o->buddy = true; return true;
	case OPT_KEEP: return read_int(id, text, 1, 1 << 20, &o->keep);
	case OPT_METRICS: o->metrics = text; return true;
	case OPT_TRACE: o->trace = text; return true;
	case OPT_DEVICE: o->device = text; return true;
	case OPT_SPAWN: return read_int(id, text, 1, 1024, &o->spawn);
	case OPT_THREADS: return read_int(id, text, 1, 4096, &o->threads);
	case OPT_READERS: return read_int(id, text, 1, 256, &o->readers);
	case OPT_SHARD: return read_shard(text, &o->shard);
	case OPT_COMPRESS: return read_compression(text, &o->compress);
	case OPT_POWERSGD_RANK: return read_int(id, text, 1, 1 << 16, &o->powersgd_rank);
	case OPT_POWERSGD_START: return read_integer(id, text, 0, INT64_C(1) << 40, &o->powersgd_start);
	case OPT_LOCAL_STEPS: return read_integer(id, text, 1, INT64_C(1) << 40, &o->local_steps);
	case OPT_LOCAL_START: return read_integer(id, text, 0, INT64_C(1) << 40, &o->local_start);
	case OPT_BUCKET_MB: return read_real(id, text, &o->bucket_mb);
	case OPT_NO_GRAPHS: o->no_graphs = true; return true;
	case OPT_STOPPED_EXIT: return read_int(id, text, 0, 124, &o->stopped_exit);
	case OPT_GENERATE: return read_int(id, text, 0, 1 << 24, &o->generate);
	case OPT_JSON: o->json = true; return true;
	case OPT_VERBOSE: o->verbose = true; return true;
	default:
		return id >= OPT_MODEL && id <= OPT_UNTIED ? take_model(o, id, text)
		                                            : take_training(o, id, text);
	}
}

bool gpt_on_device(const gpt_options *o)
{
	return o->device != NULL && strcmp(o->device, "cpu") != 0 && strncmp(o->device, "cpu:", 4) != 0;
}

static bool check(gpt_options *o)
{
	char why[160];

	if (o->data == NULL) {
		fprintf(stderr, "gpt: --data FILE is needed; see gpt --help\n");
		return false;
	}
	complete_model(o);
	if (!gpt_config_valid(&o->model, why, sizeof(why))) {
		fprintf(stderr, "gpt: %s\n", why);
		return false;
	}
	if (o->checkpoint == NULL && (o->resume || o->checkpoint_every > 0)) {
		fprintf(stderr, "gpt: --%s needs --checkpoint DIR\n",
		        o->resume ? "resume" : "checkpoint-every");
		return false;
	}
	if (o->generate > 0 && o->format != DDP_TOKENS_BYTES) {
		fprintf(stderr, "gpt: --generate writes text for --format bytes only\n");
		return false;
	}
	if (o->dropout >= 1) {
		fprintf(stderr, "gpt: --dropout %g: must be below 1\n", o->dropout);
		return false;
	}
	if (o->tf32 && !gpt_on_device(o)) {
		fprintf(stderr, "gpt: --dtype tf32 rounds the matrix products of a GPU; give --device cuda, or leave "
		        "out --dtype\n");
		return false;
	}
	if (o->model.f16 && gpt_on_device(o)) {
		fprintf(stderr, "gpt: --dtype f16 computes on the host; give --dtype bf16 with --device, or leave out --device\n");
		return false;
	}
	if (o->loss_scale > 0 && !o->model.f16) {
		fprintf(stderr, "gpt: --loss-scale is for --dtype f16: other types have f32's range\n");
		return false;
	}
	if (o->buddy && (!o->survive || (o->shard != DDP_SHARD_STATE && o->shard != DDP_SHARD_GRADIENTS))) {
		fprintf(stderr, "gpt: --buddy keeps copies of shards for ranks that survive: give --survive, and --shard state "
		        "or gradients\n");
		return false;
	}
	if (o->tokens_per_update > 0 && o->accumulate > 0) {
		fprintf(stderr, "gpt: --tokens-per-update says how many micro-batches a step has; leave --accumulate "
		        "out\n");
		return false;
	}
	if (o->accumulate == 0)
		o->accumulate = 1;
	if (o->warmup < 0)
		o->warmup = o->steps / 20;
	if (o->powersgd_start < 0)
		o->powersgd_start = o->warmup;
	if (o->local_start < 0)
		o->local_start = o->local_steps > 0 ? o->warmup : 0;
	return true;
}

gpt_parsed gpt_parse(int argc, char **argv, gpt_options *o)
{
	struct option options[DESCRIBED + 1];
	int count = 0, id;

	for (int i = 0; i < DESCRIBED; i++)
		if (described[i].name != NULL)
			options[count++] = (struct option){described[i].name,
				described[i].argument != NULL ? required_argument : no_argument, NULL,
				(int)described[i].id};
	options[count] = (struct option){0};

	*o = (gpt_options){.named = -1, .batch = 8, .schedule = DDP_SCHEDULE_COSINE, .momentum = -1, .steps = 200, .decay = DDP_AUTO, .readers = 1, .bucket_mb = DDP_AUTO, .learning_rate = 1e-3,
		.weight_decay = 0.1, .clip = 1, .warmup = -1, .powersgd_rank = 4, .powersgd_start = -1, .local_start = -1, .seed = 1, .keep = 3, .stopped_exit = EXIT_STOPPED};
	while ((id = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (id == OPT_HELP) {
			print_help();
			return GPT_DONE;
		}
		if (id == OPT_VERSION) {
			printf("gpt (slurm-ddp) %s\n", ddp_version());
			return GPT_DONE;
		}
		if (id == '?') {
			fprintf(stderr, "see gpt --help\n"); /* getopt has said what is wrong */
			return GPT_BAD;
		}
		if (!take(o, (enum option_id)id, optarg))
			return GPT_BAD;
	}
	if (optind < argc) {
		fprintf(stderr, "gpt: %s: not an option; see gpt --help\n", argv[optind]);
		return GPT_BAD;
	}
	return check(o) ? GPT_RUN : GPT_BAD;
}
