/* SPDX-License-Identifier: Apache-2.0 */
#include "state/store.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/walk.h"

enum { ASIDE_MAX = 1000 };

static const char suffix[] = ".safetensors";
static const char temporary_suffix[] = ".tmp";

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

/* A name that no other writer has, on this host or another. */
static char *temporary_path(const char *dir, int64_t step)
{
	static atomic_uint count;
	char host[HOST_NAME_MAX + 1] = "", *path;

	if (gethostname(host, sizeof(host)) != 0)
		host[0] = '\0';
	host[sizeof(host) - 1] = '\0';
	if (asprintf(&path, "%s/step-%08" PRId64 "%s.%s-%ld-%u%s", dir, step, suffix, host,
	             (long)getpid(), atomic_fetch_add(&count, 1), temporary_suffix) < 0)
		return NULL;
	return path;
}

static bool is_temporary(const char *name)
{
	size_t length = strlen(name), end = strlen(temporary_suffix);

	return strncmp(name, "step-", 5) == 0 && strstr(name, suffix) != NULL && length > end &&
	       strcmp(name + length - end, temporary_suffix) == 0;
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

static ddp_status make_directory(const char *dir)
{
	return ddp_walk_make("checkpoint directory", dir);
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

/* A failure here costs room and no data, so it is a warning. */
static void tidy(const char *dir, int64_t step, int keep, const ddp_later *later)
{
	int64_t *steps = NULL;
	int count = 0, kept = 0;

	if (list_steps(dir, suffix, &steps, &count) != DDP_OK) {
		ddp_log(DDP_LOG_WARN, "old checkpoints stay: %s", ddp_last_error());
		return;
	}
	for (int i = 0; i < count; i++) {
		if (is_among(later, steps[i]))
			set_aside(dir, steps[i]);
		else if (steps[i] <= step && ++kept > keep)
			remove_file(dir, steps[i]);
	}
	free(steps);
	/* A later step that is set aside shall not be the newest after a crash. */
	if (sync_directory(dir) != DDP_OK)
		ddp_log(DDP_LOG_WARN, "%s", ddp_last_error());
}

ddp_status ddp_store_write(const char *dir, int64_t step,
                           const ddp_safetensors_tensor *tensors, int count,
                           const ddp_safetensors_pair *metadata, int pairs, int keep,
                           const ddp_later *later)
{
	ddp_status status = make_directory(dir);
	if (status != DDP_OK)
		return status;

	char *temporary = temporary_path(dir, step);
	char *path = file_path(dir, step, suffix);
	if (temporary == NULL || path == NULL) {
		status = fail_path(dir);
		goto end;
	}
	status = write_temporary(temporary, tensors, count, metadata, pairs);
	if (status == DDP_OK && rename(temporary, path) != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot rename %s to %s", temporary, path);
	if (status != DDP_OK) {
		unlink(temporary);
		goto end;
	}
	/* The old ones go when the new one is on the disk, under its name. */
	status = sync_directory(dir);
	if (status == DDP_OK && later != NULL)
		tidy(dir, step, keep, later);
end:
	free(temporary);
	free(path);
	return status;
}

/* ---- owning ------------------------------------------------------------------- */

/*
 * A POSIX record lock of a hidden file: it works on NFS too, the kernel lets go of it
 * when the process dies, and children do not inherit it. A process lets go of all its
 * locks of a file when it closes any descriptor of it: so it has one only.
 */
struct ddp_store_lock {
	dev_t device; /* of the file */
	ino_t inode;
	int fd;
	const void *owner;
	int users;     /* calls of that owner */
	pid_t process; /* that took it: a child has the list, but no lock */
	struct ddp_store_lock *next;
};

static pthread_mutex_t locks_mutex = PTHREAD_MUTEX_INITIALIZER;
static ddp_store_lock *locks; /* of this process; under the mutex */

static char *lock_path(const char *dir)
{
	char *path;

	return asprintf(&path, "%s/.lock", dir) < 0 ? NULL : path;
}

static bool is_file_of(const ddp_store_lock *lock, const char *path)
{
	struct stat about;

	return stat(path, &about) == 0 && about.st_dev == lock->device && about.st_ino == lock->inode;
}

static ddp_status owned_by_another(const char *dir, int fd)
{
	char owner[256];
	ssize_t bytes = pread(fd, owner, sizeof(owner) - 1, 0);

	owner[bytes > 0 ? bytes : 0] = '\0';
	owner[strcspn(owner, "\n")] = '\0';
	return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s is written to by %s; give each run a "
	                "directory of its own, or end that one", dir,
	                owner[0] != '\0' ? owner : "another process");
}

static ddp_status lock_file(const char *dir, int fd, const char *who, bool *locked)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	*locked = fcntl(fd, F_SETLK, &range) == 0;
	if (!*locked && (errno == EACCES || errno == EAGAIN))
		return owned_by_another(dir, fd);
	if (!*locked)
		ddp_log(DDP_LOG_WARN, "cannot lock checkpoint directory %s (%s): see to it that only one "
		        "run writes to it", dir, ddp_reason(errno));
	/* For messages only. */
	if (*locked && (ftruncate(fd, 0) != 0 || ddp_write(fd, who, strlen(who)) < 0))
		ddp_log(DDP_LOG_DEBUG, "%s/.lock: %s", dir, ddp_reason(errno));
	return DDP_OK;
}

/* Nobody else writes here: what is left is of writers that died. */
static void remove_temporaries(const char *dir)
{
	const struct dirent *entry;
	DIR *stream = opendir(dir);

	if (stream == NULL)
		return;
	while ((entry = readdir(stream)) != NULL) {
		if (is_temporary(entry->d_name) && unlinkat(dirfd(stream), entry->d_name, 0) != 0)
			ddp_log(DDP_LOG_WARN, "cannot remove %s/%s, which a crash left: %s", dir, entry->d_name,
			        ddp_reason(errno));
	}
	closedir(stream);
}

static ddp_status open_lock(const char *dir, const char *path, const char *who, const void *owner,
                            ddp_store_lock **lock)
{
	struct stat about;
	bool locked;

	int fd;

	ddp_status status = ddp_walk_open("the lock of a checkpoint directory", path, O_RDWR | O_CREAT, &fd);
	if (status != DDP_OK)
		return status;
	ddp_store_lock *made = calloc(1, sizeof(*made));
	if (made == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for the lock of checkpoint directory %s", dir);
	else if (fstat(fd, &about) != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot stat %s", path);
	if (status == DDP_OK)
		status = lock_file(dir, fd, who, &locked);
	if (status != DDP_OK) {
		close(fd);
		free(made);
		return status;
	}
	*made = (ddp_store_lock){ .device = about.st_dev, .inode = about.st_ino, .fd = fd,
	                          .owner = owner, .users = 1, .process = getpid(), .next = locks };
	locks = made;
	if (locked)
		remove_temporaries(dir);
	*lock = made;
	return DDP_OK;
}

/* Returns this process's lock on the file, or NULL. The caller holds the mutex. */
static ddp_store_lock *held_lock(const char *path)
{
	ddp_store_lock *held = locks;

	while (held != NULL && (held->process != getpid() || !is_file_of(held, path)))
		held = held->next;
	return held;
}

static ddp_status share_lock(const char *dir, const void *owner, ddp_store_lock *held, ddp_store_lock **lock)
{
	if (held->owner != owner)
		return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s is written to by another model of this program; "
		                "give each model a directory of its own, or free that one first", dir);
	held->users++;
	*lock = held;
	return DDP_OK;
}

ddp_status ddp_store_lock_take(const char *dir, const char *who, const void *owner, ddp_store_lock **lock)
{
	ddp_status status = make_directory(dir);
	if (status != DDP_OK)
		return status;
	char *path = lock_path(dir);
	if (path == NULL)
		return fail_path(dir);

	pthread_mutex_lock(&locks_mutex);
	ddp_store_lock *held = held_lock(path);
	status = held != NULL ? share_lock(dir, owner, held, lock) : open_lock(dir, path, who, owner, lock);
	pthread_mutex_unlock(&locks_mutex);
	free(path);
	return status;
}

bool ddp_store_lock_is_here(const char *dir)
{
	char *path = lock_path(dir);

	pthread_mutex_lock(&locks_mutex);
	bool here = path != NULL && held_lock(path) != NULL;
	pthread_mutex_unlock(&locks_mutex);
	free(path);
	return here;
}

void ddp_store_lock_release(ddp_store_lock *lock)
{
	ddp_store_lock **at = &locks;

	if (lock == NULL)
		return;
	pthread_mutex_lock(&locks_mutex);
	if (--lock->users == 0) {
		while (*at != lock)
			at = &(*at)->next;
		*at = lock->next;
		close(lock->fd);
		free(lock);
	}
	pthread_mutex_unlock(&locks_mutex);
}

bool ddp_store_lock_holds(const ddp_store_lock *lock, const char *dir)
{
	char *path = lock_path(dir);
	bool holds = path == NULL || is_file_of(lock, path);

	free(path);
	return holds;
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
