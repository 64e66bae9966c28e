/* SPDX-License-Identifier: Apache-2.0 */
/* A file that an example writes itself. What libddp writes follows the rules of ddp.h (Files and
   folders); these are simpler: other users may write to the folder, so no link is followed, and no pipe,
   device or file with a second name is taken. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The look is at the name: another user may remove a hard link after it was opened. */
static inline const char *file_fault(int fd, const char *path)
{
	struct stat about, named;

	if (fd < 0)
		return errno == ELOOP ? "it is a link; name the file itself" : strerror(errno);
	if (fstat(fd, &about) != 0)
		return strerror(errno);
	if (lstat(path, &named) != 0 || named.st_dev != about.st_dev || named.st_ino != about.st_ino)
		return "it was replaced while it was opened";
	if (!S_ISREG(about.st_mode))
		return "it is no regular file";
	return named.st_nlink > 1 ? "it has another name elsewhere (a hard link)" : NULL;
}

/* Opens it, made if need be, to read and to append, or empty; NULL with a sentence on stderr. */
static inline FILE *open_own_file(const char *program, const char *path, bool empty)
{
	const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC |
	                    (empty ? 0 : O_APPEND), 0666);
	const char *fault = file_fault(fd, path);
	FILE *file = NULL;

	if (fault == NULL && (!empty || ftruncate(fd, 0) == 0))
		file = fdopen(fd, empty ? "w" : "a+");
	if (file != NULL)
		return file;
	fprintf(stderr, "%s: cannot write to %s: %s\n", program, path, fault != NULL ? fault : strerror(errno));
	if (fd >= 0)
		close(fd);
	return NULL;
}
