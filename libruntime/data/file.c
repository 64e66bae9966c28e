/* SPDX-License-Identifier: Apache-2.0 */
/* Read with pread() rather than mapped: a file that shrinks or a file system that fails is
   then an error of one read, not a SIGBUS. */
#include "data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"

/* Says what is wrong with an open file, or DDP_OK. */
static ddp_status examine(ddp_file *file, const char *path)
{
	struct stat about;

	if (fstat(file->fd, &about) != 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "%s %s: cannot stat", file->kind, path);
	if (!S_ISREG(about.st_mode))
		return ddp_fail(DDP_ERR_INVALID, "%s %s is %s, not a regular file", file->kind, path,
		                S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe");
	file->bytes = about.st_size;
	file->path = strdup(path);
	return file->path != NULL ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "%s %s: no memory for its name", file->kind, path);
}

ddp_status ddp_file_open(const char *kind, const char *path, ddp_file *file)
{
	*file = (ddp_file){ .kind = kind };
	/* A FIFO would block open() for ever, hence O_NONBLOCK before we know. */
	file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file->fd < 0 && errno == ENXIO)
		return ddp_fail(DDP_ERR_INVALID, "%s %s is a socket, or a device that is not there, not a regular file",
		                kind, path);
	if (file->fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open %s %s%s", kind, path,
		                      errno == EMFILE ? ", as a dataset keeps all its files open (raise ulimit -n)" : "");
	ddp_status status = examine(file, path);
	if (status != DDP_OK)
		ddp_file_close(file);
	return status;
}

void ddp_file_close(ddp_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	free(file->path);
	*file = (ddp_file){ .fd = -1 };
}

ddp_status ddp_file_read(const ddp_file *file, void *buffer, size_t bytes, int64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = pread(file->fd, (char *)buffer + done, bytes - done, offset + (int64_t)done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "%s %s: cannot read at byte %" PRId64,
			                      file->kind, file->path, offset + (int64_t)done);
		if (got == 0)
			return ddp_fail(DDP_ERR_FORMAT, "%s %s: ends at byte %" PRId64
			                "; was it cut short while in use?", file->kind, file->path,
			                offset + (int64_t)done);
		done += (size_t)got;
	}
	return DDP_OK;
}

/* Few enough to be read of each of many files, by each rank. */
enum { BLOCKS = 4, BLOCK_BYTES = 4096 };

ddp_status ddp_file_digest(const ddp_file *file, uint64_t *digest)
{
	const int64_t block = file->bytes < BLOCK_BYTES ? file->bytes : BLOCK_BYTES;
	struct {
		uint64_t before;
		int64_t bytes;
		char blocks[BLOCKS][BLOCK_BYTES];
	} seen = { .before = *digest, .bytes = file->bytes };

	for (int i = 0; i < BLOCKS; i++) {
		ddp_status status = ddp_file_read(file, seen.blocks[i], (size_t)block,
		                                  (file->bytes - block) * i / (BLOCKS - 1));
		if (status != DDP_OK)
			return status;
	}
	*digest = ddp_hash(&seen, sizeof(seen));
	return DDP_OK;
}
