/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "spank/base/worker.h"
#include "spank/witness/pump.h"

/* ---- record= ---- */

enum { FOLDER_MODE = 0700, FILE_MODE = 0600, LOCK_LOOKS = 100, LOCK_LOOK_MS = 10 };

struct folder_wish record_folder_wish(const char *dir, bool make)
{
	return (struct folder_wish){ .option = "record", .dir = dir, .make = make, .mode = FOLDER_MODE };
}

static bool refuse(const struct folder_wish *wish, const char *what, const char *name, struct error *error)
{
	const int reason = errno;

	return error_set(error, "%s=%s: cannot %s %s: %s; %s, on all nodes", wish->option, wish->dir, what, name,
	                 strerror(reason), wish->make ? "name a folder that exists and that you may write to"
	                                              : "the administrator makes the site's folder, with mode 1777");
}

static int open_dir(const struct folder_wish *wish, struct error *error)
{
	int folder = open(wish->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (folder < 0 && wish->make && errno == ENOENT && (mkdir(wish->dir, wish->mode) == 0 || errno == EEXIST))
		folder = open(wish->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder < 0)
		refuse(wish, wish->make && errno == ENOENT ? "make" : "open", "the folder", error);
	return folder;
}

int record_folder_open(const struct folder_wish *wish, uint32_t job, uint32_t step, struct error *error)
{
	const int parent = open_dir(wish, error);
	struct stat info;
	char name[32];
	int folder;

	if (parent < 0)
		return -1;
	snprintf(name, sizeof(name), "%u.%u", job, step);
	/* Another node's task may make it, too. */
	if (mkdirat(parent, name, wish->mode) != 0 && errno != EEXIST) {
		refuse(wish, "make its folder", name, error);
		close(parent);
		return -1;
	}
	folder = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (folder < 0) {
		refuse(wish, "open its folder", name, error);
	} else if (fstat(folder, &info) != 0 || info.st_uid != geteuid()) {
		error_set(error, "%s=%s: the folder %s in it belongs to another user (uid %u); name another folder", wish->option,
		          wish->dir, name, (unsigned)info.st_uid);
		close(folder);
		folder = -1;
	}
	close(parent);
	return folder;
}

bool record_folder_make(const struct folder_wish *wish, uint32_t job, uint32_t step, struct error *error)
{
	const int folder = record_folder_open(wish, job, step, error);
	bool fine;

	if (folder < 0)
		return false;
	fine = faccessat(folder, ".", W_OK | X_OK, AT_EACCESS) == 0 || refuse(wish, "write to", "its folder", error);
	close(folder);
	return fine;
}

/* Somebody else may write to it at the moment, as ddp-status does when it is asked to. A file server may know no
   locks. */
static void lock(int file)
{
	for (int look = 0; look < LOCK_LOOKS && flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; look++)
		pause_ms(LOCK_LOOK_MS);
}

bool record_folder_add(int folder, uint32_t rank, const char *line, size_t bytes, struct error *error)
{
	struct stat info;
	char name[32];
	bool fine;
	int file;

	snprintf(name, sizeof(name), "rank-%u.jsonl", rank);
	file = openat(folder, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, FILE_MODE);
	if (file < 0)
		return error_set(error, "cannot open %s: %s", name, strerror(errno));
	if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
		close(file);
		return error_set(error, "%s is no plain file of user %u: remove it", name, (unsigned)geteuid());
	}
	lock(file);
	if (fstat(file, &info) == 0 && info.st_size > RECORD_FILE_MAX) {
		close(file);
		return error_set(error, "%s has its largest size", name);
	}
	fine = text_write(file, line, bytes) == bytes;
	if (!fine) {
		error_set(error, "cannot write %s: %s", name, strerror(errno));
		/* No half of a line is to stay, if that can be helped. */
		if (ftruncate(file, info.st_size) != 0)
			errno = 0;
	}
	close(file);
	return fine;
}

/* ---- log= ---- */

enum { LOG_FILE_MODE = 0666, LOG_FOLDER_MODE = 0777 }; /* less the user's umask */

