/* SPDX-License-Identifier: Apache-2.0 */
#include "gpt/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "option_table.h"

/* EX_TEMPFAIL of sysexits.h: it may be started again. */
enum { EXIT_STOPPED = 75 };

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

#define AT(member) .at = offsetof(gpt_options, member)
#define MOST (INT64_C(1) << 40)

static const option_row rows[] = {
	{OPTION_TEXT, "data", "FILE", AT(data), "text or tokens to train on (required); a pattern in quotes, such as "
	 "'shard_*.bin', is several files"},
	{OPTION_TEXT, "test", "FILE", AT(test), "measure the loss on this file, too, or pattern, once the model is trained"},
	{OPTION_NAME, "format", "NAME", AT(format), ": each byte is a token; raw little-endian uint16; llm.c's .bin",
	 .names = OPTION_NAMES("bytes", "u16", "llmc")},
	{OPTION_HEADING, .help = "Model"},
	{OPTION_NAME, "model", "NAME", AT(named), ": sizes that have a name, where no option below says another: those of "
	 "GPT-2, or 45M, of 6 layers of width 512", .names = OPTION_NAMES("124M", "355M", "774M", "1558M", "45M")},
	{OPTION_INT, "layers", "N", AT(model.layers), "layers (4)", 1, 1024},
	{OPTION_INT, "heads", "N", AT(model.heads), "attention heads; they divide the width (4)", 1, 1024},
	{OPTION_INT, "width", "N", AT(model.width), "width of the residual stream (128)", 1, 1 << 16},
	{OPTION_INT, "vocab", "N", AT(model.vocab), "vocabulary (256 for bytes, else 50304)", 1, 1 << 24},
	{OPTION_INT, "length", "N", AT(model.length), "tokens in a sample (128)", 1, 1 << 20},
	{OPTION_FLAG, "untied", NULL, AT(model.untied), "give the classifier a weight of its own"},
	{OPTION_HEADING, .help = "Training"},
	{OPTION_INT, "batch", "N", AT(batch), "samples per rank and micro-batch", 1, 1 << 20},
	{OPTION_INT, "accumulate", "N", AT(accumulate), "micro-batches per step (1)", 1, 1 << 20},
	{OPTION_INTEGER, "tokens-per-update", "N", AT(tokens_per_update), "of all ranks together: says how many "
	 "micro-batches a step has", 1, MOST},
	{OPTION_INTEGER, "steps", "N", AT(steps), "steps in all, also when resumed", 1, MOST},
	{OPTION_OPTIMIZER, "optimizer", "NAME", AT(optimizer), "; muon takes AdamW for what is no matrix of a layer"},
	{OPTION_REAL, "lr", "X", AT(learning_rate), "peak learning rate"},
	{OPTION_SCHEDULE, "schedule", "NAME", AT(schedule), ": how it goes after the warm-up, linear and cosine to a tenth, "
	 "wsd at the end only"},
	{OPTION_INTEGER, "warmup", "N", AT(warmup), "steps of linear warm-up (a twentieth of the steps)", 0, MOST},
	{OPTION_INTEGER, "decay", "N", AT(decay), "steps in which wsd falls (a tenth of the steps)", 1, MOST},
	{OPTION_REAL, "momentum", "X", AT(momentum), "of sgd (0.9) and muon (0.95)"},
	{OPTION_REAL, "weight-decay", "X", AT(weight_decay), "weight decay of matrices"},
	{OPTION_REAL, "clip", "X", AT(clip), "limit of the gradient's norm, 0 for none"},
	{OPTION_REAL, "dropout", "X", AT(dropout), "probability of dropping elements of the embedding and of what layers add "
	 "to it (0)"},
	{OPTION_FLAG, "recompute", NULL, AT(model.recompute), "keep only what goes into each layer, and compute the layer "
	 "again in backward (activation checkpointing): less memory, longer steps, the same bits"},
	{OPTION_INTEGER, "seed", "N", AT(seed), "seed of parameters, sample order and dropout", 0, INT64_MAX},
	{OPTION_NAME, "dtype", "NAME", AT(dtype), ": type of parameters and activations in forward and backward; tf32 is f32 "
	 "whose matrix products a GPU rounds to TF32; f16 has a dynamic loss scale, on the host. Gradients and what is "
	 "updated are f32", .names = OPTION_NAMES("f32", "tf32", "bf16", "f16")},
	{OPTION_REAL, "loss-scale", "X", AT(loss_scale), "first loss scale of f16, a power of two (65536)"},
	{OPTION_INT, "stopped-exit", "N", AT(stopped_exit), "exit code if SIGTERM ends it before the last step, 0 to 124",
	 0, 124},
	{OPTION_HEADING, .help = "Files"},
	{OPTION_TEXT, "checkpoint", "DIR", AT(checkpoint), "write checkpoints there, at least at the end"},
	{OPTION_INTEGER, "checkpoint-every", "N", AT(checkpoint_every), "steps between checkpoints", 1, MOST},
	{OPTION_FLAG, "checkpoint-async", NULL, AT(checkpoint_async), "write them, but for the last, while training goes on"},
	{OPTION_FLAG, "resume", NULL, AT(resume), "go on from the newest checkpoint, if there is one"},
	{OPTION_FLAG, "survive", NULL, AT(survive), "if a rank or a node dies, the other ranks go on"},
	{OPTION_FLAG, "buddy", NULL, AT(buddy), "with --survive and --shard: another rank keeps a copy of each rank's shard"},
	{OPTION_INT, "keep", "N", AT(keep), "checkpoints to keep", 1, 1 << 20},
	{OPTION_TEXT, "metrics", "FILE", AT(metrics), "one line of JSON per step"},
	{OPTION_TEXT, "trace", "DIR", AT(trace), "a Chrome trace per rank"},
	{OPTION_HEADING, .help = "Ranks"},
	{OPTION_INT, "spawn", "N", AT(spawn), "start N ranks on this host, without a launcher", 1, 1024},
	{OPTION_TEXT, "device", "NAME", AT(device), "what computes: cpu (default); cuda, a GPU, or cuda:1"},
	{OPTION_FLAG, "no-graphs", NULL, AT(no_graphs), "device: give it the kernels of each pass one by one, to measure"},
	{OPTION_INT, "threads", "N", AT(threads), "threads per rank (OMP_NUM_THREADS, else the host's processors over its "
	 "ranks)", 1, 4096},
	{OPTION_INT, "readers", "N", AT(readers), "threads per rank that read samples ahead", 1, 256},
	{OPTION_NAME, "shard", "NAME", AT(shard), ": what a rank keeps a part of only; state is the optimizer's, gradients "
	 "are it and them, auto is state among the ranks of each node",
	 .names = OPTION_NAMES("auto", "none", "state", "gradients")},
	{OPTION_NAME, "compress", "NAME", AT(compress), ": how gradients travel, powersgd in factors of low rank",
	 .names = OPTION_NAMES("none", "bf16", "f16", "powersgd")},
	{OPTION_INT, "powersgd-rank", "N", AT(powersgd_rank), "rank of these factors", 1, 1 << 16},
	{OPTION_INTEGER, "powersgd-start", "N", AT(powersgd_start), "steps before which gradients travel whole (the "
	 "warm-up's)", 0, MOST},
	{OPTION_INTEGER, "local-steps", "N", AT(local_steps), "let ranks train by themselves, and average them after so many "
	 "steps", 1, MOST},
	{OPTION_INTEGER, "local-start", "N", AT(local_start), "steps before, in which gradients are reduced (the "
	 "warm-up's)", 0, MOST},
	{OPTION_REAL, "bucket-mb", "X", AT(bucket_mb), "cap of a gradient bucket, MiB"},
	{OPTION_HEADING, .help = "Output"},
	{OPTION_INT, "generate", "N", AT(generate), "write N bytes of text after training (format bytes)", 0, 1 << 24},
	{OPTION_FLAG, "json", NULL, AT(json), "the summary as JSON on stdout, the rest on stderr"},
	{OPTION_FLAG, "verbose", NULL, AT(verbose), "tell what the library does, on stderr"},
};

