#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpt/report.h"

enum { LINES = 20, LINE_SECONDS = 10 }; /* lines of steps that stay, or one in 10 s */

static const char *paint(const report *r, const char *colour)
{
	return r->live ? colour : "";
}

#define BOLD "\033[1m"
#define DIM "\033[2m"
#define GREEN "\033[32m"
#define PLAIN "\033[0m"

static bool is_live(FILE *out)
{
	const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

	if (no_color != NULL && no_color[0] != '\0')
		return false;
	return isatty(fileno(out)) && term != NULL && strcmp(term, "dumb") != 0;
}

void report_start(report *r, const gpt_options *o, const ddp_job *job, int64_t parameters,
                  int64_t samples)
{
	const gpt_config *m = &o->model;

	*r = (report){.options = o, .out = o->json ? stderr : stdout};
	r->live = is_live(r->out);
	r->every = o->steps / LINES > 0 ? o->steps / LINES : 1;
	fprintf(r->out, "%sGPT-2%s %.2fM parameters: %d layers, %d heads, width %d, vocabulary %d, "
	        "length %d%s\n", paint(r, BOLD), paint(r, PLAIN), (double)parameters * 1e-6, m->layers,
	        m->heads, m->width, m->vocab, m->length, m->mixed ? ", in bf16" : o->tf32 ? ", products in TF32" : "");
	fprintf(r->out, "%s: %" PRId64 " samples; %d rank%s on %d node%s, %" PRId64 " tokens a step\n",
	        o->data, samples, job->world_size, job->world_size == 1 ? "" : "s", job->nnodes,
	        job->nnodes == 1 ? "" : "s",
	        (int64_t)job->world_size * o->batch * o->accumulate * m->length);
	fflush(r->out);
}

/* 1234567 -> "1,234,567" */
static const char *with_commas(double value, char *text, size_t bytes)
{
	char digits[32];
	size_t used = 0;

	snprintf(digits, sizeof(digits), "%.0f", value);
	size_t n = strlen(digits);
	for (size_t i = 0; i < n && used + 2 < bytes; i++) {
		if (i > 0 && (n - i) % 3 == 0)
			text[used++] = ',';
		text[used++] = digits[i];
	}
	text[used] = '\0';
	return text;
}

/* By the mean of this run's steps. */
static void print_time_left(const report *r, int64_t steps)
{
	const int64_t seconds = (int64_t)(r->run_seconds / (double)r->steps * (double)steps + 0.5);

	fprintf(r->out, "  %s%" PRId64 ":%02d:%02d left%s", paint(r, DIM), seconds / 3600, (int)(seconds / 60 % 60),
	        (int)(seconds % 60), paint(r, PLAIN));
}

void report_step(report *r, const ddp_step_stats *s)
{
	int64_t steps = r->options->steps;
	bool stays = s->step % r->every == 0 || s->step == steps || s->step == 1 || s->stop ||
	             r->seconds + s->seconds >= LINE_SECONDS;
	char rate[32];

	if (r->first == 0)
		r->first = s->step;
	r->last = s->step;
	r->seconds += s->seconds;
	r->run_seconds += s->seconds;
	r->steps++;
	r->weight += s->weight;
	r->exposed_seconds += s->exposed_seconds;
	if (!stays && !r->live)
		return;
	int64_t counted = s->step - r->first + 1;
	double per_second = r->seconds > 0 ? r->weight / r->seconds : 0;
	fprintf(r->out, "%sstep %*" PRId64 "/%" PRId64 "  %sloss %.4f%s  lr %.2e  %9s tokens/s  "
	        "%sexposed communication %.2f ms%s", r->live ? "\r\033[K" : "",
	        snprintf(NULL, 0, "%" PRId64, steps), s->step, steps, paint(r, GREEN), s->loss,
	        paint(r, PLAIN), s->learning_rate, with_commas(per_second, rate, sizeof(rate)),
	        paint(r, DIM), r->exposed_seconds * 1e3 / (double)counted, paint(r, PLAIN));
	if (r->live && !stays)
		print_time_left(r, steps - s->step);
	else
		fputc('\n', r->out);
	fflush(r->out);
	if (stays) {
		r->first = 0;
		r->seconds = r->weight = r->exposed_seconds = 0;
	}
}

static void summary_text(const report *r, const ddp_summary *s, int nnodes)
{
	double per_step = 1e3 / (double)s->steps;
	char rate[32];

	if (s->steps == 0) {
		fprintf(r->out, "nothing left to train: the checkpoint in %s has done all %" PRId64
		        " steps; for more, give a larger --steps\n", r->options->checkpoint,
		        r->options->steps);
		return;
	}
	fprintf(r->out, "%strained%s %" PRId64 " steps in %.1f s: %s tokens/s, loss %.4f -> %.4f\n",
	        paint(r, BOLD), paint(r, PLAIN), s->steps, s->seconds,
	        with_commas(s->units_per_second, rate, sizeof(rate)), s->first_loss, s->last_loss);
	fprintf(r->out, "a step   data %.2f  forward %.2f  backward %.2f  exposed communication %.2f  "
	        "optimizer %.2f ms\n", s->data_seconds * per_step, s->forward_seconds * per_step,
	        s->backward_seconds * per_step, s->exposed_seconds * per_step,
	        s->optimizer_seconds * per_step);
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

static void summary_json(const ddp_summary *s, const ddp_job *job)
{
	json_t *object = json_pack(
		"{s:I, s:i, s:b, s:s, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
		"steps", (json_int_t)s->steps, "world_size", job->world_size, "stopped", s->stopped,
		"shard", shard_name(s->shard),
		"seconds", s->seconds, "tokens_per_second", s->units_per_second, "first_loss", number(s->first_loss),
		"last_loss", number(s->last_loss), "data_seconds", s->data_seconds,
		"forward_seconds", s->forward_seconds, "backward_seconds", s->backward_seconds,
		"exposed_seconds", s->exposed_seconds,
		"communication_seconds", s->communication_seconds,
		"optimizer_seconds", s->optimizer_seconds, "overlap_ratio", s->overlap_ratio);

	if (object == NULL || json_dumpf(object, stdout, JSON_REAL_PRECISION(9)) != 0)
		fprintf(stderr, "gpt: cannot write the summary as JSON\n");
	else
		putchar('\n');
	json_decref(object);
	fflush(stdout);
}

void report_end(report *r, const ddp_summary *summary, const ddp_job *job)
{
	if (r->options->json)
		summary_json(summary, job);
	else
		summary_text(r, summary, job->nnodes);
}
