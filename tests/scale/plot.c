/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scale/plot.h"

#include <math.h>
#include <stdio.h>

enum { LEFT = 70, TOP = 90, WIDTH = 300, HEIGHT = 220, GAP_X = 80, GAP_Y = 80 };

static const char *const colours[] = { "#7f7f7f", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2" };
_Static_assert(sizeof(colours) / sizeof(colours[0]) >= DDP_ALGORITHMS, "each algorithm has a colour");

/* Whole powers of ten around all values. */
typedef struct axis {
	int low, high;
	double start, length;
} axis;

static double place(const axis *a, double value)
{
	return a->start + a->length * (log10(value) - a->low) / (a->high - a->low);
}

static axis axis_of(const plot_panel *panel, bool vertical, double start, double length)
{
	double low = INFINITY, high = 0;

	for (int a = 0; a < DDP_ALGORITHMS; a++) {
		for (int i = 0; i < panel->count[a]; i++) {
			const double value = vertical ? panel->points[a][i].y : panel->points[a][i].x;
			low = value < low ? value : low;
			high = value > high ? value : high;
		}
	}
	axis result = { .low = (int)floor(log10(low) + 1e-9), .high = (int)ceil(log10(high) - 1e-9),
	                .start = start, .length = length };
	if (result.high == result.low)
		result.high++;
	return result;
}

void plot_add(plot_panel *panel, ddp_algorithm algorithm, double x, double y, bool chosen)
{
	int *count = &panel->count[algorithm];

	if (*count < PLOT_POINTS && y > 0 && isfinite(y))
		panel->points[algorithm][(*count)++] = (plot_point){ x, y, chosen };
}

static void write_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

static void write_power(FILE *out, double x, double y, const char *anchor, int power)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">10<tspan dy=\"-4\" font-size=\"8\">%d</tspan></text>\n",
	        x, y, anchor, power);
}

static void write_line(FILE *out, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#e0e0e0\"/>\n", x1, y1, x2, y2);
}

static void write_grid(FILE *out, const axis *x, const axis *y)
{
	const double bottom = y->start, top = y->start + y->length, left = x->start, right = x->start + x->length;
	const int step = (y->high - y->low + 5) / 6;

	for (int power = x->low; power <= x->high; power++) {
		const double at = place(x, pow(10, power));
		write_line(out, at, bottom, at, top);
		write_power(out, at, bottom + 16, "middle", power);
	}
	for (int power = y->low; power <= y->high; power += step) {
		const double at = place(y, pow(10, power));
		write_line(out, left, at, right, at);
		write_power(out, left - 6, at + 4, "end", power);
	}
}

static void write_curve(FILE *out, const plot_panel *panel, int algorithm, const axis *x, const axis *y)
{
	const plot_point *points = panel->points[algorithm];

	fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colours[algorithm]);
	for (int i = 0; i < panel->count[algorithm]; i++)
		fprintf(out, "%.1f,%.1f ", place(x, points[i].x), place(y, points[i].y));
	fprintf(out, "\"/>\n");
	for (int i = 0; i < panel->count[algorithm]; i++) {
		if (points[i].chosen)
			fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", place(x, points[i].x),
			        place(y, points[i].y), colours[algorithm]);
	}
}

static void write_panel(FILE *out, const plot_panel *panel, double left, double top)
{
	const axis x = axis_of(panel, false, left, WIDTH), y = axis_of(panel, true, top + HEIGHT, -HEIGHT);

	write_text(out, left + WIDTH / 2.0, top - 10, "middle", panel->title);
	write_grid(out, &x, &y);
	write_text(out, left + WIDTH / 2.0, top + HEIGHT + 34, "middle", "ranks");
	for (int a = 0; a < DDP_ALGORITHMS; a++) {
		if (panel->count[a] > 0)
			write_curve(out, panel, a, &x, &y);
	}
}

static void write_legend(FILE *out)
{
	for (int a = 0; a < DDP_ALGORITHMS; a++) {
		const double x = LEFT + 170.0 * a;
		fprintf(out, "<line x1=\"%.1f\" y1=\"46\" x2=\"%.1f\" y2=\"46\" stroke=\"%s\" stroke-width=\"3\"/>\n", x,
		        x + 20, colours[a]);
		write_text(out, x + 26, 50, "start", ddp_algorithm_of((ddp_algorithm)a)->name);
	}
	fprintf(out, "<circle cx=\"%.1f\" cy=\"46\" r=\"4\"/>\n", LEFT + 170.0 * DDP_ALGORITHMS + 20);
	write_text(out, LEFT + 170.0 * DDP_ALGORITHMS + 32, 50, "start", "what libddp chooses");
}

bool plot_write(const char *file, const char *caption, const plot_panel *panels, int rows, int columns)
{
	const int width = LEFT + columns * (WIDTH + GAP_X), height = TOP + rows * (HEIGHT + GAP_Y);
	FILE *out = fopen(file, "we");

	if (out == NULL)
		return false;
	fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
	        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
	        width, height);
	write_text(out, LEFT, 24, "start", caption);
	write_legend(out);
	for (int i = 0; i < rows * columns; i++)
		write_panel(out, &panels[i], LEFT + i % columns * (WIDTH + GAP_X), TOP + i / columns * (HEIGHT + GAP_Y));
	fprintf(out, "</svg>\n");
	const bool good = ferror(out) == 0;
	return fclose(out) == 0 && good;
}
