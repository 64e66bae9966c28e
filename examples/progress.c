/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINES = 20, LINE_SECONDS = 10 }; /* lines of steps that stay, or one in 10 s */

#define DIM "\033[2m"
#define GREEN "\033[32m"

const char *progress_paint(const progress *p, const char *escape)
{
	return p->live ? escape : "";
}

static bool is_live(FILE *out)
{
	const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

	if (no_color != NULL && no_color[0] != '\0')
		return false;
	return isatty(fileno(out)) && term != NULL && strcmp(term, "dumb") != 0;
}

void progress_start(progress *p, FILE *out, int64_t total, const char *unit)
{
	*p = (progress){.out = out, .unit = unit, .live = is_live(out), .total = total,
	                .every = total / LINES > 0 ? total / LINES : 1};
}

const char *progress_number(double value, char text[PROGRESS_NUMBER_BYTES])
{
	char digits[PROGRESS_NUMBER_BYTES];
	size_t used = 0;

	snprintf(digits, sizeof(digits), "%.0f", value);
	size_t n = strlen(digits);
	for (size_t i = 0; i < n && used + 2 < PROGRESS_NUMBER_BYTES; i++) {
		if (i > 0 && (n - i) % 3 == 0)
			text[used++] = ',';
		text[used++] = digits[i];
	}
	text[used] = '\0';
	return text;
}

/* By the mean of this run's steps. */
static void print_time_left(const progress *p, int64_t steps)
{
	const int64_t seconds = (int64_t)(p->run_seconds / (double)p->steps * (double)steps + 0.5);

	fprintf(p->out, "  %s%" PRId64 ":%02d:%02d left%s", progress_paint(p, DIM), seconds / 3600,
	        (int)(seconds / 60 % 60), (int)(seconds % 60), progress_paint(p, PROGRESS_PLAIN));
}

static void count(progress *p, const ddp_step_stats *s)
{
	if (p->first == 0)
		p->first = s->step;
	p->seconds += s->seconds;
	p->run_seconds += s->seconds;
	p->steps++;
	p->weight += s->weight;
	p->exposed_seconds += s->exposed_seconds;
}

void progress_step(progress *p, const ddp_step_stats *s)
{
	const char *plain = progress_paint(p, PROGRESS_PLAIN);
	char rate[PROGRESS_NUMBER_BYTES];

	count(p, s);
	const bool stays = s->step % p->every == 0 || s->step == p->total || s->step == 1 || s->stop ||
	                   p->seconds >= LINE_SECONDS;
	if (!stays && !p->live)
		return;
	const double counted = (double)(s->step - p->first + 1);
	fprintf(p->out, "%sstep %*" PRId64 "/%" PRId64 "  %sloss %.4f%s  lr %.2e  %9s %s/s  "
	        "%sexposed communication %.2f ms%s", p->live ? "\r\033[K" : "",
	        snprintf(NULL, 0, "%" PRId64, p->total), s->step, p->total, progress_paint(p, GREEN), s->loss,
	        plain, s->learning_rate, progress_number(p->seconds > 0 ? p->weight / p->seconds : 0, rate),
	        p->unit, progress_paint(p, DIM), p->exposed_seconds * 1e3 / counted, plain);
	if (p->live && !stays)
		print_time_left(p, p->total - s->step);
	else
		fputc('\n', p->out);
	fflush(p->out);
	if (stays) {
		p->first = 0;
		p->seconds = p->weight = p->exposed_seconds = 0;
	}
}
