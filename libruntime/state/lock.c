/* SPDX-License-Identifier: Apache-2.0 */
#include "state/lock.h"

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

enum { ATTEMPTS = 20, SECONDS_OF_DAY = 86400, MARK_BYTES = 64 };

static const ddp_store_writer nobody;

/* ---- starts of a step ---------------------------------------------------------------- */

static const char no_mark[] = "start-none";

/* Whether `newer` belongs to a later start than `older`, so that `older` must not write any more. Slurm has ended all
   steps of a job before it starts the job again. */
static bool replaces(const ddp_store_writer *newer, const ddp_store_writer *older)
{
	if (newer->job_id == 0 || newer->job_id != older->job_id)
		return false;
	if (newer->requeues != older->requeues)
		return newer->requeues > older->requeues;
	return newer->step_id == older->step_id && newer->restarts > older->restarts;
}

static bool is_restarted(const ddp_store_writer *writer)
{
	return writer->job_id != 0 && (writer->requeues > 0 || writer->restarts > 0);
}

/* Writes the four numbers as "start-7.1-0-2"; "start-none" outside of jobs. */
static void write_mark(const ddp_store_writer *writer, char mark[MARK_BYTES])
{
	if (writer->job_id == 0)
		strcpy(mark, no_mark);
	else
		snprintf(mark, MARK_BYTES, "start-%" PRIu32 ".%" PRIu32 "-%" PRIu32 "-%" PRIu32, writer->job_id,
		         writer->step_id, writer->requeues, writer->restarts);
}

/* Reads these numbers from the beginning of a text, and returns how many bytes they take; 0: they are not there. */
static size_t read_mark(const char *text, ddp_store_writer *writer)
{
	ddp_store_writer read = { 0 };
	int length = 0;

	if (strncmp(text, no_mark, sizeof(no_mark) - 1) == 0) {
		*writer = read;
		return sizeof(no_mark) - 1;
	}
	if (sscanf(text, "start-%" SCNu32 ".%" SCNu32 "-%" SCNu32 "-%" SCNu32 "%n", &read.job_id, &read.step_id,
	           &read.requeues, &read.restarts, &length) != 4)
		return 0;
	*writer = read;
	return (size_t)length;
}

/* ---- names ------------------------------------------------------------------- */

static const char lock_name[] = ".lock", new_lock[] = ".lock.", mark_prefix[] = ".generation-", probe[] = ".probe-";
static const char temporary_suffix[] = ".tmp";

typedef enum kind { FOREIGN, UNFINISHED, MARK } kind;

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

static bool ends(const char *text, const char *with)
{
	const size_t length = strlen(text), end = strlen(with);

	return length > end && strcmp(text + length - end, with) == 0;
}

/* The kind of a file of the directory. `writer` is the start that the file's name has, or nobody. */
static kind kind_of(const char *name, ddp_store_writer *writer)
{
	const char *mark = strstr(name, "start-");
	const size_t bytes = mark != NULL ? read_mark(mark, writer) : 0;

	if (bytes == 0)
		*writer = nobody;
	if (begins(name, "step-") && strstr(name, ".safetensors.") != NULL && ends(name, temporary_suffix))
		return UNFINISHED;
	if (begins(name, probe))
		return UNFINISHED;
	if (bytes == 0 || mark[bytes] != '\0')
		return FOREIGN;
	if (begins(name, new_lock))
		return UNFINISHED;
	return begins(name, mark_prefix) ? MARK : FOREIGN;
}

static char *path_of(const char *dir, const char *prefix, const ddp_store_writer *writer)
{
	char mark[MARK_BYTES] = "", *path;

	if (writer != NULL)
		write_mark(writer, mark);
	return asprintf(&path, "%s/%s%s", dir, prefix, mark) < 0 ? NULL : path;
}

static ddp_status fail_path(const char *dir)
{
	return ddp_fail(DDP_ERR_NOMEM, "checkpoint directory %s: no memory for a path", dir);
}

char *ddp_store_lock_temporary(const char *dir, const char *file, const ddp_store_writer *writer)
{
	static atomic_uint count;
	char host[HOST_NAME_MAX + 1] = "", mark[MARK_BYTES], *path;

	if (gethostname(host, sizeof(host)) != 0)
		host[0] = '\0';
	host[sizeof(host) - 1] = '\0';
	write_mark(writer != NULL ? writer : &nobody, mark);
	if (asprintf(&path, "%s/%s.%s.%s-%ld-%u%s", dir, file, mark, host, (long)getpid(), atomic_fetch_add(&count, 1),
	             temporary_suffix) < 0)
		return NULL;
	return path;
}

/* ---- later starts -------------------------------------------------------------- */

static ddp_status taken_over(const char *dir, const ddp_store_writer *writer, const ddp_store_writer *by)
{
	if (by->requeues != writer->requeues)
		return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s belongs to a later start of job %u, which Slurm has "
		                "requeued: this process (%s) is of an earlier start, and writes there no more", dir, by->job_id,
		                writer->name);
	return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s belongs to restart %u of step %u.%u: this process (%s) is of "
	                "an earlier generation (restart %u), and writes there no more", dir, by->restarts, by->job_id,
	                by->step_id, writer->name, writer->restarts);
}

