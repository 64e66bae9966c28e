/* SPDX-License-Identifier: Apache-2.0 */
#include "vision/options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "option_table.h"

#define AT(member) .at = offsetof(vision_options, member)
#define MOST (INT64_C(1) << 40)

enum { RESNET_ROWS = 4 }; /* the last ones */

static const option_row rows[] = {
	{OPTION_TEXT, "data", "DIR", AT(data), "folder of the data's files, unpacked (required); examples/vision/synthetic "
	 "makes such data"},
	{OPTION_INT, "batch", "N", AT(batch), "images per rank and micro-batch", 1, 1 << 20},
	{OPTION_INTEGER, "images-per-update", "N", AT(images_per_update), "of all ranks together: says how many "
	 "micro-batches a step has (one)", 1, MOST},
	{OPTION_INTEGER, "steps", "N", AT(steps), "steps in all, also when resumed", 1, MOST},
	{OPTION_OPTIMIZER, "optimizer", "NAME", AT(optimizer), ""},
	{OPTION_REAL, "lr", "X", AT(learning_rate), "learning rate"},
	{OPTION_SCHEDULE, "schedule", "NAME", AT(schedule), ": linear and cosine go to a tenth, wsd falls at the end only"},
	{OPTION_INTEGER, "warmup", "N", AT(warmup), "steps in which it grows first (0)", 0, MOST},
	{OPTION_INTEGER, "decay", "N", AT(decay), "steps in which wsd falls (a tenth of the steps)", 1, MOST},
	{OPTION_REAL, "momentum", "X", AT(momentum), "of sgd and muon"},
	{OPTION_REAL, "weight-decay", "X", AT(weight_decay), "weight decay"},
	{OPTION_FLAG, "plain", NULL, AT(plain), "neither dropout nor random cuts, to compare"},
	{OPTION_INTEGER, "seed", "N", AT(seed), "seed of parameters, order and all that is random", 0, INT64_MAX},
	{OPTION_TEXT, "checkpoint", "DIR", AT(checkpoint), "write a checkpoint there at the end"},
	{OPTION_FLAG, "resume", NULL, AT(resume), "go on from the newest one, if there is one"},
	{OPTION_FLAG, "survive", NULL, AT(survive), "if a rank or a node dies, the other ranks go on"},
	{OPTION_INT, "stopped-exit", "N", AT(stopped_exit), "exit code if SIGTERM ends it before the last step, 0 to 124",
	 0, 124},
	{OPTION_TEXT, "metrics", "FILE", AT(metrics), "one line of JSON per step"},
	{OPTION_TEXT, "trace", "DIR", AT(trace), "a Chrome trace per rank"},
	{OPTION_TEXT, "device", "NAME", AT(device), "what computes: cpu (default); cuda, a GPU, or cuda:1"},
	{OPTION_FLAG, "no-graphs", NULL, AT(no_graphs), "device: give it the kernels of each pass one by one, to measure"},
	{OPTION_INT, "spawn", "N", AT(spawn), "start N ranks on this host, without a launcher", 1, 1024},
	{OPTION_INT, "threads", "N", AT(threads), "threads per rank (OMP_NUM_THREADS, else the host's processors over its "
	 "ranks)", 1, 4096},
	{OPTION_INT, "readers", "N", AT(readers), "threads per rank that read images ahead", 1, 256},
	{OPTION_FLAG, "verbose", NULL, AT(verbose), "tell what the library does, on stderr"},
	{OPTION_INT, "depth", "N", AT(resnet.depth), "18, or 50, of bottlenecks", 1, 1000},
	{OPTION_INT, "width", "N", AT(resnet.width), "channels of the first stage", 1, 1024},
	{OPTION_FLAG, "imagenet-stem", NULL, AT(resnet.imagenet_stem), "begin with a window of 7 and a pool, each of stride "
	 "2, as for large images"},
	{OPTION_FLAG, "sync-batch-norm", NULL, AT(sync_batch_norm), "normalise by the images of all ranks, not by each one's "
	 "own"},
};

void vision_read_options(int argc, char **argv, const vision_example *e, vision_options *o)
{
	char about[256];
	const option_form form = {.program = e->name, .usage = "--data DIR [OPTION]...", .about = about, .rows = rows,
		.count = (int)(sizeof(rows) / sizeof(rows[0])) - (e->resnet ? 0 : RESNET_ROWS), .wrong = EXIT_FAILURE};

	snprintf(about, sizeof(about), "%s\nStart it with srun --ddp, or with --spawn.", e->about);
	*o = (vision_options){.batch = e->batch, .steps = 200, .optimizer = DDP_SGD, .decay = DDP_AUTO, .readers = 1,
		.schedule = DDP_SCHEDULE_COSINE, .learning_rate = e->learning_rate,
		.momentum = e->momentum, .weight_decay = e->weight_decay, .seed = 1,
		.stopped_exit = 75 /* EX_TEMPFAIL: it may be started again */,
		.resnet = {.depth = 18, .width = 64, .classes = VISION_CLASSES}};
	options_read(&form, argc, argv, o);
	if (o->data == NULL)
		options_wrong(&form, "--data DIR is needed; see %s --help", e->name);
	if (o->resume && o->checkpoint == NULL)
		options_wrong(&form, "--resume needs --checkpoint DIR");
	if (o->resnet.depth != 18 && o->resnet.depth != 50)
		options_wrong(&form, "--depth %d: choose 18 or 50", o->resnet.depth);
}
