#include "state/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

static const char suffix[] = ".safetensors";
static const char temporary_suffix[] = ".safetensors.tmp";

/* ---- names ------------------------------------------------------------------- */

static char *file_path(const char *dir, int64_t step, const char *ending)
{
	char *path;

	if (asprintf(&path, "%s/step-%08" PRId64 "%s", dir, step, ending) < 0)
		return NULL;
	return path;
}

/* The step in "step-NNNNNNNN" + ending, or -1 if the name is another. */
static int64_t step_of(const char *name, const char *ending)
{
	if (strncmp(name, "step-", 5) != 0)
		return -1;
	size_t digits = strspn(name + 5, "0123456789");
	if (digits < 8 || digits > 18 || strcmp(name + 5 + digits, ending) != 0)
		return -1;
	return strtoll(name + 5, NULL, 10);
}

static int descending(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x < y) - (x > y);
}

/* The steps of all files with this ending, newest first; malloc'd. */
static ddp_status list_steps(const char *dir, const char *ending, int64_t **steps, int *count)
{
	int64_t *found = NULL;
	int used = 0, room = 0;
	const struct dirent *entry;

	DIR *stream = opendir(dir);
	if (stream == NULL)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot read directory %s", dir);
	while (errno = 0, (entry = readdir(stream)) != NULL) {
		int64_t step = step_of(entry->d_name, ending);
		if (step < 0)
			continue;
		if (used == room) {
			room = room > 0 ? 2 * room : 16;
			int64_t *grown = realloc(found, (size_t)room * sizeof(*grown));
			if (grown == NULL)
				goto failed;
			found = grown;
		}
		found[used++] = step;
	}
	if (errno != 0)
		goto failed;
	closedir(stream);
	if (used > 0)
		qsort(found, (size_t)used, sizeof(*found), descending);
	*steps = found;
	*count = used;
	return DDP_OK;

failed:
	ddp_fail_errno(DDP_ERR_IO, errno, "cannot list directory %s", dir);
	closedir(stream);
	free(found);
	return DDP_ERR_IO;
}

/* ---- writing ------------------------------------------------------------------ */

/* Makes `dir` and its parents. */
static ddp_status make_directory(const char *dir)
{
	struct stat about;
	char *path = strdup(dir);

	if (path == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "%s: out of memory", dir);
	for (char *at = path + 1; *at != '\0'; at++) {
		if (*at != '/')
			continue;
		*at = '\0';
		mkdir(path, 0777); /* a failure shows in the last one */
		*at = '/';
	}
	int failed = mkdir(path, 0777) != 0 ? errno : 0;
	free(path);
	if (failed != 0 && failed != EEXIST)
		return ddp_fail_errno(DDP_ERR_IO, failed, "cannot make checkpoint directory %s", dir);
	if (stat(dir, &about) == 0 && !S_ISDIR(about.st_mode))
		return ddp_fail(DDP_ERR_IO, "checkpoint directory %s is a file", dir);
	return DDP_OK;
}

static ddp_status sync_directory(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open directory %s", dir);
	/* EINVAL: a file system that cannot sync directories has no need to. */
	int failed = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
	close(fd);
	if (failed != 0)
		return ddp_fail_errno(DDP_ERR_IO, failed, "cannot sync directory %s", dir);
	return DDP_OK;
}

ddp_status ddp_store_prepare(const char *dir)
{
	char *probe;

	ddp_status status = make_directory(dir);
	if (status != DDP_OK)
		return status;
	if (asprintf(&probe, "%s/.probe-XXXXXX", dir) < 0)
		return ddp_fail(DDP_ERR_NOMEM, "%s: out of memory", dir);
	int fd = mkostemp(probe, O_CLOEXEC);
	if (fd < 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot create files in checkpoint directory %s",
		                        dir);
	else {
		unlink(probe);
		close(fd);
	}
	free(probe);
	return status;
}

