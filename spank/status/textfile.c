/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/status/textfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fail(const struct textfile *textfile, const char *reason)
{
	fprintf(stderr, "ddp-status: cannot write %s: %s\n", textfile->path, reason);
	return false;
}

bool textfile_begin(struct textfile *textfile, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
	struct stat info;
	int fd;

	*textfile = (struct textfile){ .path = path };
	/* A rename would put a file in the place of a device. */
	if (name[0] == '\0' || (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)))
		return fail(textfile, "it is not a plain file");
	if (asprintf(&textfile->other, "%.*s.%s.XXXXXX", (int)(name - path), path, name) < 0)
		textfile->other = NULL;
	fd = textfile->other != NULL ? mkstemp(textfile->other) : -1;
	textfile->file = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (textfile->file != NULL)
		return true;
	fail(textfile, strerror(errno));
	if (fd >= 0) {
		close(fd);
		unlink(textfile->other);
	}
	free(textfile->other);
	return false;
}

bool textfile_end(struct textfile *textfile, bool keep)
{
	bool written = fflush(textfile->file) == 0 && fchmod(fileno(textfile->file), 0644) == 0;

	written &= fclose(textfile->file) == 0;
	if (keep && written)
		written = rename(textfile->other, textfile->path) == 0;
	if (keep && !written)
		fail(textfile, strerror(errno));
	if (!keep || !written)
		unlink(textfile->other);
	free(textfile->other);
	return written;
}
