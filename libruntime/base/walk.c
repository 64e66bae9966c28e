/* SPDX-License-Identifier: Apache-2.0 */
#include "base/walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"

enum { LINKS_MAX = 40 };

struct walk {
	const char *what, *path; /* for messages */
	int folder;              /* that the walk is in */
	char at[PATH_MAX];       /* its name, for messages */
	char name[NAME_MAX + 1]; /* of the component that comes next */
	char rest[PATH_MAX];     /* of the path behind it */
	int links;
	bool private;            /* the file is nobody else's */
};

/* ---- whose it is -------------------------------------------------------------------------- */

static struct stat about_folder(const struct walk *walk)
{
	struct stat about = { .st_mode = S_IWOTH };

	(void)fstatat(walk->folder, "", &about, AT_EMPTY_PATH);
	return about;
}

/* Others than its owner may write to the folder. */
static bool is_shared(const struct stat *folder)
{
	return (folder->st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

/* Whose a new file is here: a file server, or a user namespace, may give it to another number
   than this process has. */
static uid_t owner_of_new(const struct walk *walk)
{
	struct stat about = { .st_uid = geteuid() };
	char name[64];

	snprintf(name, sizeof(name), ".ddp-owner-%ld-%llx", (long)getpid(), (unsigned long long)ddp_now_ns());
	const int fd = openat(walk->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return about.st_uid;
	(void)fstat(fd, &about);
	unlinkat(walk->folder, name, 0);
	close(fd);
	return about.st_uid;
}

static bool is_own(const struct walk *walk, uid_t owner)
{
	return owner == geteuid() || owner == 0 || owner == owner_of_new(walk);
}

/* Fails with DDP_ERR_IO. */
static ddp_status refuse(const struct walk *walk, const char *why)
{
	return ddp_fail(DDP_ERR_IO, "cannot write to %s %s: %s/%s %s; remove it, or use a folder to which "
	                "nobody else may write", walk->what, walk->path, walk->at, walk->name, why);
}

static ddp_status refuse_owner(const struct walk *walk, const char *of, uid_t owner)
{
	char why[64];

	snprintf(why, sizeof(why), "%s another user (uid %u)", of, (unsigned)owner);
	return refuse(walk, why);
}

/* The target is one of this process's open files, as that of /dev/stdout is. */
static bool is_descriptor(const char *target)
{
	static const char descriptors[] = "/proc/self/fd/";
	const size_t before = sizeof(descriptors) - 1;

	return strncmp(target, descriptors, before) == 0 && target[before] != '\0' &&
	       target[before + strspn(target + before, "0123456789")] == '\0';
}

/* In a container, root's links in /dev may seem to belong to another user. Where others may write, a link
   to a descriptor of this process would have it write to a file that it only reads.
   `last`: the link stands in the file's own place, and not in that of a folder on the way there. */
static ddp_status check_link(const struct walk *walk, const struct stat *link, const char *target, bool last)
{
	const struct stat folder = about_folder(walk);

	if (last ? is_descriptor(target) && !is_shared(&folder)
	         : (folder.st_mode & S_IWOTH) == 0 || link->st_uid == folder.st_uid)
		return DDP_OK;
	if (is_own(walk, link->st_uid))
		return DDP_OK;
	return refuse_owner(walk, "is a link of", link->st_uid);
}

static ddp_status check_file(const struct walk *walk, const struct stat *file)
{
	const struct stat folder = about_folder(walk);
	const bool device = S_ISCHR(file->st_mode) || S_ISBLK(file->st_mode);

	if (device || !is_shared(&folder))
		return DDP_OK;
	if ((folder.st_mode & S_IWOTH) != 0 && file->st_uid != folder.st_uid && !is_own(walk, file->st_uid))
		return refuse_owner(walk, "belongs to", file->st_uid);
	if (S_ISREG(file->st_mode) && file->st_nlink > 1)
		return refuse(walk, "has another name elsewhere (a hard link)");
	return DDP_OK;
}

static ddp_status check_private(const struct walk *walk, const struct stat *file)
{
	if (!S_ISREG(file->st_mode))
		return refuse(walk, "is no file");
	if (file->st_uid != geteuid() && file->st_uid != owner_of_new(walk))
		return refuse_owner(walk, "belongs to", file->st_uid);
	if ((file->st_mode & (S_IRWXG | S_IRWXO)) != 0)
		return refuse(walk, "can be read or written by others (chmod 600)");
	if (file->st_nlink > 1)
		return refuse(walk, "has another name elsewhere (a hard link)");
	return DDP_OK;
}

/* ---- the way ------------------------------------------------------------------------------ */

static ddp_status fail(const struct walk *walk, int error)
{
	if (error == ENOTDIR)
		return ddp_fail(DDP_ERR_IO, "%s %s: it, or a part of its path, is a file and no folder", walk->what,
		                walk->path);
	return ddp_fail_errno(DDP_ERR_IO, error, "cannot open %s %s", walk->what, walk->path);
}

static void leave(struct walk *walk)
{
	if (walk->folder >= 0)
		close(walk->folder);
	walk->folder = -1;
}

/* Takes the folder over. */
static void enter(struct walk *walk, int folder, const char *name)
{
	const size_t used = strlen(walk->at);

	leave(walk);
	walk->folder = folder;
	snprintf(walk->at + used, sizeof(walk->at) - used, "/%s", name);
}

/* Goes on with this path, and then with what is left. */
static ddp_status set_path(struct walk *walk, const char *path)
{
	char rest[PATH_MAX];

	strcpy(rest, walk->rest);
	if (snprintf(walk->rest, sizeof(walk->rest), "%s%s%s", path, rest[0] != '\0' ? "/" : "", rest) >=
	    (int)sizeof(walk->rest))
		return fail(walk, ENAMETOOLONG);
	if (path[0] != '/')
		return DDP_OK;
	leave(walk);
	walk->at[0] = '\0';
	walk->folder = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return walk->folder >= 0 ? DDP_OK : fail(walk, errno);
}

static ddp_status begin(struct walk *walk, const char *what, const char *path)
{
	walk->what = what;
	walk->path = path;
	walk->rest[0] = walk->at[0] = '\0';
	walk->links = 0;
	walk->private = false;
	walk->folder = -1;
	if (path[0] == '\0')
		return ddp_fail(DDP_ERR_INVALID, "%s: its name is empty", what);
	if (path[0] != '/') {
		walk->folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
		walk->at[0] = '.';
		walk->at[1] = '\0';
		if (walk->folder < 0)
			return fail(walk, errno);
	}
	return set_path(walk, path);
}

/* Takes the next component off the path; false: there is none. */
static bool next(struct walk *walk, ddp_status *status)
{
	const char *from = walk->rest + strspn(walk->rest, "/");
	const size_t length = strcspn(from, "/");

	if (length > NAME_MAX) {
		*status = fail(walk, ENAMETOOLONG);
		return false;
	}
	memcpy(walk->name, from, length);
	walk->name[length] = '\0';
	memmove(walk->rest, from + length, strlen(from + length) + 1);
	return length > 0;
}

/* Puts the link's path in the place of its name. *kernels: it is one of /proc, which are the
   kernel's, and whose path may lead elsewhere: open() has to follow it. */
static ddp_status follow(struct walk *walk, bool last, bool *kernels)
{
	char target[PATH_MAX];
	struct statfs system;
	struct stat link;
	ddp_status status;

	*kernels = false;
	if (++walk->links > LINKS_MAX)
		return fail(walk, ELOOP);
	const int fd = openat(walk->folder, walk->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return fail(walk, errno);
	const ssize_t length = fstat(fd, &link) == 0 && S_ISLNK(link.st_mode) && fstatfs(fd, &system) == 0
	                       ? readlinkat(fd, "", target, sizeof(target)) : -1;
	close(fd);
	if (length <= 0 || length == (ssize_t)sizeof(target))
		return fail(walk, length > 0 ? ENAMETOOLONG : ENOTDIR);
	target[length] = '\0';
	*kernels = system.f_type == PROC_SUPER_MAGIC;
	if (*kernels)
		return DDP_OK;
	status = check_link(walk, &link, target, last);
	return status == DDP_OK ? set_path(walk, target) : status;
}

static ddp_status cannot_make(const struct walk *walk, int error)
{
	return ddp_fail_errno(DDP_ERR_IO, error, "cannot make %s %s", walk->what, walk->path);
}

/* Enters the folder of the present name. With O_DIRECTORY, automounters mount what is missing. */
static ddp_status go_down(struct walk *walk, bool make)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	struct stat found;
	bool kernels;

	int fd = openat(walk->folder, walk->name, flags | O_NOFOLLOW);
	if (fd < 0 && errno == ENOENT && make && (mkdirat(walk->folder, walk->name, 0777) == 0 || errno == EEXIST))
		fd = openat(walk->folder, walk->name, flags | O_NOFOLLOW);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
		/* Whoever made a link to a folder that is missing expects it to be mounted, say. */
		if (make && fstatat(walk->folder, walk->name, &found, 0) != 0)
			return cannot_make(walk, errno);
		ddp_status status = follow(walk, false, &kernels);
		if (status != DDP_OK || !kernels)
			return status;
		fd = openat(walk->folder, walk->name, flags);
	}
	if (fd < 0)
		return make ? cannot_make(walk, errno) : fail(walk, errno);
	enter(walk, fd, walk->name);
	return DDP_OK;
}

static ddp_status make(const char *what, const char *path, bool parents_only)
{
	struct walk walk;
	ddp_status status = begin(&walk, what, path);

	while (status == DDP_OK && next(&walk, &status) && !(parents_only && walk.rest[0] == '\0'))
		status = go_down(&walk, true);
	leave(&walk);
	return status;
}

ddp_status ddp_walk_make(const char *what, const char *path)
{
	return make(what, path, false);
}

ddp_status ddp_walk_make_parents(const char *what, const char *path)
{
	return make(what, path, true);
}

/* ---- the file ----------------------------------------------------------------------------- */

static ddp_status fail_to_open(const struct walk *walk, int error)
{
	struct stat found;
	const bool known = fstatat(walk->folder, walk->name, &found, AT_SYMLINK_NOFOLLOW) == 0;

	if (error == ENXIO && known && S_ISFIFO(found.st_mode))
		return ddp_fail(DDP_ERR_IO, "cannot open %s %s: it is a pipe that nobody reads; start its reader first",
		                walk->what, walk->path);
	if (error == ENXIO && known && S_ISSOCK(found.st_mode))
		return ddp_fail(DDP_ERR_IO, "cannot open %s %s: it is a socket", walk->what, walk->path);
	/* The kernel may refuse what is refused here (fs.protected_regular, fs.protected_fifos). */
	if (error == EACCES && known && !S_ISDIR(found.st_mode)) {
		ddp_status status = check_file(walk, &found);
		if (status != DDP_OK)
			return status;
	}
	return ddp_fail_errno(DDP_ERR_IO, error, "cannot open %s %s", walk->what, walk->path);
}

/* Truncates no file before it was looked at. The look is at the name: another user may remove a hard
   link after it was opened, and the file behind it then has one name, elsewhere. */
static ddp_status take_file(const struct walk *walk, int fd, bool truncate)
{
	struct stat file, named;

	if (fstat(fd, &file) != 0)
		return fail(walk, errno);
	if (walk->private)
		return check_private(walk, &file);
	const struct stat folder = about_folder(walk);
	const bool found = fstatat(walk->folder, walk->name, &named, AT_SYMLINK_NOFOLLOW) == 0;
	if (is_shared(&folder) && !(found && named.st_dev == file.st_dev && named.st_ino == file.st_ino))
		return refuse(walk, "was replaced while it was opened");
	ddp_status status = check_file(walk, found ? &named : &file);
	if (status != DDP_OK || !truncate || !S_ISREG(file.st_mode))
		return status;
	const int error = ddp_set_file_size(fd, 0);
	return error == 0 ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, error, "cannot truncate %s %s", walk->what, walk->path);
}

static bool is_link(const struct walk *walk)
{
	struct stat found;

	return fstatat(walk->folder, walk->name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
}

/* *fd stays -1 where the name was a link, behind which the walk goes on. */
static ddp_status open_here(struct walk *walk, int flags, int *fd)
{
	const int wanted = (flags & ~O_TRUNC) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	const mode_t mode = walk->private ? 0600 : 0666;
	bool kernels = false;

	*fd = openat(walk->folder, walk->name, wanted | O_NOFOLLOW, mode);
	int error = *fd < 0 ? errno : 0;
	if (walk->private && error != 0 && is_link(walk))
		return refuse(walk, "is a link");
	/* In a sticky folder O_CREAT refuses a link before O_NOFOLLOW does. */
	if (error == ELOOP || (error == EACCES && is_link(walk))) {
		ddp_status status = follow(walk, true, &kernels);
		if (status != DDP_OK || !kernels)
			return status;
		*fd = openat(walk->folder, walk->name, wanted, mode);
		error = *fd < 0 ? errno : 0;
	}
	if (*fd < 0)
		return fail_to_open(walk, error);
	/* A file behind a link of the kernel's is one that this process has open. */
	ddp_status status = kernels ? DDP_OK : take_file(walk, *fd, (flags & O_TRUNC) != 0);
	if (status != DDP_OK) {
		close(*fd);
		*fd = -1;
	}
	return status;
}

static ddp_status open_file(const char *what, const char *path, int flags, bool private, int *fd)
{
	struct walk walk;
	ddp_status status = begin(&walk, what, path);

	walk.private = private;
	*fd = -1;
	while (status == DDP_OK && *fd < 0 && next(&walk, &status)) {
		const bool last = walk.rest[0] == '\0';
		status = last ? open_here(&walk, flags, fd) : go_down(&walk, false);
	}
	if (status == DDP_OK && *fd < 0)
		status = fail(&walk, EISDIR);
	leave(&walk);
	return status;
}

ddp_status ddp_walk_open(const char *what, const char *path, int flags, int *fd)
{
	return open_file(what, path, flags, false, fd);
}

ddp_status ddp_walk_open_private(const char *what, const char *path, int flags, int *fd)
{
	return open_file(what, path, flags, true, fd);
}
