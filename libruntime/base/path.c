#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

static ddp_status no_memory(const char *what, const char *path)
{
	return ddp_fail(DDP_ERR_NOMEM, "%s %s: no memory for its path", what, path);
}

ddp_status ddp_path_absolute(const char *what, const char *path, char **absolute)
{
	if (path[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "%s: its name is empty", what);
	if (path[0] == '/') {
		*absolute = strdup(path);
		return *absolute != NULL ? DDP_OK : no_memory(what, path);
	}
	char *here = getcwd(NULL, 0);
	if (here == NULL)
		return ddp_fail_errno(DDP_ERR_IO, errno, "%s %s: this process's folder is unknown",
		                      what, path);
	const int length = asprintf(absolute, "%s/%s", strcmp(here, "/") == 0 ? "" : here, path);
	free(here);
	return length >= 0 ? DDP_OK : no_memory(what, path);
}

/* The errno of what failed, or 0. */
static int make_one(const char *folder)
{
	struct stat found;

	if (mkdir(folder, 0777) == 0)
		return 0;
	const int error = errno;
	/* mkdir() of what is there may also say that the file system is read-only. */
	if (stat(folder, &found) == 0)
		return S_ISDIR(found.st_mode) ? 0 : ENOTDIR;
	return error == EEXIST ? ENOENT : error; /* a link to what is not there */
}

static ddp_status make_all(const char *what, const char *folder, char *path)
{
	int error = 0;

	for (char *at = path + 1; error == 0 && *at != '\0'; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		error = make_one(path);
		*at = '/';
	}
	if (error == 0)
		error = make_one(path);
	switch (error) {
	case 0:
		return DDP_OK;
	case ENOTDIR:
		return ddp_fail(DDP_ERR_IO, "%s %s: it, or a part of its path, is a file and no folder",
		                what, folder);
	}
	return ddp_fail_errno(DDP_ERR_IO, error, "cannot make %s %s", what, folder);
}

ddp_status ddp_path_make_folder(const char *what, const char *folder)
{
	if (folder[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "%s: its name is empty", what);
	char *path = strdup(folder);
	if (path == NULL)
		return no_memory(what, folder);
	ddp_status status = make_all(what, folder, path);
	free(path);
	return status;
}

ddp_status ddp_path_make_parent(const char *what, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (slash == NULL || slash == path)
		return DDP_OK;
	char *folder = strndup(path, (size_t)(slash - path));
	if (folder == NULL)
		return no_memory(what, path);
	ddp_status status = make_all(what, path, folder);
	free(folder);
	return status;
}

ddp_status ddp_path_open_to_write(const char *what, const char *path, int flags, int *fd)
{
	struct stat found;

	*fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
	if (*fd >= 0)
		return DDP_OK;
	const int error = errno;
	if (error == ENXIO && stat(path, &found) == 0 && S_ISFIFO(found.st_mode))
		return ddp_fail(DDP_ERR_IO, "cannot open %s %s: it is a pipe that nobody reads; start its "
		                "reader first", what, path);
	if (error == ENXIO && stat(path, &found) == 0 && S_ISSOCK(found.st_mode))
		return ddp_fail(DDP_ERR_IO, "cannot open %s %s: it is a socket", what, path);
	return ddp_fail_errno(DDP_ERR_IO, error, "cannot open %s %s", what, path);
}

void ddp_path_keep_standard_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		/* The lowest free number, which is fd, unless another thread was faster. */
		const int opened = open("/dev/null", O_RDWR);
		if (opened >= 0 && opened != fd)
			close(opened);
	}
}