static ddp_status write_temporary(const char *path, const ddp_safetensors_tensor *tensors,
                                  int count, const ddp_safetensors_pair *metadata, int pairs)
{
	unlink(path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot create %s", path);
	ddp_status status = ddp_safetensors_write(path, fd, tensors, count, metadata, pairs);
	if (status == DDP_OK && fsync(fd) != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot sync %s", path);
	if (close(fd) != 0 && status == DDP_OK)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot close %s", path);
	return status;
}

static void remove_file(const char *dir, int64_t step, const char *ending)
{
	char *path = file_path(dir, step, ending);

	if (path != NULL && unlink(path) != 0 && errno != ENOENT)
		ddp_log(DDP_LOG_WARN, "cannot remove old checkpoint %s: %s", path, strerror(errno));
	free(path);
}

/* What fails here costs room, not data: a warning. */
static void prune(const char *dir, int64_t step, int keep)
{
	int64_t *steps = NULL;
	int count = 0, kept = 0;

	if (list_steps(dir, suffix, &steps, &count) != DDP_OK) {
		ddp_log(DDP_LOG_WARN, "old checkpoints stay: %s", ddp_last_error());
		return;
	}
	if (count > 0 && steps[0] > step)
		ddp_log(DDP_LOG_WARN, "%s holds checkpoints of later steps, up to %" PRId64
		        ": of another run? A resume would take those", dir, steps[0]);
	for (int i = 0; i < count; i++)
		if (steps[i] <= step && ++kept > keep)
			remove_file(dir, steps[i], suffix);
	free(steps);

	if (list_steps(dir, temporary_suffix, &steps, &count) != DDP_OK)
		return;
	for (int i = 0; i < count; i++)
		remove_file(dir, steps[i], temporary_suffix);
	free(steps);
}

ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep)
{
	ddp_status status = make_directory(dir);
	if (status != DDP_OK)
		return status;

	char *temporary = file_path(dir, step, temporary_suffix);
	char *path = file_path(dir, step, suffix);
	if (temporary == NULL || path == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "%s: out of memory", dir);
		goto end;
	}
	status = write_temporary(temporary, tensors, count, metadata, pairs);
	if (status == DDP_OK && rename(temporary, path) != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot rename %s to %s", temporary, path);
	if (status != DDP_OK) {
		unlink(temporary);
		goto end;
	}
	status = sync_directory(dir);
	if (status == DDP_OK)
		prune(dir, step, keep);
end:
	free(temporary);
	free(path);
	return status;
}

/* ---- reading ------------------------------------------------------------------ */

static ddp_status open_verified(const char *path, ddp_safetensors *file)
{
	ddp_status status = ddp_safetensors_open(path, file);

	if (status != DDP_OK)
		return status;
	status = ddp_safetensors_verify(file);
	if (status != DDP_OK)
		ddp_safetensors_close(file);
	return status;
}

static ddp_status open_newest(const char *dir, ddp_safetensors *file, bool *found)
{
	int64_t *steps;
	int count;
	ddp_status status = list_steps(dir, suffix, &steps, &count);

	if (status != DDP_OK)
		return status;
	*found = false;
	for (int i = 0; i < count && !*found; i++) {
		char *path = file_path(dir, steps[i], suffix);
		status = path != NULL ? open_verified(path, file)
		                      : ddp_fail(DDP_ERR_NOMEM, "%s: out of memory", dir);
		*found = status == DDP_OK;
		if (!*found)
			ddp_log(DDP_LOG_WARN, "checkpoint passed over: %s", ddp_last_error());
		free(path);
	}
	free(steps);
	if (count > 0 && !*found)
		return ddp_fail_context(status, "%s: none of its %d checkpoints can be used; the oldest",
		                        dir, count);
	return DDP_OK;
}

ddp_status ddp_store_open(const char *path, ddp_safetensors *file, bool *found)
{
	struct stat about;

	*file = (ddp_safetensors){ .fd = -1 };
	*found = false;
	if (stat(path, &about) != 0) {
		const char *dot = strrchr(path, '.');
		if (errno != ENOENT || (dot != NULL && strcmp(dot, suffix) == 0))
			return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open checkpoint %s", path);
		ddp_log(DDP_LOG_INFO, "no checkpoint directory %s yet", path);
		return DDP_OK;
	}
	if (S_ISDIR(about.st_mode))
		return open_newest(path, file, found);
	ddp_status status = open_verified(path, file);
	*found = status == DDP_OK;
	return status;
}
