/* SPDX-License-Identifier: Apache-2.0 */
/* report: what the leading rank shows while and after it trains. Every rank keeps one, as it may lead once rank 0 is
   lost. */
#pragma once

#include <stdio.h>

#include "gpt/options.h"
#include "progress.h"

typedef struct report {
	const gpt_options *options;
	FILE *out;
	progress progress;
	int64_t last;    /* step that is done */
	size_t activation_bytes;
	double loss_scale;
} report;

void report_start(report *r, const gpt_options *options, const ddp_job *job,
                  int64_t parameters, int64_t samples, size_t activation_bytes, bool leads);
/* A step that was skipped has left the loss scale so. */
void report_step(report *r, const ddp_step_stats *stats, double loss_scale, bool leads);
/* The closing summary is for people, or JSON on stdout. What training took people are told before
   the model is tested, however that ends; JSON comes whole, behind it. */
void report_trained(const report *r, const ddp_summary *summary, const ddp_job *job);
/* The loss on other data is NaN without any, or if it could not be measured. */
void report_tested(const report *r, const ddp_summary *summary, const ddp_job *job, double test_loss);
