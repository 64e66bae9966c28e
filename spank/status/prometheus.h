/* SPDX-License-Identifier: Apache-2.0 */
/* Rows as figures in Prometheus' text format. ddp-status(1) lists them. Pure. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "spank/status/row.h"

/* A file that others read at any time: it has the old text or the new one, and nothing between. */
struct textfile {
	const char *path;
	char *other; /* the file that becomes it */
	FILE *file;
};

/* Opens a file beside `path` whose name begins with a dot, so that node_exporter leaves it alone. False, with a
   sentence on stderr, if it cannot, or if `path` is anything but a plain file. */
bool textfile_begin(struct textfile *textfile, const char *path);
/* Gives it the name; everyone may read it. With `keep` false, it goes, and the old file stays. False, with a sentence
   on stderr, if the text was not written. */
bool textfile_end(struct textfile *textfile, bool keep);

/* `now` is the time, in seconds since 1970. `node` is the node that the figures are of; NULL: they are of a job. Of two
   rows with one rank the first counts, because Prometheus refuses a text that has a figure twice. False: no memory, or
   the file took not all. */
bool prometheus_write(FILE *file, const struct row *rows, size_t count, const char *node, double now);
