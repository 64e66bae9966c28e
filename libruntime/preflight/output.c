/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((format(printf, 2, 3))) static bool refuse(char why[PREFLIGHT_WHY], const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, PREFLIGHT_WHY, format, arguments);
	va_end(arguments);
	return false;
}

/* Standard output or error, if `info` is of the file to which it goes; otherwise -1. */
static int standard(const struct stat *info)
{
	for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
		struct stat own;
		if (fstat(fd, &own) == 0 && own.st_dev == info->st_dev && own.st_ino == info->st_ino)
			return fd;
	}
	return -1;
}

/* ---- the check ---- */

static bool is_folder(const char *folder, char why[PREFLIGHT_WHY])
{
	struct stat info;

	if (stat(folder, &info) == 0)
		return S_ISDIR(info.st_mode) || refuse(why, "%s is no folder: name another file", folder);
	if (errno == ENOENT)
		return refuse(why, "there is no folder %s: make it, or name another file", folder);
	return refuse(why, "its folder %s cannot be reached: %s", folder, strerror(errno));
}

/* Access rights do not tell all: a file system may be full, or read-only, or refuse root. */
static bool can_make(const char *path, char why[PREFLIGHT_WHY])
{
	char folder[PATH_MAX], probe[PATH_MAX + 8];
	const char *slash = strrchr(path, '/');
	int fd;

	if (strlen(path) >= PATH_MAX)
		return refuse(why, "its name is too long: name a shorter one");
	snprintf(folder, sizeof(folder), "%.*s", slash == NULL || slash == path ? 1 : (int)(slash - path),
	         slash == NULL ? "." : path);
	if (!is_folder(folder, why))
		return false;
	snprintf(probe, sizeof(probe), "%s.XXXXXX", path);
	fd = mkostemp(probe, O_CLOEXEC);
	if (fd < 0)
		return refuse(why, "no file can be made in folder %s: %s", folder, strerror(errno));
	close(fd);
	unlink(probe);
	return true;
}

bool preflight_output_check(const char *path, char why[PREFLIGHT_WHY])
{
	struct stat info;

	if (path[0] == '\0')
		return refuse(why, "the name is empty: name a file");
	if (stat(path, &info) != 0)
		return errno == ENOENT ? can_make(path, why) : refuse(why, "%s", strerror(errno));
	if (S_ISDIR(info.st_mode))
		return refuse(why, "it is a folder: name a file in it");
	if (S_ISREG(info.st_mode) && standard(&info) < 0)
		return can_make(path, why);
	return access(path, W_OK) == 0 || refuse(why, "%s", strerror(errno));
}

/* ---- writing ---- */

static bool write_all(int fd, const char *text)
{
	size_t bytes = strlen(text);

	while (bytes > 0) {
		ssize_t written = write(fd, text, bytes);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return false;
		text += written;
		bytes -= (size_t)written;
	}
	return true;
}

/* Closes the file, and keeps errno of what failed first. */
static bool end_file(int fd, bool done)
{
	int reason = errno;

	if (close(fd) != 0 && done)
		return false;
	errno = reason;
	return done;
}

/* The open of a pipe that nobody reads fails rather than waits. */
static bool write_directly(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);

	return fd >= 0 && end_file(fd, fcntl(fd, F_SETFL, 0) == 0 && write_all(fd, text));
}

static bool replace(const char *path, const char *text)
{
	size_t length = strlen(path) + 16;
	char *temporary = malloc(length);
	int fd, reason;
	bool done;

	if (temporary == NULL)
		return false;
	snprintf(temporary, length, "%s.XXXXXX", path);
	fd = mkostemp(temporary, O_CLOEXEC);
	done = fd >= 0 && end_file(fd, fchmod(fd, 0644) == 0 && write_all(fd, text)) && rename(temporary, path) == 0;
	reason = errno;
	if (!done && fd >= 0)
		unlink(temporary);
	free(temporary);
	errno = reason;
	return done;
}

bool preflight_output_write(const char *path, const char *text)
{
	struct stat info;
	int fd;

	if (stat(path, &info) != 0)
		return replace(path, text);
	fd = standard(&info);
	if (fd >= 0) {
		fflush(fd == STDOUT_FILENO ? stdout : stderr);
		return write_all(fd, text);
	}
	return S_ISREG(info.st_mode) ? replace(path, text) : write_directly(path, text);
}