ddp_status ddp_store_lock_check(const char *dir, const ddp_store_writer *writer)
{
	const struct dirent *entry;
	ddp_store_writer by;
	ddp_status status = DDP_OK;

	if (writer->job_id == 0)
		return DDP_OK;
	DIR *stream = opendir(dir);
	if (stream == NULL)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot read directory %s", dir);
	while (status == DDP_OK && (errno = 0, entry = readdir(stream)) != NULL)
		if (kind_of(entry->d_name, &by) == MARK && replaces(&by, writer))
			status = taken_over(dir, writer, &by);
	if (status == DDP_OK && errno != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot list directory %s", dir);
	closedir(stream);
	return status;
}

/* Earlier starts find this mark. The first start of a job has none before it. */
static ddp_status leave_mark(const char *dir, const ddp_store_writer *writer)
{
	if (!is_restarted(writer))
		return DDP_OK;
	char *path = path_of(dir, mark_prefix, writer);
	if (path == NULL)
		return fail_path(dir);
	const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	const ddp_status status = fd < 0 ? ddp_fail_errno(DDP_ERR_IO, errno, "cannot create %s", path) : DDP_OK;
	if (fd >= 0)
		close(fd);
	free(path);
	return status;
}

/* A mark of another job serves as long as one of its processes may wake up. */
static bool is_old(int folder, const char *name, const struct stat *lock)
{
	struct stat about;

	return fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
	       lock->st_mtime - about.st_mtime > SECONDS_OF_DAY;
}

/* Whether nobody needs a file any more. `alone`: no process of another step or program writes here. */
static bool is_left_over(int folder, const char *name, const ddp_store_writer *writer, bool alone, const struct stat *lock)
{
	ddp_store_writer of;

	switch (kind_of(name, &of)) {
	case UNFINISHED:
		return replaces(writer, &of) || (alone && !replaces(&of, writer));
	case MARK:
		return replaces(writer, &of) || (alone && of.job_id != writer->job_id && is_old(folder, name, lock));
	case FOREIGN:
		break;
	}
	return false;
}

static void remove_left_overs(const char *dir, const ddp_store_writer *writer, bool alone, const struct stat *lock)
{
	const struct dirent *entry;
	DIR *stream = opendir(dir);

	if (stream == NULL)
		return;
	while ((entry = readdir(stream)) != NULL) {
		if (is_left_over(dirfd(stream), entry->d_name, writer, alone, lock) &&
		    unlinkat(dirfd(stream), entry->d_name, 0) != 0 && errno != ENOENT)
			ddp_log(DDP_LOG_WARN, "cannot remove %s/%s, which a crash left: %s", dir, entry->d_name,
			        ddp_reason(errno));
	}
	closedir(stream);
}

/* ---- the lock's file ------------------------------------------------------------- */

/* The lock is a POSIX record lock of a hidden file. It works on NFS, too. The kernel releases it when the process dies,
   and children do not inherit it. A process releases all its locks of a file when it closes any descriptor of that
   file, so a process has only one descriptor. */
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
	return path_of(dir, lock_name, NULL);
}

static bool is_at(const char *path, dev_t device, ino_t inode)
{
	struct stat about;

	return stat(path, &about) == 0 && about.st_dev == device && about.st_ino == inode;
}

static bool is_file_of(const ddp_store_lock *lock, const char *path)
{
	return is_at(path, lock->device, lock->inode);
}

static bool is_open_at(const char *path, int fd)
{
	struct stat about;

	return fstat(fd, &about) == 0 && is_at(path, about.st_dev, about.st_ino);
}

/* The file's first line is the owner's name, its second one is the mark of the owner's start. */
static bool read_owner(int fd, ddp_store_writer *owner)
{
	char text[sizeof(owner->name) + MARK_BYTES];
	const ssize_t bytes = pread(fd, text, sizeof(text) - 1, 0);

	text[bytes > 0 ? bytes : 0] = '\0';
	const size_t length = strcspn(text, "\n");
	const bool marked = text[length] == '\n' && read_mark(text + length + 1, owner) > 0;
	if (!marked)
		*owner = nobody;
	text[length] = '\0';
	snprintf(owner->name, sizeof(owner->name), "%.*s", (int)sizeof(owner->name) - 1, length > 0 ? text : "another process");
	return marked;
}

/* Other nodes may have to know at once who the owner is. */
static void write_owner(const char *dir, int fd, const ddp_store_writer *writer)
{
	char mark[MARK_BYTES], text[sizeof(writer->name) + MARK_BYTES];

	write_mark(writer, mark);
	const int bytes = snprintf(text, sizeof(text), "%s\n%s\n", writer->name, mark);
	if (ftruncate(fd, 0) != 0 || ddp_write(fd, text, (size_t)bytes) < 0 || fdatasync(fd) != 0)
		ddp_log(DDP_LOG_DEBUG, "%s/.lock: %s", dir, ddp_reason(errno));
}

typedef enum outcome { LOCKED, WITHOUT_LOCKS, HELD } outcome;

