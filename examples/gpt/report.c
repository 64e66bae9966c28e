/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "gpt/report.h"

void report_start(report *r, const gpt_options *o, const ddp_job *job, int64_t parameters,
                  int64_t samples, size_t activation_bytes, bool leads)
{
	const gpt_config *m = &o->model;
	const progress *p = &r->progress;

	*r = (report){.options = o, .out = o->json ? stderr : stdout, .activation_bytes = activation_bytes};
	progress_start(&r->progress, r->out, o->steps, "tokens");
	if (!leads)
		return;
	fprintf(r->out, "%sGPT-2%s %.2fM parameters: %d layers, %d heads, width %d, vocabulary %d, "
	        "length %d%s\n", progress_paint(p, PROGRESS_BOLD), progress_paint(p, PROGRESS_PLAIN),
	        (double)parameters * 1e-6, m->layers, m->heads, m->width, m->vocab, m->length, m->f16 ? ", in f16" : m->mixed ? ", in bf16" : o->tf32 ? ", products in TF32" : "");
	fprintf(r->out, "%s: %" PRId64 " samples; %d rank%s on %d node%s, %" PRId64 " tokens a step\n",
	        o->data, samples, job->world_size, job->world_size == 1 ? "" : "s", job->nnodes,
	        job->nnodes == 1 ? "" : "s",
	        (int64_t)job->world_size * o->batch * o->accumulate * m->length);
	fprintf(r->out, "activations: %.2f MiB a rank%s\n", (double)activation_bytes * 0x1p-20,
	        m->recompute ? "; layers are computed again in backward" : "");
	fflush(r->out);
}

void report_step(report *r, const ddp_step_stats *stats, double loss_scale, bool leads)
{
	r->last = stats->step;
	r->loss_scale = loss_scale;
	if (!leads)
		return;
	if (stats->skipped)
		fprintf(r->out, "step %" PRId64 " is skipped: gradients overflow f16; the loss scale is now %g\n", stats->step + 1,
		        loss_scale);
	else
		progress_step(&r->progress, stats);
}

static void summary_text(const report *r, const ddp_summary *s, int nnodes)
{
	const double per_step = 1e3 / (double)s->steps;
	const progress *p = &r->progress;
	char rate[PROGRESS_NUMBER_BYTES], which[64] = "";

	if (s->steps == 0) {
		fprintf(r->out, "nothing left to train: the checkpoint in %s has done %" PRId64
		        " steps or more; for more, give a larger --steps\n", r->options->checkpoint,
		        r->options->steps);
		return;
	}
	if (s->first_step > 1)
		snprintf(which, sizeof(which), " (%" PRId64 " to %" PRId64 ")", s->first_step, s->last_step);
	fprintf(r->out, "%strained%s %" PRId64 " steps%s in %.1f s: %s tokens/s, loss %.4f -> %.4f\n",
	        progress_paint(p, PROGRESS_BOLD), progress_paint(p, PROGRESS_PLAIN), s->steps, which, s->seconds,
	        progress_number(s->units_per_second, rate), s->first_loss, s->last_loss);
	fprintf(r->out, "a step   data %.2f  forward %.2f  backward %.2f  exposed communication %.2f  "
	        "optimizer %.2f", s->data_seconds * per_step, s->forward_seconds * per_step,
	        s->backward_seconds * per_step, s->exposed_seconds * per_step,
	        s->optimizer_seconds * per_step);
	if (s->checkpoint_seconds > 0)
		fprintf(r->out, "  checkpoint %.2f", s->checkpoint_seconds * per_step);
	if (s->other_seconds > 0.01 * s->seconds)
		fprintf(r->out, "  other %.2f", s->other_seconds * per_step);
	fprintf(r->out, " ms\n");
	if (r->options->model.f16)
		fprintf(r->out, "loss scale %g, steps skipped: %d\n", r->loss_scale, s->skipped);
	if (s->shard == DDP_SHARD_STATE && nnodes == 1)
		fprintf(r->out, "overlap  none needed: ranks share memory, each sums and updates a part\n");
	else
		fprintf(r->out, "overlap  %.0f%% of %.2f ms of communication\n", 100 * s->overlap_ratio,
		        s->communication_seconds * per_step);
	if (s->stopped)
		fprintf(r->out, "stopped by a signal after step %" PRId64 " of %" PRId64 "; %s\n", r->last,
		        r->options->steps, r->options->checkpoint != NULL
		        ? "--resume goes on from there"
		        : "nothing is left of it, as no --checkpoint was given");
	if (r->options->checkpoint != NULL)
		fprintf(r->out, "checkpoints in %s\n", r->options->checkpoint);
	if (r->options->trace != NULL)
		fprintf(r->out, "traces in %s (chrome://tracing, ui.perfetto.dev)\n", r->options->trace);
	fflush(r->out);
}

/* JSON knows neither infinity nor NaN. */
static json_t *number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static const char *shard_name(ddp_shard shard)
{
	return shard == DDP_SHARD_NONE ? "none" : shard == DDP_SHARD_STATE ? "state" : "gradients";
}

static void summary_json(const report *r, const ddp_summary *s, const ddp_job *job, double test_loss)
{
	json_t *object = json_pack(
		"{s:I, s:I, s:I, s:i, s:b, s:s, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:I, s:i, s:f}",
		"steps", (json_int_t)s->steps, "first_step", (json_int_t)s->first_step, "last_step", (json_int_t)s->last_step, "world_size", job->world_size, "stopped", s->stopped,
		"shard", shard_name(s->shard),
		"seconds", s->seconds, "tokens_per_second", s->units_per_second, "first_loss", number(s->first_loss),
		"last_loss", number(s->last_loss), "data_seconds", s->data_seconds,
		"forward_seconds", s->forward_seconds, "backward_seconds", s->backward_seconds,
		"exposed_seconds", s->exposed_seconds,
		"communication_seconds", s->communication_seconds,
		"optimizer_seconds", s->optimizer_seconds, "checkpoint_seconds", s->checkpoint_seconds,
		"other_seconds", s->other_seconds, "overlap_ratio", number(s->overlap_ratio),
		"test_loss", number(test_loss), "activation_bytes", (json_int_t)r->activation_bytes,
		"skipped", s->skipped, "loss_scale", r->loss_scale);

	if (object == NULL || json_dumpf(object, stdout, JSON_REAL_PRECISION(9)) != 0)
		fprintf(stderr, "gpt: cannot write the summary as JSON\n");
	else
		putchar('\n');
	json_decref(object);
	fflush(stdout);
}

void report_trained(const report *r, const ddp_summary *summary, const ddp_job *job)
{
	if (!r->options->json)
		summary_text(r, summary, job->nnodes);
}

void report_tested(const report *r, const ddp_summary *summary, const ddp_job *job, double test_loss)
{
	if (r->options->json)
		summary_json(r, summary, job, test_loss);
	if (r->options->json || isnan(test_loss))
		return;
	fprintf(r->out, "test     loss %.4f, perplexity %.4g, on %s\n", test_loss, exp(test_loss), r->options->test);
	fflush(r->out);
}
