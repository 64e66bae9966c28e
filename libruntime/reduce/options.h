/* SPDX-License-Identifier: Apache-2.0 */
/* options: the table of a model's options. For each option it has the range, whether ranks compare it,
   whether checkpoints hold it, and its name in messages. */
#pragma once

#include "optim/optim.h"

typedef enum ddp_option_type {
	DDP_OPTION_FLAG, DDP_OPTION_INT, DDP_OPTION_INT64,
	DDP_OPTION_UNSIGNED, /* an enum is one, too */
	DDP_OPTION_NUMBER,
	DDP_OPTION_ADDRESS   /* its value is 1 if it is given, else 0 */
} ddp_option_type;

typedef struct ddp_option {
	const char *name;      /* "powersgd.rank" */
	size_t offset;         /* in ddp_model_options */
	ddp_option_type type;
	double least, most;    /* its range, in which both are */
	const char *range;     /* the same in words; NULL: it has none */
	const char *key;       /* its name in checkpoints; NULL: it does not change what training comes to */
	bool key_is_opposite;  /* a checkpoint holds 1 minus its value */
	const char *told;      /* what messages about different values call it; NULL: its name */
	bool may_be_auto;      /* DDP_AUTO is left for who uses it */
	bool is_local;         /* ranks need not give the same */
} ddp_option;

/* The table, in the order of ddp_model_options, and its length. */
enum { DDP_MODEL_OPTIONS_MAX = 56 };
extern const ddp_option ddp_model_option_table[];
extern const int ddp_model_option_count;

double ddp_option_value(const ddp_option *option, const ddp_model_options *options);

/* A model's options with defaults for DDP_AUTO, checked, and what follows from them. */
typedef struct ddp_model_settings {
	ddp_model_options options;
	int64_t bucket_elements; /* 0: by the size of the model */
	int64_t first_bucket_elements;
	bool caps_given;         /* of buckets, by the program or the environment */
	bool no_overlap, no_communication; /* to measure */
} ddp_model_settings;

/* Reads DDP_BUCKET_MB, DDP_COMPARE_EVERY, DDP_BUDDY and DDP_MEASURE of the environment too. `given` may be NULL.
   DDP_ERR_INVALID names the wrong option. */
ddp_status ddp_model_settings_make(const ddp_model_options *given, ddp_model_settings *settings);

/* The bucket size where none is given: a 32nd of the gradients, since the last
   bucket is what backward cannot hide, but at least 1 MiB, so that latency
   stays small beside it, and at most 25 MiB. */
int64_t ddp_default_bucket_elements(int64_t elements);
