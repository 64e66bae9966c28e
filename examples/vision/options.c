/* SPDX-License-Identifier: Apache-2.0 */
#include "vision/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipes.h"

static const char resnet_help[] =
	"\n"
	"  --depth N         18 (default), or 50, of bottlenecks\n"
	"  --width N         channels of the first stage (64)\n"
	"  --imagenet-stem   begin with a window of 7 and a pool, each of stride 2, as for\n"
	"                    large images\n"
	"  --sync-batch-norm  normalise by the images of all ranks, not by each one's own\n";

static void print_help(const vision_example *e)
{
	char names[128];

	printf("usage: %s --data DIR [OPTION]...\n"
	       "%s\n"
	       "Start it with srun --ddp, or with --spawn.\n"
	       "\n"
	       "  --data DIR        folder of %s's files, unpacked (required);\n"
	       "                    examples/vision/synthetic makes such data\n"
	       "  --batch N         images per rank and micro-batch (%d)\n"
	       "  --images-per-update N  of all ranks together: says how many micro-batches a\n"
	       "                    step has (1)\n"
	       "  --steps N         steps in all, also when resumed (200)\n"
	       "  --optimizer NAME  %s (sgd)\n"
	       "  --lr X            learning rate (%g)\n"
	       "  --schedule NAME   cosine, to a tenth (default); linear, to a tenth; wsd, at\n"
	       "                    the end only; inverse-root; constant\n"
	       "  --warmup N        steps in which it grows first (0)\n"
	       "  --decay N         steps in which wsd falls (a tenth of the steps)\n"
	       "  --constant        the same as --schedule constant\n"
	       "  --momentum X      of sgd and muon (%g)\n"
	       "  --weight-decay X  (%g)\n"
	       "  --plain           neither dropout nor random cuts, to compare\n"
	       "  --seed N          seed of parameters, order and all that is random (1)\n"
	       "  --checkpoint DIR  write a checkpoint there at the end\n"
	       "  --resume          go on from the newest one, if there is one\n"
	       "  --survive         if a rank or a node dies, the other ranks go on\n"
	       "  --stopped-exit N  exit code if SIGTERM ends it before the last step, 0 to 124 (75)\n"
	       "  --metrics FILE    one line of JSON per step\n"
	       "  --trace DIR       a Chrome trace per rank\n"
	       "  --device NAME     what computes: cpu (default); cuda, a GPU, or cuda:1\n"
	       "  --no-graphs       device: give it the kernels of each pass one by one, to measure\n"
	       "  --spawn N         start N ranks on this host, without a launcher\n"
	       "  --threads N       threads per rank (OMP_NUM_THREADS, else the host's\n"
	       "                    processors over its ranks)\n"
	       "  --readers N       threads per rank that read images ahead (1)\n"
	       "  --verbose         tell what the library does, on stderr\n"
	       "  --version         tell the version and exit\n"
	       "  --help            this text\n"
	       "%s",
	       e->name, e->about, e->data == VISION_MNIST ? "MNIST" : "CIFAR-10", e->batch,
	       recipe_list(optimizer_name, names, sizeof(names)), e->learning_rate, e->momentum, e->weight_decay, e->resnet ? resnet_help : "");
}

enum { OPT_DATA = 1, OPT_BATCH, OPT_IMAGES_PER_UPDATE, OPT_STEPS, OPT_OPTIMIZER, OPT_LR, OPT_SCHEDULE, OPT_WARMUP,
       OPT_DECAY, OPT_CONSTANT, OPT_MOMENTUM, OPT_WEIGHT_DECAY, OPT_PLAIN,
       OPT_SEED, OPT_CHECKPOINT, OPT_RESUME, OPT_SURVIVE, OPT_STOPPED_EXIT, OPT_METRICS, OPT_TRACE, OPT_DEVICE, OPT_NO_GRAPHS, OPT_SPAWN,
       OPT_THREADS, OPT_READERS, OPT_VERBOSE, OPT_VERSION, OPT_HELP,
       OPT_DEPTH, OPT_WIDTH, OPT_IMAGENET_STEM, OPT_SYNC_BATCH_NORM };

