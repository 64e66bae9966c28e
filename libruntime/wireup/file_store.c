/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/file_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/signals.h"
#include "base/walk.h"

enum { KEY_MAX = 256, VALUE_MAX = 1 << 30, RANKS_MAX = 1 << 30 };

/* Bytes far behind any content are what the locks are on. */
static const off_t content_lock = (off_t)1 << 40, rank_locks = ((off_t)1 << 40) + 1;
static const uint64_t same_rank_ns = 10000000000u, leave_ns = 2000000000u;
static const uint64_t first_pause_ns = 1000000u, longest_pause_ns = 50000000u;
static const uint32_t record_magic = 0x73706464u; /* "ddps" */

/* Then the key and the value. */
struct record {
	uint32_t magic, key_bytes, value_bytes;
	uint32_t crc; /* of both */
};

struct ddp_file_store {
	char *path;
	const ddp_job *job;
	uint64_t deadline_ns;
	int fd;
	char *content; /* the records that were read, and */
	size_t used, room;
};

static ddp_status fail(const ddp_file_store *f, int error, const char *what)
{
	if (error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL)
		return ddp_fail_errno(DDP_ERR_IO, error, "rank %d on %s cannot lock the file %s: use a file system with locks, "
		                      "the same on all nodes", f->job->rank, f->job->hostname, f->path);
	return ddp_fail_errno(DDP_ERR_IO, error, "rank %d on %s cannot %s the file %s", f->job->rank, f->job->hostname, what,
	                      f->path);
}

static void pause_for(uint64_t *pause_ns)
{
	const struct timespec pause = { .tv_nsec = (long)*pause_ns };

	nanosleep(&pause, NULL);
	*pause_ns = *pause_ns * 2 < longest_pause_ns ? *pause_ns * 2 : longest_pause_ns;
}

/* ---- locks -------------------------------------------------------------------------------- */

/* The lock belongs to the open file, so that threads and contexts of one process keep each other out, too.
   Returns 0, EAGAIN if another one has the lock, or an error. */
static int try_lock(int fd, off_t at, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };

	while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
		if (errno == EACCES)
			return EAGAIN;
		if (errno != EINTR)
			return errno;
	}
	return 0;
}

static int lock_until(int fd, off_t at, short type, uint64_t deadline_ns)
{
	uint64_t pause_ns = first_pause_ns;
	int error;

	while ((error = try_lock(fd, at, type)) == EAGAIN && ddp_now_ns() < deadline_ns)
		pause_for(&pause_ns);
	return error;
}

static ddp_status lock_content(const ddp_file_store *f, short type, uint64_t deadline_ns)
{
	const int error = lock_until(f->fd, content_lock, type, deadline_ns);

	if (error == EAGAIN)
		return ddp_fail(DDP_ERR_TIMEOUT, "rank %d on %s: another process held the lock of the file %s until the deadline: "
		                "is a rank stopped?", f->job->rank, f->job->hostname, f->path);
	return error == 0 ? DDP_OK : fail(f, error, "lock");
}

static void unlock_content(const ddp_file_store *f)
{
	(void)try_lock(f->fd, content_lock, F_UNLCK);
}

