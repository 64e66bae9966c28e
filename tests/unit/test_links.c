/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* These tests show what another user can do to a file of this user's from a folder to which both
   may write. They need root, to become one user and the other. */
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/walk.h"
#include "state/lock.h"
#include "state/store.h"
#include "tests/support/folder.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "watch/metrics.h"
#include "watch/trace.h"

enum { VICTIM = 54321, ATTACKER = 54322, COLLEAGUE = 54323, TEAM = 54330 };

static const char secret[] = "all that the victim has\n";

/* ---- who does what ------------------------------------------------------------------------ */

static struct outcome {
	ddp_status status;
	char message[1024];
} *outcome;

static const char *in(const char *folder, const char *name)
{
	static char paths[4][256];
	static int turn;

	turn = (turn + 1) % 4;
	snprintf(paths[turn], sizeof(paths[turn]), "%s/%s%s%s", test_folder, folder, name[0] != '\0' ? "/" : "", name);
	return paths[turn];
}

/* Calls it in a process of this user. */
static void as(uid_t user, ddp_status (*act)(const void *argument), const void *argument)
{
	const gid_t team = TEAM;
	int status;

	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		umask(022);
		if (setgroups(1, &team) != 0 || setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)
			_exit(1);
		outcome->status = act(argument);
		snprintf(outcome->message, sizeof(outcome->message), "%s",
		         outcome->status == DDP_OK ? "" : ddp_last_error());
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void is_refused(const char *link, const char *words)
{
	if (outcome->status == DDP_ERR_IO && strstr(outcome->message, link) != NULL &&
	    strstr(outcome->message, words) != NULL)
		return;
	fail_msg("status %d, \"%s\", which is not about %s, which %s", outcome->status, outcome->message, link, words);
}

static void is_done(void)
{
	if (outcome->status != DDP_OK)
		fail_msg("status %d, \"%s\"", outcome->status, outcome->message);
}

static void make(const char *path, const char *text, uid_t owner, mode_t mode)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chown(path, owner, owner), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void make_folder(const char *path, uid_t owner, gid_t group, mode_t mode)
{
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(chown(path, owner, group), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void make_link(const char *target, const char *path, uid_t owner)
{
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(lchown(path, owner, owner), 0);
}

/* home, which is the victim's, and shared, to which everybody may write. */
static int begin_with(mode_t shared)
{
	if (folder_empty(NULL) != 0 || chmod(test_folder, 0755) != 0)
		return -1;
	make_folder(in("home", ""), VICTIM, VICTIM, 0755);
	make(in("home", "file"), secret, VICTIM, 0644);
	make_folder(in("shared", ""), 0, TEAM, shared);
	return 0;
}

static int begin(void **state)
{
	return begin_with(01777);
}

static void is_unharmed(void)
{
	char text[256] = "";
	struct stat about;
	FILE *file = fopen(in("home", "file"), "r");

	assert_non_null(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	assert_string_equal(text, secret);
	assert_int_equal(stat(in("home", "file"), &about), 0);
	assert_int_equal(about.st_uid, VICTIM);
}

/* ---- what the victim writes --------------------------------------------------------------- */

static ddp_status write_metrics(const void *path)
{
	const ddp_step_stats stats = { .step = 1, .loss = 1, .weight = 1 };
	ddp_metrics *metrics;

	ddp_status status = ddp_metrics_open(path, false, &metrics);
	if (status != DDP_OK)
		return status;
	ddp_metrics_step(metrics, &stats);
	ddp_metrics_close(metrics);
	return DDP_OK;
}

static ddp_status write_trace(const void *folder)
{
	const ddp_job job = { .world_size = 1, .local_world_size = 1, .hostname = "n0" };
	ddp_trace *trace;

	ddp_status status = ddp_trace_open(folder, &job, &trace);
	if (status != DDP_OK)
		return status;
	ddp_trace_begin(trace, 1);
	ddp_trace_phase(trace, DDP_TRACE_COMPUTE, "forward", 1, 1, 2);
	ddp_trace_close(trace);
	return DDP_OK;
}

static ddp_status write_checkpoint(const void *folder)
{
	const float number = 1;
	const ddp_safetensors_tensor tensor = { "w", 1, (int64_t[]){ 1 }, &number, false };
	ddp_later later = { 0 };
	ddp_store_lock *lock;

	ddp_status status = ddp_store_prepare(folder);
	if (status == DDP_OK)
		status = ddp_store_lock_take(folder, &(ddp_store_writer){ .name = "the victim" }, &later, &lock);
	if (status != DDP_OK)
		return status;
	ddp_store_list_later(folder, 1, &later);
	status = ddp_store_write(folder, 1, &tensor, 1, NULL, 0, 3, &later, NULL);
	free(later.steps);
	ddp_store_lock_release(lock);
	return status;
}

/* ---- links -------------------------------------------------------------------------------- */

static const struct {
	ddp_status (*write)(const void *argument);
	const char *path, *link;
} kinds[] = {
	{ write_metrics, "m.jsonl", "m.jsonl" },
	{ write_trace, "", "rank-0.json" },
	{ write_checkpoint, "", ".lock" },
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

TEST_WITH(link_of_another_user_is_refused, begin, NULL)
{
	static const mode_t modes[] = { 01777, 0777, 02770 };

	for (int m = 0; m < 3; m++)
		for (int k = 0; k < KINDS; k++) {
			assert_int_equal(begin_with(modes[m]), 0);
			make_link(in("home", "file"), in("shared", kinds[k].link), ATTACKER);
			as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
			is_refused(in("shared", kinds[k].link), "is a link of another user (uid 54322)");
			is_unharmed();
		}
}

/* Root is as good a victim. */
TEST_WITH(link_is_refused_by_root_too, begin, NULL)
{
	for (int k = 0; k < KINDS; k++) {
		assert_int_equal(begin_with(01777), 0);
		make_link(in("home", "file"), in("shared", kinds[k].link), ATTACKER);
		as(0, kinds[k].write, in("shared", kinds[k].path));
		is_refused(in("shared", kinds[k].link), "is a link of another user");
		is_unharmed();
	}
}

/* These names are made anew, or renamed to; a link there is nobody's way to a file. */
TEST_WITH(names_that_are_made_anew_follow_no_link, begin, NULL)
{
	static const char *const names[] = { "step-00000001.safetensors", "step-00000002.safetensors",
		"step-00000002.safetensors.aside", "rank-0.json.1", "rank-1.json", "m.jsonl.1" };

	for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		assert_int_equal(begin_with(0777), 0);
		make_link(in("home", "file"), in("shared", names[n]), ATTACKER);
		for (int k = 0; k < KINDS; k++)
			for (int run = 0; run < 2; run++) {
				as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
				is_done();
				is_unharmed();
			}
	}
}

TEST_WITH(own_link_is_followed, begin, NULL)
{
	static const uid_t owners[] = { VICTIM, 0 };
	struct stat about;

	for (int o = 0; o < 2; o++)
		for (int k = 0; k < KINDS; k++) {
			assert_int_equal(begin_with(01777), 0);
			make_link("../home/new", in("shared", kinds[k].link), owners[o]);
			as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
			is_done();
			assert_int_equal(lstat(in("home", "new"), &about), 0);
			assert_int_equal(about.st_uid, VICTIM);
			assert_true(about.st_size > 0);
		}
}

TEST_WITH(folder_behind_another_users_link_is_refused, begin, NULL)
{
	static const mode_t modes[] = { 01777, 0777 };

	for (int m = 0; m < 2; m++)
		for (int k = 0; k < KINDS; k++) {
			char path[256];
			assert_int_equal(begin_with(modes[m]), 0);
			make_link(in("home", ""), in("shared", "run"), ATTACKER);
			snprintf(path, sizeof(path), "%s/%s", in("shared", "run"), kinds[k].path);
			as(VICTIM, kinds[k].write, path);
			is_refused(in("shared", "run"), "is a link of another user");
			assert_int_equal(folder_count(in("home", ""), ""), 3); /* ".", "..", "file" */
		}
}

/* As users and teams link their runs to faster disks. */
TEST_WITH(folder_behind_a_link_is_used, begin, NULL)
{
	static const struct { uid_t owner; mode_t mode; } links[] = { { VICTIM, 01777 }, { 0, 01777 },
		{ COLLEAGUE, 02770 } };

	for (int l = 0; l < 3; l++)
		for (int k = 0; k < KINDS; k++) {
			char path[256];
			assert_int_equal(begin_with(links[l].mode), 0);
			make_link("../home", in("shared", "run"), links[l].owner);
			snprintf(path, sizeof(path), "%s/%s", in("shared", "run"), kinds[k].path);
			as(VICTIM, kinds[k].write, path);
			is_done();
			is_unharmed();
		}
}

TEST_WITH(link_to_a_folder_that_is_missing_is_an_error, begin, NULL)
{
	make_link("../home/disk", in("shared", "run"), VICTIM);
	as(VICTIM, write_trace, in("shared", "run"));
	is_refused("shared/run", "cannot make the trace folder");
	assert_int_not_equal(access(in("home", "disk"), F_OK), 0);
}

TEST_WITH(links_that_go_round_end, begin, NULL)
{
	make_link("b", in("shared", "a"), VICTIM);
	make_link("a", in("shared", "b"), VICTIM);
	as(VICTIM, write_metrics, in("shared", "a"));
	is_refused("shared/a", "Too many levels of symbolic links");
	as(VICTIM, write_trace, in("shared", "a"));
	is_refused("shared/a", "Too many levels of symbolic links");
}

/* ---- files -------------------------------------------------------------------------------- */

TEST_WITH(hard_link_is_refused, begin, NULL)
{
	static const mode_t modes[] = { 01777, 0777, 02770 };

	for (int m = 0; m < 3; m++)
		for (int k = 0; k < KINDS; k++) {
			assert_int_equal(begin_with(modes[m]), 0);
			/* The attacker can where fs.protected_hardlinks is 0. */
			assert_int_equal(link(in("home", "file"), in("shared", kinds[k].link)), 0);
			as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
			is_refused(in("shared", kinds[k].link), "has another name elsewhere (a hard link)");
			is_unharmed();
		}
}

TEST_WITH(file_of_another_user_is_refused, begin, NULL)
{
	static const mode_t modes[] = { 01777, 0777 };
	struct stat about;

	for (int m = 0; m < 2; m++)
		for (int k = 0; k < KINDS; k++) {
			assert_int_equal(begin_with(modes[m]), 0);
			make(in("shared", kinds[k].link), "", ATTACKER, 0666);
			as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
			is_refused(in("shared", kinds[k].link), "belongs to another user (uid 54322)");
			assert_int_equal(stat(in("shared", kinds[k].link), &about), 0);
			assert_int_equal(about.st_size, 0);
			/* No trace of the look for an owner. */
			assert_int_equal(folder_count(in("shared", ""), ".ddp-owner"), 0);
		}
}

TEST_WITH(pipe_of_another_user_is_refused, begin, NULL)
{
	for (int k = 0; k < KINDS; k++) {
		assert_int_equal(begin_with(01777), 0);
		assert_int_equal(mkfifo(in("shared", kinds[k].link), 0666), 0);
		assert_int_equal(chown(in("shared", kinds[k].link), ATTACKER, ATTACKER), 0);
		assert_int_equal(chmod(in("shared", kinds[k].link), 0666), 0);
		const int reader = open(in("shared", kinds[k].link), O_RDONLY | O_NONBLOCK);
		as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
		is_refused(in("shared", kinds[k].link), "belongs to another user");
		close(reader);
	}
}

/* A colleague has begun the run, in the folder of a team. */
TEST_WITH(colleagues_go_on_with_each_others_files, begin, NULL)
{
	for (int k = 0; k < KINDS; k++) {
		assert_int_equal(begin_with(02770), 0);
		as(COLLEAGUE, kinds[k].write, in("shared", kinds[k].path));
		is_done();
		assert_int_equal(chmod(in("shared", kinds[k].link), 0666), 0);
		as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
		is_done();
	}
}

/* A snapshot by `cp -al`, where nobody else writes. */
TEST_WITH(hard_link_in_an_own_folder_is_used, begin, NULL)
{
	assert_int_equal(link(in("home", "file"), in("home", "m.jsonl")), 0);
	as(VICTIM, write_metrics, in("home", "m.jsonl"));
	is_done();
}

static ddp_status write_to_standard_output(const void *name)
{
	int fd;

	if (dup2(open(in("home", "file"), O_WRONLY | O_APPEND), 1) != 1)
		return DDP_ERR_IO;
	ddp_status status = ddp_walk_open("the file", name, O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, &fd);
	if (status == DDP_OK && write(fd, "more\n", 5) != 5)
		status = DDP_ERR_IO;
	return status;
}

TEST_WITH(standard_output_is_written_to, begin, NULL)
{
	struct stat about;

	as(VICTIM, write_to_standard_output, "/dev/stdout");
	is_done();
	/* In a container, root's links in /dev may seem to belong to another user. */
	make_folder(in("dev", ""), ATTACKER, ATTACKER, 0755);
	make_link("/proc/self/fd/1", in("dev", "stdout"), ATTACKER);
	as(VICTIM, write_to_standard_output, in("dev", "stdout"));
	is_done();
	assert_int_equal(stat(in("home", "file"), &about), 0);
	assert_int_equal(about.st_size, sizeof(secret) - 1 + 10);
	make_link("/proc/self/fd/../cwd/file", in("shared", "cheat"), ATTACKER);
	as(VICTIM, write_to_standard_output, in("shared", "cheat"));
	is_refused("cheat", "is a link of another user");
}

static const char *removed; /* by another user, as soon as the victim has opened it */

int __real_openat(int folder, const char *name, int flags, ...);
int __wrap_openat(int folder, const char *name, int flags, ...);

int __wrap_openat(int folder, const char *name, int flags, ...)
{
	const int fd = __real_openat(folder, name, flags, 0666);

	if (removed != NULL && (flags & O_PATH) == 0)
		(void)unlink(removed);
	return fd;
}

/* The folder has no sticky bit, so that anybody may remove files of others there. */
TEST_WITH(hard_link_that_is_removed_is_refused, begin, NULL)
{
	for (int k = 0; k < KINDS; k++) {
		assert_int_equal(begin_with(0777), 0);
		assert_int_equal(link(in("home", "file"), in("shared", kinds[k].link)), 0);
		removed = in("shared", kinds[k].link);
		as(VICTIM, kinds[k].write, in("shared", kinds[k].path));
		removed = NULL;
		is_unharmed();
		is_refused(in("shared", kinds[k].link), "was replaced while it was opened");
	}
}

enum { READ_AS = 60 };

/* The process reads its file, and writes something else. */
static ddp_status write_beside_a_file_that_is_read(const void *kind)
{
	const int k = *(const int *)kind;

	if (dup2(open(in("home", "file"), O_RDONLY), READ_AS) != READ_AS)
		return DDP_ERR_STATE;
	return kinds[k].write(in("shared", kinds[k].path));
}

TEST_WITH(link_to_a_descriptor_is_refused, begin, NULL)
{
	static const mode_t modes[] = { 01777, 0777, 02770 };
	char target[32];

	snprintf(target, sizeof(target), "/proc/self/fd/%d", READ_AS);
	for (int m = 0; m < 3; m++)
		for (int k = 0; k < KINDS; k++) {
			assert_int_equal(begin_with(modes[m]), 0);
			make_link(target, in("shared", kinds[k].link), ATTACKER);
			as(VICTIM, write_beside_a_file_that_is_read, &k);
			is_unharmed();
			is_refused(in("shared", kinds[k].link), "is a link of another user (uid 54322)");
		}
}

static int share(void **state)
{
	outcome = test_share(sizeof(*outcome));
	return folder_make(state);
}

int main(void)
{
	if (geteuid() != 0) {
		puts("1..0 # SKIP only root becomes one user and the other");
		return 0;
	}
	return test_run(share, folder_remove);
}
