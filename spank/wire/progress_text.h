/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank is doing, from its progress page. The rank may have written anything to the page, so every
   field is checked once, here. Pure; slurmstepd calls it as root. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/text.h"
#include "watch/progress.h"

enum { PROGRESS_TEXT_MAX = 64, PROGRESS_ERROR_MAX = 256 };

/* This phase says that nothing is known except the program's NCCL operations. */
enum { PROGRESS_NCCL = 1000 };

enum progress_wait { PROGRESS_NO_WAIT, PROGRESS_WAITS_IN_COLLECTIVE, PROGRESS_WAITS_OTHERWISE };

struct progress_text {
	bool known;          /* there is a page of libddp; the rest is zero without one */
	bool closed;         /* ddp_finalize() was called */
	uint32_t phase;      /* enum ddp_phase, enum ddp_progress_phase, PROGRESS_NCCL, or more: unknown */
	int64_t step;        /* 0: none yet */
	int32_t bucket, buckets; /* "3 of 9"; 0 of 0: not told */
	double phase_seconds;    /* since the phase began; below 0: not told */
	uint64_t collective; /* 0: none yet */
	enum progress_wait wait;
	double wait_seconds; /* since the wait, or else the last collective, began; below 0: not told */
	char text[PROGRESS_TEXT_MAX + 1];   /* the collective or the wait; printable; "": not told */
	char error[PROGRESS_ERROR_MAX + 1]; /* printable; "": none */
	uint32_t status;     /* ddp_status of the error */
	uint32_t culprit;    /* the rank that the error is about; UINT32_MAX: none */
	double step_seconds, step_weight; /* of the last step; 0: not told */
	int64_t steps; /* that the training has when it ends; 0: not told */
};

/* `page` is a copy; now_ns is CLOCK_MONOTONIC. */
void progress_text_read(const struct ddp_progress *page, uint64_t now_ns, struct progress_text *progress);

/* "backward", "nccl"; never NULL. */
const char *progress_phase_name(uint32_t phase);

/* A checkpoint, an evaluation or a program's start, of which nobody knows how long it takes. */
bool progress_text_is_busy(const struct progress_text *progress);

/* A number that is lower the less far the rank has got: that of its last collective or, if it tells of
   none, one of its step, in which data comes first. */
uint64_t progress_text_place(const struct progress_text *progress);

/* Adds "in backward of step 12 for 3.2 s, bucket 3 of 9, waiting in collective
   #45 all_reduce f32[10] sum for 3.0 s"; nothing without a page. */
void progress_text_add(struct sink *sink, const struct progress_text *progress);
