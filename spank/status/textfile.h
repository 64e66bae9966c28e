/* SPDX-License-Identifier: Apache-2.0 */
/* A file that others read at any time: it has the old text or the new one, and nothing between. */
#ifndef STATUS_TEXTFILE_H
#define STATUS_TEXTFILE_H

#include <stdbool.h>
#include <stdio.h>

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

#endif
