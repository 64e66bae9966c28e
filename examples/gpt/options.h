/* SPDX-License-Identifier: Apache-2.0 */
/* options: gpt's command line. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "models/gpt.h"

typedef enum gpt_dtype { GPT_F32, GPT_TF32, GPT_BF16, GPT_F16 } gpt_dtype;

typedef struct gpt_options {
	const char *data, *test; /* to train on; to measure the loss on, or NULL */
	ddp_token_format format;
	gpt_config model;
	int named;               /* which of the models with a name; -1: none */
	int batch, accumulate;
	int64_t steps;
	int64_t tokens_per_update; /* of all ranks; 0: accumulate says */
	ddp_optimizer optimizer;
	double dropout;
	double learning_rate, momentum, weight_decay, clip; /* momentum -1: the optimizer's */
	ddp_schedule_kind schedule;
	int64_t warmup, decay;
	uint64_t seed;
	const char *checkpoint;  /* directory, or NULL */
	int64_t checkpoint_every;
	bool checkpoint_async, resume, survive, buddy;
	int keep;
	const char *metrics, *trace; /* NULL: none */
	ddp_shard shard;
	ddp_compression compress;
	int powersgd_rank;
	int64_t local_steps, local_start; /* the latter -1: with the end of the warm-up */
	int64_t powersgd_start; /* -1: with the end of the warm-up */
	double bucket_mb;        /* or DDP_AUTO */
	const char *device;      /* NULL: the host */
	gpt_dtype dtype;
	bool tf32;               /* its matrix products may round to TF32 */
	double loss_scale;       /* the first one, of f16; 0: the library's */
	bool no_graphs;          /* it is given kernels one by one */
	int spawn;               /* 0: ranks come from the launcher */
	int threads;             /* 0: the node's processors over its ranks */
	int readers;             /* threads that read ahead */
	int generate;
	bool json, verbose;
	int stopped_exit;        /* code of a training that was stopped before its last step */
} gpt_options;

/* Whether what computes has memory of its own. */
bool gpt_on_device(const gpt_options *options);

/* Reads the command line, into which options' strings point. --help, --version and what is wrong end the program. */
void gpt_read_options(int argc, char **argv, gpt_options *options);
