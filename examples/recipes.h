/* SPDX-License-Identifier: Apache-2.0 */
/* The names that options have for optimizers and schedules, in the order of ddp.h. */
#ifndef EXAMPLES_RECIPES_H
#define EXAMPLES_RECIPES_H

static const char *const optimizer_names[] = {"adamw", "sgd", "adam", "lamb", "adafactor", "muon"};
static const char *const schedule_names[] = {"constant", "linear", "cosine", "wsd", "inverse-root"};

enum {
	OPTIMIZER_NAMES = sizeof(optimizer_names) / sizeof(optimizer_names[0]),
	SCHEDULE_NAMES = sizeof(schedule_names) / sizeof(schedule_names[0])
};

#endif
