/* SPDX-License-Identifier: Apache-2.0 */
#include "state/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "base/log.h"
#include "base/walk.h"
#include "state/lock.h"

enum { ASIDE_MAX = 1000 };

static const char suffix[] = ".safetensors";

/* ---- names ------------------------------------------------------------------- */

static ddp_status fail_path(const char *dir)
{
	return ddp_fail(DDP_ERR_NOMEM, "checkpoint directory %s: no memory for a path", dir);
}

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

	ddp_status status = ddp_walk_make("checkpoint directory", dir);
	if (status != DDP_OK)
		return status;
	if (asprintf(&probe, "%s/.probe-XXXXXX", dir) < 0)
		return fail_path(dir);
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
	unlink(path); /* of a process that had this number before, and died */
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

static void remove_file(const char *dir, int64_t step)
{
	char *path = file_path(dir, step, suffix);

	if (path != NULL && unlink(path) != 0 && errno != ENOENT)
		ddp_log(DDP_LOG_WARN, "cannot remove old checkpoint %s: %s", path, ddp_reason(errno));
	free(path);
}

/* A name for a file that is set aside which none has yet; NULL: no memory. */
static char *aside_path(const char *path)
{
	char *aside = NULL;
	struct stat found;

	for (int i = 1; i < ASIDE_MAX; i++) {
		free(aside);
		if ((i == 1 ? asprintf(&aside, "%s.aside", path)
		            : asprintf(&aside, "%s.aside-%d", path, i)) < 0)
			return NULL;
		if (lstat(aside, &found) != 0)
			return aside;
	}
	return aside;
}

static void set_aside(const char *dir, int64_t step)
{
	char *path = file_path(dir, step, suffix);
	char *aside = path != NULL ? aside_path(path) : NULL;

	if (aside == NULL)
		ddp_log(DDP_LOG_WARN, "%s: no memory to set step %" PRId64 " aside", dir, step);
	else if (rename(path, aside) != 0)
		ddp_log(DDP_LOG_WARN, "cannot rename %s, which a resume would take: %s", path,
		        ddp_reason(errno));
	else
		ddp_log(DDP_LOG_WARN, "%s is of a later step than the one that was saved: training has "
		        "left it, by going back or by beginning anew; it is set aside as %s", path, aside);
	free(path);
	free(aside);
}

void ddp_store_list_later(const char *dir, int64_t step, ddp_later *later)
{
	int count;

	*later = (ddp_later){ 0 };
	if (list_steps(dir, suffix, &later->steps, &count) != DDP_OK) {
		ddp_log(DDP_LOG_WARN, "files of later steps stay: %s", ddp_last_error());
		return;
	}
	while (later->count < count && later->steps[later->count] > step)
		later->count++;
}

static bool is_among(const ddp_later *later, int64_t step)
{
	for (int i = 0; i < later->count; i++) {
		if (later->steps[i] == step)
			return true;
	}
	return false;
}

/* Whether the directory is the writer's now: its process may have been stopped since it looked last. */
static bool is_still_ours(const char *dir, const ddp_store_writer *writer)
{
	if (writer == NULL || ddp_store_lock_check(dir, writer) == DDP_OK)
		return true;
	ddp_log(DDP_LOG_WARN, "old checkpoints stay: %s", ddp_last_error());
	return false;
}

/* A failure here costs room and no data, so it is a warning. */
static void tidy(const char *dir, int64_t step, int keep, const ddp_later *later, const ddp_store_writer *writer)
{
	int64_t *steps = NULL;
	int count = 0, kept = 0;

	if (list_steps(dir, suffix, &steps, &count) != DDP_OK) {
		ddp_log(DDP_LOG_WARN, "old checkpoints stay: %s", ddp_last_error());
		return;
	}
	for (int i = 0; i < count; i++) {
		const bool aside = is_among(later, steps[i]);
		if (!aside && (steps[i] > step || ++kept <= keep))
			continue;
		if (!is_still_ours(dir, writer))
			break;
		if (aside)
			set_aside(dir, steps[i]);
		else
			remove_file(dir, steps[i]);
	}
	free(steps);
	/* A later step that is set aside shall not be the newest after a crash. */
	if (sync_directory(dir) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
}

/* Whoever takes the directory over removes the temporary file, after it has left its mark. */
static ddp_status rename_into_place(const char *dir, const char *temporary, const char *path, const ddp_store_writer *writer)
{
	ddp_status status = writer != NULL ? ddp_store_lock_check(dir, writer) : DDP_OK;

	if (status != DDP_OK || rename(temporary, path) == 0)
		return status;
	const int error = errno;
	if (error == ENOENT && writer != NULL)
		status = ddp_store_lock_check(dir, writer);
	return status != DDP_OK ? status : ddp_fail_errno(DDP_ERR_IO, error, "cannot rename %s to %s", temporary, path);
}

ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep,
                           const ddp_later *later, const ddp_store_writer *writer)
{
	ddp_status status = ddp_walk_make("checkpoint directory", dir);
	if (status != DDP_OK)
		return status;

	char *path = file_path(dir, step, suffix);
	char *temporary = path != NULL ? ddp_store_lock_temporary(dir, path + strlen(dir) + 1, writer) : NULL;
	if (temporary == NULL) {
		status = fail_path(dir);
		goto end;
	}
	status = write_temporary(temporary, tensors, count, metadata, pairs);
	if (status == DDP_OK)
		status = rename_into_place(dir, temporary, path, writer);
	if (status != DDP_OK) {
		unlink(temporary);
		goto end;
	}
	/* The old ones go when the new one is on the disk, under its name. */
	status = sync_directory(dir);
	if (status == DDP_OK && later != NULL)
		tidy(dir, step, keep, later, writer);
end:
	free(temporary);
	free(path);
	return status;
}