static const option_form form = {.program = "gpt", .usage = "--data FILE [OPTION]...",
	.about = "Trains a GPT-2 on a file, data-parallel: under srun --ddp, torchrun or mpirun, or\n"
	         "with --spawn on this host alone.",
	.rows = rows, .count = sizeof(rows) / sizeof(rows[0]), .wrong = EXIT_FAILURE};

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

bool gpt_on_device(const gpt_options *o)
{
	return o->device != NULL && strcmp(o->device, "cpu") != 0 && strncmp(o->device, "cpu:", 4) != 0;
}

static void check(gpt_options *o)
{
	char why[160];

	if (o->data == NULL)
		options_wrong(&form, "--data FILE is needed; see gpt --help");
	complete_model(o);
	o->tf32 = o->dtype == GPT_TF32;
	o->model.mixed = o->dtype == GPT_BF16 || o->dtype == GPT_F16;
	o->model.f16 = o->dtype == GPT_F16;
	if (!gpt_config_valid(&o->model, why, sizeof(why)))
		options_wrong(&form, "%s", why);
	if (o->checkpoint == NULL && (o->resume || o->checkpoint_every > 0))
		options_wrong(&form, "--%s needs --checkpoint DIR", o->resume ? "resume" : "checkpoint-every");
	if (o->generate > 0 && o->format != DDP_TOKENS_BYTES)
		options_wrong(&form, "--generate writes text for --format bytes only");
	if (o->dropout >= 1)
		options_wrong(&form, "--dropout %g: must be below 1", o->dropout);
	if (o->tf32 && !gpt_on_device(o))
		options_wrong(&form, "--dtype tf32 rounds the matrix products of a GPU; give --device cuda, or leave out --dtype");
	if (o->model.f16 && gpt_on_device(o))
		options_wrong(&form, "--dtype f16 computes on the host; give --dtype bf16 with --device, or leave out --device");
	if (o->loss_scale > 0 && !o->model.f16)
		options_wrong(&form, "--loss-scale is for --dtype f16: other types have f32's range");
	if (o->buddy && (!o->survive || (o->shard != DDP_SHARD_STATE && o->shard != DDP_SHARD_GRADIENTS)))
		options_wrong(&form, "--buddy keeps copies of shards for ranks that survive: give --survive, and --shard state "
		        "or gradients");
	if (o->tokens_per_update > 0 && o->accumulate > 0)
		options_wrong(&form, "--tokens-per-update says how many micro-batches a step has; leave --accumulate out");
	if (o->accumulate == 0)
		o->accumulate = 1;
	if (o->warmup < 0)
		o->warmup = o->steps / 20;
	if (o->powersgd_start < 0)
		o->powersgd_start = o->warmup;
	if (o->local_start < 0)
		o->local_start = o->local_steps > 0 ? o->warmup : 0;
}

void gpt_read_options(int argc, char **argv, gpt_options *o)
{
	*o = (gpt_options){.named = -1, .batch = 8, .schedule = DDP_SCHEDULE_COSINE, .momentum = -1, .steps = 200,
		.decay = DDP_AUTO, .readers = 1, .bucket_mb = DDP_AUTO, .learning_rate = 1e-3, .weight_decay = 0.1, .clip = 1,
		.warmup = -1, .powersgd_rank = 4, .powersgd_start = -1, .local_start = -1, .seed = 1, .keep = 3,
		.stopped_exit = EXIT_STOPPED};
	options_read(&form, argc, argv, o);
	check(o);
}