static outcome try_lock(int fd)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (fcntl(fd, F_SETLK, &range) == 0)
		return LOCKED;
	return errno == EACCES || errno == EAGAIN ? HELD : WITHOUT_LOCKS;
}

static ddp_status owned_by(const char *dir, const ddp_store_writer *owner)
{
	return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s is written to by %s; give each run a "
	                "directory of its own, or end that one", dir, owner->name);
}

/* Puts a new file in the place of the one that an earlier start still has locked, so that this start's lock keeps
   other jobs out. *fd is -1: another process did the same at this moment. */
static ddp_status replace_file(const char *dir, const char *path, const ddp_store_writer *writer, int *fd)
{
	char *made = path_of(dir, new_lock, writer);
	int opened = -1;

	*fd = -1;
	if (made == NULL)
		return fail_path(dir);
	ddp_status status = ddp_walk_open("the lock of a checkpoint directory", made, O_RDWR | O_CREAT, &opened);
	if (status == DDP_OK && try_lock(opened) != HELD) {
		write_owner(dir, opened, writer);
		if (rename(made, path) == 0)
			*fd = opened;
		else if (errno != ENOENT)
			status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot rename %s to %s", made, path);
	}
	if (opened >= 0 && *fd < 0)
		close(opened);
	free(made);
	return status;
}

/* Opens and locks the file once. *fd is -1: it changed meanwhile. */
static ddp_status lock_file(const char *dir, const char *path, const ddp_store_writer *writer, int *fd, bool *locked)
{
	ddp_store_writer owner;
	int opened;

	*fd = -1;
	ddp_status status = ddp_walk_open("the lock of a checkpoint directory", path, O_RDWR | O_CREAT, &opened);
	if (status != DDP_OK)
		return status;
	const outcome tried = try_lock(opened);
	const int error = errno;
	*locked = tried != WITHOUT_LOCKS;
	if (tried != HELD && is_open_at(path, opened)) {
		if (tried == WITHOUT_LOCKS)
			ddp_log(DDP_LOG_WARN, "cannot lock checkpoint directory %s (%s): see to it that only one "
			        "run writes to it", dir, ddp_reason(error));
		else
			write_owner(dir, opened, writer);
		*fd = opened;
		return DDP_OK;
	}
	if (tried == HELD && is_open_at(path, opened)) {
		const bool earlier = read_owner(opened, &owner) && replaces(writer, &owner);
		status = earlier ? replace_file(dir, path, writer, fd) : owned_by(dir, &owner);
		if (earlier && *fd >= 0)
			ddp_log(DDP_LOG_INFO, "checkpoint directory %s is taken over from %s", dir, owner.name);
	}
	close(opened);
	return status;
}

static ddp_status lock_directory(const char *dir, const char *path, const ddp_store_writer *writer, int *fd, bool *locked)
{
	ddp_status status = ddp_store_lock_check(dir, writer);

	if (status == DDP_OK)
		status = leave_mark(dir, writer);
	*fd = -1;
	for (int i = 0; i < ATTEMPTS && status == DDP_OK && *fd < 0; i++)
		status = lock_file(dir, path, writer, fd, locked);
	if (status == DDP_OK && *fd < 0)
		return ddp_fail(DDP_ERR_STATE, "checkpoint directory %s: its lock changes again and again; give each run a "
		                "directory of its own", dir);
	/* A later start may have begun meanwhile. */
	if (status == DDP_OK)
		status = ddp_store_lock_check(dir, writer);
	if (status != DDP_OK && *fd >= 0)
		close(*fd);
	return status;
}

static ddp_status open_lock(const char *dir, const char *path, const ddp_store_writer *writer, const void *owner,
                            ddp_store_lock **lock)
{
	struct stat about;
	bool locked;
	int fd;

	ddp_status status = lock_directory(dir, path, writer, &fd, &locked);
	if (status != DDP_OK)
		return status;
	ddp_store_lock *made = calloc(1, sizeof(*made));
	if (made == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for the lock of checkpoint directory %s", dir);
	else if (fstat(fd, &about) != 0)
		status = ddp_fail_errno(DDP_ERR_IO, errno, "cannot stat %s", path);
	if (status != DDP_OK) {
		close(fd);
		free(made);
		return status;
	}
	*made = (ddp_store_lock){ .device = about.st_dev, .inode = about.st_ino, .fd = fd,
	                          .owner = owner, .users = 1, .process = getpid(), .next = locks };
	locks = made;
	remove_left_overs(dir, writer, locked, &about);
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

ddp_status ddp_store_lock_take(const char *dir, const ddp_store_writer *writer, const void *owner, ddp_store_lock **lock)
{
	ddp_status status = ddp_walk_make("checkpoint directory", dir);
	if (status != DDP_OK)
		return status;
	char *path = lock_path(dir);
	if (path == NULL)
		return fail_path(dir);

	pthread_mutex_lock(&locks_mutex);
	ddp_store_lock *held = held_lock(path);
	status = held != NULL ? share_lock(dir, owner, held, lock) : open_lock(dir, path, writer, owner, lock);
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
