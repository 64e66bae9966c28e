/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
