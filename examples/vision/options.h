/* SPDX-License-Identifier: Apache-2.0 */
/* options: the command line of the examples that train on images. */
#pragma once

#include "models/resnet.h"
#include "vision/vision.h"

struct vision_options {
	const char *data;                /* a folder */
	int batch, spawn, threads;       /* spawn 0: ranks come from the launcher */
	int readers;                     /* threads that read ahead */
	int64_t steps, images_per_update, warmup, decay; /* images 0: those of one batch */
	ddp_optimizer optimizer;
	ddp_schedule_kind schedule;
	double learning_rate, momentum, weight_decay;
	uint64_t seed;
	const char *checkpoint, *metrics, *trace; /* NULL: none */
	const char *device;              /* NULL: the host */
	int stopped_exit;                /* code of a training that was stopped before its last step */
	bool resume, survive, plain, verbose, sync_batch_norm;
	bool no_graphs;                  /* a device is given kernels one by one */
	net_resnet_shape resnet;
};

/* --help, --version and what is wrong end the program. */
void vision_read_options(int argc, char **argv, const vision_example *example, vision_options *options);