/* ---- reading ------------------------------------------------------------------ */

static ddp_status open_verified(const char *path, ddp_status (*check)(const ddp_safetensors *file),
                                ddp_safetensors *file)
{
	ddp_status status = ddp_safetensors_open(path, file);

	if (status != DDP_OK)
		return status;
	status = ddp_safetensors_verify(file);
	if (status == DDP_OK && check != NULL)
		status = check(file);
	if (status != DDP_OK)
		ddp_safetensors_close(file);
	return status;
}

/* Why files newer than the one that is taken were not. */
struct passed {
	char **reasons; /* those for which there was memory */
	int count;
};

static void pass_over(struct passed *passed)
{
	char *reason = strdup(ddp_last_error());

	if (reason != NULL)
		passed->reasons[passed->count++] = reason;
}

/* `taken` NULL: none was. */
static void tell_passed(struct passed *passed, const char *taken)
{
	for (int i = 0; i < passed->count; i++) {
		if (taken != NULL)
			ddp_log(DDP_LOG_WARN, "checkpoint passed over: %s; %s is loaded in its place", passed->reasons[i], taken);
		else
			ddp_log(DDP_LOG_WARN, "checkpoint passed over: %s", passed->reasons[i]);
		free(passed->reasons[i]);
	}
	free(passed->reasons);
}

/* Whether the file of a step is taken; otherwise *status says whether an older one may be. */
static bool take_step(const char *dir, int64_t step, ddp_status (*check)(const ddp_safetensors *file),
                      struct passed *passed, ddp_safetensors *file, ddp_status *status)
{
	char *path = file_path(dir, step, suffix);

	*status = path != NULL ? open_verified(path, check, file) : fail_path(dir);
	const bool gone = *status != DDP_OK && path != NULL && access(path, F_OK) != 0 && errno == ENOENT;
	free(path);
	if (gone || *status == DDP_ERR_INVALID) /* or no regular file */
		*status = DDP_ERR_FORMAT;
	if (*status == DDP_ERR_FORMAT)
		pass_over(passed);
	return *status == DDP_OK;
}

static ddp_status open_newest(const char *dir, ddp_status (*check)(const ddp_safetensors *file),
                              ddp_safetensors *file, bool *found)
{
	struct passed passed = { 0 };
	int64_t *steps;
	int count;
	ddp_status status = list_steps(dir, suffix, &steps, &count);

	if (status != DDP_OK)
		return status;
	passed.reasons = calloc((size_t)count + 1, sizeof(*passed.reasons));
	if (passed.reasons == NULL) {
		free(steps);
		return fail_path(dir);
	}
	/* With another error the file may be good, and the disk, or this process, not: then an
	   older one would cost steps without need. */
	status = DDP_ERR_FORMAT;
	for (int i = 0; i < count && !*found && status == DDP_ERR_FORMAT; i++)
		*found = take_step(dir, steps[i], check, &passed, file, &status);
	tell_passed(&passed, *found ? file->path : NULL);
	free(steps);
	if (count > 0 && !*found && status != DDP_ERR_FORMAT)
		return ddp_fail_context(status, "%s: its newest checkpoint cannot be read, and may be good",
		                        dir);
	if (count > 0 && !*found)
		return ddp_fail_context(status, "%s: none of its %d checkpoints can be used; the oldest",
		                        dir, count);
	return DDP_OK;
}

ddp_status ddp_store_open(const char *path, ddp_status (*check)(const ddp_safetensors *file),
                          ddp_safetensors *file, bool *found)
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
		return open_newest(path, check, file, found);
	ddp_status status = open_verified(path, check, file);
	*found = status == DDP_OK;
	return status;
}
