/* SPDX-License-Identifier: Apache-2.0 */
/* plot: curves of the algorithms over the number of ranks, as SVG with logarithmic axes. */
#ifndef TESTS_SCALE_PLOT_H
#define TESTS_SCALE_PLOT_H

#include "comm/hier/algorithms.h"

enum { PLOT_POINTS = 16 };

typedef struct plot_point {
	double x, y;
	bool chosen; /* a filled dot */
} plot_point;

typedef struct plot_panel {
	char title[64];
	plot_point points[DDP_ALGORITHMS][PLOT_POINTS];
	int count[DDP_ALGORITHMS];
} plot_panel;

void plot_add(plot_panel *panel, ddp_algorithm algorithm, double x, double y, bool chosen);
/* Panels row by row; false with errno. */
bool plot_write(const char *file, const char *caption, const plot_panel *panels, int rows, int columns);

#endif