static const struct option known[] = {
	{"data", required_argument, NULL, OPT_DATA}, {"batch", required_argument, NULL, OPT_BATCH},
	{"images-per-update", required_argument, NULL, OPT_IMAGES_PER_UPDATE},
	{"optimizer", required_argument, NULL, OPT_OPTIMIZER}, {"schedule", required_argument, NULL, OPT_SCHEDULE},
	{"warmup", required_argument, NULL, OPT_WARMUP}, {"decay", required_argument, NULL, OPT_DECAY},
	{"steps", required_argument, NULL, OPT_STEPS}, {"lr", required_argument, NULL, OPT_LR},
	{"constant", no_argument, NULL, OPT_CONSTANT}, {"momentum", required_argument, NULL, OPT_MOMENTUM},
	{"weight-decay", required_argument, NULL, OPT_WEIGHT_DECAY}, {"plain", no_argument, NULL, OPT_PLAIN},
	{"seed", required_argument, NULL, OPT_SEED}, {"checkpoint", required_argument, NULL, OPT_CHECKPOINT},
	{"resume", no_argument, NULL, OPT_RESUME}, {"stopped-exit", required_argument, NULL, OPT_STOPPED_EXIT},
	{"survive", no_argument, NULL, OPT_SURVIVE}, {"metrics", required_argument, NULL, OPT_METRICS},
	{"trace", required_argument, NULL, OPT_TRACE}, {"readers", required_argument, NULL, OPT_READERS},
	{"device", required_argument, NULL, OPT_DEVICE}, {"spawn", required_argument, NULL, OPT_SPAWN},
	{"threads", required_argument, NULL, OPT_THREADS}, {"no-graphs", no_argument, NULL, OPT_NO_GRAPHS},
	{"verbose", no_argument, NULL, OPT_VERBOSE}, {"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, OPT_HELP},
	{"depth", required_argument, NULL, OPT_DEPTH}, {"width", required_argument, NULL, OPT_WIDTH},
	{"imagenet-stem", no_argument, NULL, OPT_IMAGENET_STEM},
	{"sync-batch-norm", no_argument, NULL, OPT_SYNC_BATCH_NORM}, {0},
};

static bool read_integer(const char *name, const char *text, int64_t least, int64_t most, int64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoll(text, &end, 10);
	if (errno == 0 && end != text && *end == '\0' && *value >= least && *value <= most)
		return true;
	fprintf(stderr, "%s: \"%s\" is not a whole number from %lld to %lld\n", name, text, (long long)least,
	        (long long)most);
	return false;
}

static bool read_int(const char *name, const char *text, int most, int *value)
{
	int64_t number;

	if (!read_integer(name, text, 1, most, &number))
		return false;
	*value = (int)number;
	return true;
}

static bool read_real(const char *name, const char *text, double *value)
{
	char *end;

	*value = strtod(text, &end);
	if (end != text && *end == '\0' && isfinite(*value) && *value >= 0)
		return true;
	fprintf(stderr, "%s: \"%s\" is not a number from 0 on\n", name, text);
	return false;
}

/* Which of `count` names `text` is. */
static bool read_name(const char *name, const char *text, const char *const *names, int count, int *which)
{
	for (*which = 0; *which < count; ++*which)
		if (strcmp(text, names[*which]) == 0)
			return true;
	fprintf(stderr, "%s: \"%s\" is none of", name, text);
	for (int i = 0; i < count; i++)
		fprintf(stderr, " %s", names[i]);
	fprintf(stderr, "\n");
	return false;
}

static bool read_recipe(const char *name, const char *text, recipe_name *recipe, int *which)
{
	char names[128];

	*which = recipe_of(recipe, text);
	if (*which < 0)
		fprintf(stderr, "%s: \"%s\" is none of %s\n", name, text, recipe_list(recipe, names, sizeof(names)));
	return *which >= 0;
}

static bool take(vision_options *o, int id, const char *name, const char *text)
{
	const int64_t most = INT64_C(1) << 40;
	int64_t seed, number;
	int which;

	switch (id) {
	case OPT_DATA: o->data = text; return true;
	case OPT_BATCH: return read_int(name, text, 1 << 20, &o->batch);
	case OPT_IMAGES_PER_UPDATE: return read_integer(name, text, 1, most, &o->images_per_update);
	case OPT_STEPS: return read_integer(name, text, 1, most, &o->steps);
	case OPT_LR: return read_real(name, text, &o->learning_rate);
	case OPT_OPTIMIZER:
		if (!read_recipe(name, text, optimizer_name, &which))
			return false;
		o->optimizer = (ddp_optimizer)which;
		return true;
	case OPT_SCHEDULE:
		if (!read_recipe(name, text, schedule_name, &which))
			return false;
		o->schedule = (ddp_schedule_kind)which;
		return true;
	case OPT_WARMUP: return read_integer(name, text, 0, most, &o->warmup);
	case OPT_DECAY: return read_integer(name, text, 1, most, &o->decay);
	case OPT_CONSTANT: o->schedule = DDP_SCHEDULE_CONSTANT; return true;
	case OPT_MOMENTUM: return read_real(name, text, &o->momentum);
	case OPT_WEIGHT_DECAY: return read_real(name, text, &o->weight_decay);
	case OPT_PLAIN: o->plain = true; return true;
	case OPT_CHECKPOINT: o->checkpoint = text; return true;
	case OPT_RESUME: o->resume = true; return true;
	case OPT_SURVIVE: o->survive = true; return true;
	case OPT_STOPPED_EXIT:
		if (!read_integer(name, text, 0, 124, &number))
			return false;
		o->stopped_exit = (int)number;
		return true;
	case OPT_METRICS: o->metrics = text; return true;
	case OPT_TRACE: o->trace = text; return true;
	case OPT_DEVICE: o->device = text; return true;
	case OPT_NO_GRAPHS: o->no_graphs = true; return true;
	case OPT_SPAWN: return read_int(name, text, 1024, &o->spawn);
	case OPT_THREADS: return read_int(name, text, 4096, &o->threads);
	case OPT_READERS: return read_int(name, text, 256, &o->readers);
	case OPT_VERBOSE: o->verbose = true; return true;
	case OPT_DEPTH:
		if (!read_name(name, text, (const char *const[]){"18", "50"}, 2, &which))
			return false;
		o->resnet.depth = which == 0 ? 18 : 50;
		return true;
	case OPT_WIDTH: return read_int(name, text, 1024, &o->resnet.width);
	case OPT_IMAGENET_STEM: o->resnet.imagenet_stem = true; return true;
	case OPT_SYNC_BATCH_NORM: o->sync_batch_norm = true; return true;
	default:
		if (!read_integer(name, text, 0, INT64_MAX, &seed))
			return false;
		o->seed = (uint64_t)seed;
		return true;
	}
}

vision_parsed vision_parse(int argc, char **argv, const vision_example *e, vision_options *o)
{
	struct option taken[sizeof(known) / sizeof(known[0])];
	int id, index = 0;

	*o = (vision_options){.batch = e->batch, .steps = 200, .optimizer = DDP_SGD, .decay = DDP_AUTO, .readers = 1,
		.schedule = DDP_SCHEDULE_COSINE, .learning_rate = e->learning_rate,
		.momentum = e->momentum, .weight_decay = e->weight_decay, .seed = 1,
		.stopped_exit = 75 /* EX_TEMPFAIL: it may be started again */,
		.resnet = {.depth = 18, .width = 64, .classes = VISION_CLASSES}};
	/* Those of a ResNet are the last ones. */
	memcpy(taken, known, sizeof(known));
	for (int i = 0; taken[i].name != NULL; i++)
		if (taken[i].val == OPT_DEPTH && !e->resnet)
			taken[i] = (struct option){0};
	while ((id = getopt_long(argc, argv, "", taken, &index)) != -1) {
		if (id == OPT_HELP) {
			print_help(e);
			return VISION_DONE;
		}
		if (id == OPT_VERSION) {
			printf("%s (slurm-ddp) %s\n", e->name, ddp_version());
			return VISION_DONE;
		}
		/* getopt has said what is wrong with '?' */
		if (id == '?' || !take(o, id, known[index].name, optarg)) {
			fprintf(stderr, "see %s --help\n", e->name);
			return VISION_BAD;
		}
	}
	if (optind < argc || o->data == NULL) {
		fprintf(stderr, "%s: %s%s; see %s --help\n", e->name, optind < argc ? argv[optind] : "--data DIR",
		        optind < argc ? ": not an option" : " is needed", e->name);
		return VISION_BAD;
	}
	if (o->resume && o->checkpoint == NULL) {
		fprintf(stderr, "%s: --resume needs --checkpoint DIR\n", e->name);
		return VISION_BAD;
	}
	return VISION_RUN;
}