static bool refuse_log(const char *what, struct error *error)
{
	return error_set(error, "log=: cannot make %s for the task's output: %s", what, strerror(errno));
}

static int open_file(const char *dir, const struct identity *identity, struct pump_stream *stream, struct error *error)
{
	const struct folder_wish wish = { .option = "log", .dir = dir, .make = true, .mode = LOG_FOLDER_MODE };
	const int folder = record_folder_open(&wish, identity->job_id, identity->step_id, error);
	struct stat info;
	char name[64];
	int file;

	if (folder < 0)
		return -1;
	snprintf(name, sizeof(name), "rank-%u.start-%u.log", identity->rank, identity->restart_count + 1);
	snprintf(stream->path, sizeof(stream->path), "%s/%u.%u/%s", dir, identity->job_id, identity->step_id, name);
	file = openat(folder, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
	              LOG_FILE_MODE);
	close(folder);
	if (file < 0) {
		error_set(error, "log=: cannot open %s: %s; name a folder that you may write to, on all nodes", stream->path,
		          strerror(errno));
	} else if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
		error_set(error, "log=: %s is no plain file: remove it", stream->path);
		close(file);
		file = -1;
	}
	return file;
}

/* srun -u gives a task a terminal, so that the program's library writes each line at once. It gets another one. */
static bool make_terminal(int ends[2])
{
	struct termios raw;
	char name[64];

	ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (ends[0] < 0)
		return false;
	if (unlockpt(ends[0]) != 0 || ptsname_r(ends[0], name, sizeof(name)) != 0 ||
	    (ends[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
		int reason = errno;
		close(ends[0]);
		errno = reason;
		return false;
	}
	if (tcgetattr(ends[1], &raw) == 0) {
		cfmakeraw(&raw);
		tcsetattr(ends[1], TCSANOW, &raw);
	}
	return true;
}

/* Lines of a task with its own file of SLURM's, as of --output=%t, need no label. */
static bool is_mixed(int fd, const struct identity *identity)
{
	struct stat info;

	return identity->world_size > 1 && fstat(fd, &info) == 0 && !S_ISREG(info.st_mode);
}

static bool redirect(int control, int fd, int file, int say, struct pump_stream *stream, struct error *error)
{
	int ends[2], out;
	bool fine;

	if (!(isatty(fd) ? make_terminal(ends) : pipe2(ends, O_CLOEXEC) == 0))
		return refuse_log("a pipe", error);
	out = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	fine = out >= 0 || refuse_log("a descriptor", error);
	if (fine) {
		const int fds[PUMP_FDS] = { [PUMP_IN] = ends[0], [PUMP_OUT] = out, [PUMP_FILE] = file, [PUMP_SAY] = say };
		fine = pump_add(control, stream, fds, error) && (dup2(ends[1], fd) == fd || refuse_log("a descriptor", error));
		close(out);
	}
	close(ends[0]);
	close(ends[1]);
	return fine;
}

static bool redirect_both(int control, int file, struct pump_stream *stream, const struct identity *identity,
                          struct error *error)
{
	const int say = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	const char *node = identity->node_name;
	bool fine = say >= 0 || refuse_log("a descriptor", error);

	snprintf(stream->who, sizeof(stream->who), "rank %u on %.64s", identity->rank, node);
	for (int fd = STDOUT_FILENO; fine && fd <= STDERR_FILENO; fd++) {
		stream->label[0] = '\0';
		if (is_mixed(fd, identity))
			snprintf(stream->label, sizeof(stream->label), "[rank %u %.64s] ", identity->rank, node);
		fine = redirect(control, fd, file, say, stream, error);
	}
	if (say >= 0)
		close(say);
	return fine;
}

bool redirect_output(int control, const char *dir, const struct identity *identity, struct error *error)
{
	struct pump_stream stream = { .label = "" };
	int file;
	bool fine;

	/* srun --pty: a program that asks for its terminal's size, or a debugger, needs the one that it has. */
	if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
		return true;
	file = open_file(dir, identity, &stream, error);
	if (file < 0)
		return false;
	fine = redirect_both(control, file, &stream, identity, error);
	close(file);
	return fine;
}