/* Whether any other rank is there. */
static bool has_company(const ddp_file_store *f)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank_locks, .l_len = RANKS_MAX };

	return fcntl(f->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* The path still leads to the file that is open. */
static bool is_in_place(const ddp_file_store *f)
{
	struct stat open, named;

	return fstat(f->fd, &open) == 0 && open.st_nlink > 0 && lstat(f->path, &named) == 0 && open.st_dev == named.st_dev &&
	       open.st_ino == named.st_ino;
}

/* ---- records ------------------------------------------------------------------------------ */

static ddp_status make_room(ddp_file_store *f, size_t bytes)
{
	const size_t room = f->room * 2 > f->used + bytes ? f->room * 2 : f->used + bytes;

	if (f->room - f->used >= bytes)
		return DDP_OK;
	char *more = realloc(f->content, room);
	if (more == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of the file %s", room, f->path);
	f->content = more;
	f->room = room;
	return DDP_OK;
}

/* The record at `at` of so many bytes; 0: there is no whole one. */
static size_t record_at(const char *bytes, size_t count, struct record *record)
{
	if (count < sizeof(*record))
		return 0;
	memcpy(record, bytes, sizeof(*record));
	if (record->magic != record_magic || record->key_bytes > KEY_MAX || record->value_bytes > VALUE_MAX)
		return 0;
	const size_t size = (size_t)record->key_bytes + record->value_bytes;
	if (count - sizeof(*record) < size || ddp_crc32c(0, bytes + sizeof(*record), size) != record->crc)
		return 0;
	return sizeof(*record) + size;
}

/* Reads the records that were added; what a writer that was killed has left behind them is none. */
static ddp_status read_on(ddp_file_store *f)
{
	struct record record;
	struct stat about;
	size_t got = 0, size;

	if (fstat(f->fd, &about) != 0)
		return fail(f, errno, "read");
	if (about.st_nlink == 0)
		return ddp_fail(DDP_ERR_IO, "rank %d on %s: the file %s was removed while ranks met in it", f->job->rank,
		                f->job->hostname, f->path);
	const size_t left = (size_t)about.st_size > f->used ? (size_t)about.st_size - f->used : 0;
	ddp_status status = make_room(f, left);
	while (status == DDP_OK && got < left) {
		const ssize_t count = pread(f->fd, f->content + f->used + got, left - got, (off_t)(f->used + got));
		if (count < 0 && errno != EINTR)
			status = fail(f, errno, "read");
		if (count == 0)
			break;
		got += count > 0 ? (size_t)count : 0;
	}
	/* An empty file has no content to point into. */
	while (status == DDP_OK && got > 0 && (size = record_at(f->content + f->used, got, &record)) > 0) {
		f->used += size;
		got -= size;
	}
	return status;
}

static bool find(const ddp_file_store *f, const char *key, const char **value, size_t *bytes)
{
	const size_t key_bytes = strlen(key);
	struct record record;
	bool found = false;

	for (size_t at = 0, size; at < f->used; at += size) {
		size = record_at(f->content + at, f->used - at, &record);
		if (size == 0)
			break;
		if (record.key_bytes != key_bytes || memcmp(f->content + at + sizeof(record), key, key_bytes) != 0)
			continue;
		*value = f->content + at + sizeof(record) + key_bytes;
		*bytes = record.value_bytes;
		found = true;
	}
	return found;
}

static ddp_status write_at(const ddp_file_store *f, const char *bytes, size_t count, size_t at)
{
	if (lseek(f->fd, (off_t)at, SEEK_SET) < 0)
		return fail(f, errno, "write to");
	for (size_t done = 0; done < count;) {
		const ssize_t written = ddp_write(f->fd, bytes + done, count - done);
		if (written < 0)
			return fail(f, errno, "write to");
		done += (size_t)written;
	}
	return fdatasync(f->fd) == 0 ? DDP_OK : fail(f, errno, "write to");
}

static ddp_status append(ddp_file_store *f, const char *key, const void *value, size_t bytes)
{
	struct record record = { .magic = record_magic, .key_bytes = (uint32_t)strlen(key), .value_bytes = (uint32_t)bytes };
	const size_t size = sizeof(record) + record.key_bytes + bytes;
	ddp_status status = read_on(f);

	if (status == DDP_OK)
		status = make_room(f, size);
	if (status != DDP_OK)
		return status;
	char *at = f->content + f->used;
	memcpy(at + sizeof(record), key, record.key_bytes);
	if (bytes > 0)
		memcpy(at + sizeof(record) + record.key_bytes, value, bytes);
	record.crc = ddp_crc32c(0, at + sizeof(record), size - sizeof(record));
	memcpy(at, &record, sizeof(record));
	const int error = ddp_set_file_size(f->fd, (off_t)f->used);
	status = error == 0 ? write_at(f, at, size, f->used) : fail(f, error, "write to");
	if (status == DDP_OK)
		f->used += size;
	return status;
}

/* ---- the store's calls -------------------------------------------------------------------- */

static ddp_status file_set(void *user, const char *key, const void *value, size_t bytes)
{
	ddp_file_store *f = user;

	if (strlen(key) > KEY_MAX || bytes > VALUE_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a key of %zu and a value of %zu bytes; %d and %d are possible", strlen(key), bytes,
		                KEY_MAX, VALUE_MAX);
	ddp_status status = lock_content(f, F_WRLCK, f->deadline_ns);
	if (status != DDP_OK)
		return status;
	status = append(f, key, value, bytes);
	unlock_content(f);
	return status;
}

/* On NFS the lock makes other nodes' records visible. */
static ddp_status look(ddp_file_store *f, uint64_t deadline_ns)
{
	ddp_status status = lock_content(f, F_RDLCK, deadline_ns);

	if (status != DDP_OK)
		return status;
	status = read_on(f);
	unlock_content(f);
	return status;
}

static ddp_status file_wait(void *user, const char *key, int timeout_ms)
{
	ddp_file_store *f = user;
	const uint64_t until_ns = ddp_ms_from_now(timeout_ms);
	uint64_t pause_ns = first_pause_ns;
	const char *value;
	size_t bytes;

	for (;;) {
		const ddp_status status = look(f, f->deadline_ns > until_ns ? f->deadline_ns : until_ns);
		if (status != DDP_OK)
			return status;
		if (find(f, key, &value, &bytes))
			return DDP_OK;
		if (ddp_now_ns() >= until_ns)
			return ddp_fail(DDP_ERR_TIMEOUT, "\"%s\" did not come", key);
		pause_for(&pause_ns);
	}
}

static ddp_status file_get(void *user, const char *key, void *to, size_t room, size_t *bytes)
{
	ddp_file_store *f = user;
	const char *value;

	if (!find(f, key, &value, bytes))
		return ddp_fail(DDP_ERR_STATE, "\"%s\" is not there", key);
	if (*bytes <= room)
		memcpy(to, value, *bytes);
	return DDP_OK;
}

ddp_store ddp_file_store_calls(ddp_file_store *store)
{
	return (ddp_store){ .user = store, .set = file_set, .get = file_get, .wait = file_wait };
}

/* ---- coming and leaving ------------------------------------------------------------------- */

static ddp_status open_path(ddp_file_store *f)
{
	ddp_status status = ddp_walk_open_private("the file in which ranks meet,", f->path, O_RDWR | O_CREAT, &f->fd);

	return status == DDP_OK ? DDP_OK : ddp_fail_context(status, "rank %d on %s", f->job->rank, f->job->hostname);
}

/* A wrong path must not cost the user a file. A record that was not written to its end is none of theirs. */
static ddp_status check_content(const ddp_file_store *f)
{
	struct record head = { 0 };
	const ssize_t got = pread(f->fd, &head, sizeof(head), 0);

	if (got < 0)
		return fail(f, errno, "read");
	if (got == 0 || (head.magic == record_magic && head.key_bytes <= KEY_MAX && head.value_bytes <= VALUE_MAX))
		return DDP_OK;
	return ddp_fail(DDP_ERR_IO, "rank %d on %s: ranks cannot meet in the file %s, which holds something else: give another "
	                "path, or remove the file", f->job->rank, f->job->hostname, f->path);
}

static ddp_status empty(const ddp_file_store *f)
{
	const int error = ddp_set_file_size(f->fd, 0);

	return error == 0 ? DDP_OK : fail(f, error, "write to");
}

static void close_file(ddp_file_store *f)
{
	close(f->fd);
	f->fd = -1;
}

/* *again: the last rank of a run has just removed the file. */
static ddp_status come(ddp_file_store *f, bool *again)
{
	ddp_status status = open_path(f);

	*again = false;
	if (status == DDP_OK)
		status = lock_content(f, F_WRLCK, f->deadline_ns);
	if (status != DDP_OK)
		return status;
	*again = !is_in_place(f);
	if (*again)
		return DDP_OK;
	const bool first = !has_company(f);
	status = first ? check_content(f) : DDP_OK;
	const bool ours = status == DDP_OK;
	const int error = ours ? try_lock(f->fd, rank_locks + f->job->rank, F_WRLCK) : 0;
	*again = error == EAGAIN;
	if (error != 0 && !*again)
		status = fail(f, error, "lock");
	else if (ours && first && !*again)
		status = empty(f);
	unlock_content(f);
	if (!ours)
		close_file(f);
	return status;
}

/* A child that the program has forked meanwhile has the file open, too, so that closing it unlocks nothing. */
static void leave(ddp_file_store *f)
{
	if (f->fd < 0)
		return;
	if (lock_until(f->fd, content_lock, F_WRLCK, ddp_now_ns() + leave_ns) == 0 && !has_company(f) && is_in_place(f))
		unlink(f->path);
	(void)try_lock(f->fd, rank_locks + f->job->rank, F_UNLCK);
	unlock_content(f);
	close_file(f);
}

static ddp_status same_rank(const ddp_file_store *f)
{
	return ddp_fail(DDP_ERR_JOB, "rank %d on %s: another process, which is still there, is rank %d in the file %s: give "
	                "each run a file of its own, and each process a rank of its own", f->job->rank, f->job->hostname,
	                f->job->rank, f->path);
}

static ddp_status meet(ddp_file_store *f)
{
	const uint64_t start_ns = ddp_now_ns();
	uint64_t pause_ns = first_pause_ns;
	bool again;

	for (;;) {
		ddp_status status = come(f, &again);
		if (status != DDP_OK || !again)
			return status;
		close_file(f);
		if (ddp_now_ns() >= f->deadline_ns || ddp_now_ns() - start_ns > same_rank_ns)
			return same_rank(f);
		pause_for(&pause_ns);
	}
}

ddp_status ddp_file_store_open(const char *path, const ddp_job *job, uint64_t deadline_ns, ddp_file_store **store)
{
	ddp_file_store *f = calloc(1, sizeof(*f));

	if (f == NULL || (f->path = strdup(path)) == NULL) {
		free(f);
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the file %s", path);
	}
	f->job = job;
	f->deadline_ns = deadline_ns;
	f->fd = -1;
	const ddp_status status = meet(f);
	if (status == DDP_OK)
		*store = f;
	else
		ddp_file_store_close(f);
	return status;
}

void ddp_file_store_close(ddp_file_store *store)
{
	if (store == NULL)
		return;
	leave(store);
	if (store->content != NULL)
		explicit_bzero(store->content, store->room);
	free(store->content);
	free(store->path);
	free(store);
}
