/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* The flight recorder: watch/recorder writes rings, spank/witness reads them, and writes lines to files. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/base/child.h"
#include "spank/node/flight.h"
#include "spank/witness/dump.h"
#include "spank/witness/folder.h"
#include "spank/witness/rings.h"
#include "tests/support/test.h"
#include "watch/page.h"
#include "watch/recorder.h"

enum { TASKS = 3, TASK = 1, SLOT = 2 };

static int file;

static void write_place(uint32_t version)
{
	const struct ddp_record_place place = { .magic = DDP_RECORD_MAGIC, .version = version, .tasks = TASKS };

	assert_int_equal(pwrite(file, &place, sizeof(place), (off_t)DDP_RECORD_PLACE_OFFSET(TASKS)), sizeof(place));
}

static int make_file(void **state)
{
	file = memfd_create("ddp_progress", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, (off_t)DDP_RECORD_FILE_BYTES(TASKS)) != 0)
		return -1;
	write_place(DDP_RECORD_VERSION);
	return 0;
}

static int drop_file(void **state)
{
	return close(file);
}

static const struct rings_source *source(void)
{
	static struct rings_source found;

	found = (struct rings_source){ .file = file, .bytes = DDP_RECORD_FILE_BYTES(TASKS), .tasks = TASKS };
	return &found;
}

static const struct ddp_record_entry sum = { .group = 77, .count = 100, .begin_ns = 5, .peer = -1, .ranks = 4,
	.kind = DDP_ALL_REDUCE, .type = DDP_F32, .op = DDP_SUM, .flags = DDP_RECORD_OF_ALL };

static ddp_recorded begin(const ddp_recorder *recorder, uint64_t number)
{
	struct ddp_record_entry what = sum;

	what.number = number;
	return ddp_record_begin(recorder, &what);
}

/* The entries of the ring, by number: how often each was found. */
static int count_entries(uint64_t lowest, uint64_t highest, struct ddp_record_entry *last)
{
	struct rings rings;
	int count = 0;

	assert_true(rings_copy(&rings, source(), TASK));
	for (int i = 0; i < rings.count; i++) {
		assert_int_equal(rings.ring[i].slot, SLOT);
		for (uint32_t k = 0; k < DDP_RECORD_ENTRIES; k++) {
			struct ddp_record_entry entry;
			if (!rings_entry(&rings.ring[i], k, &entry))
				continue;
			assert_in_range(entry.number, lowest, highest);
			count++;
			if (last != NULL)
				*last = entry;
		}
	}
	rings_free(&rings);
	return count;
}

/* ---- writing --------------------------------------------------------------------------- */

TEST_WITH(ring_keeps_the_last_operations, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	struct ddp_record_entry entry;

	assert_non_null(recorder.head);
	assert_int_equal(count_entries(0, 0, NULL), 0);
	ddp_record_end(begin(&recorder, 1), DDP_OK, 9);
	assert_int_equal(count_entries(1, 1, &entry), 1);
	assert_int_equal(entry.sequence, 1);
	assert_int_equal(entry.end_ns, 9);
	assert_int_equal(entry.group, 77);
	assert_int_equal(entry.kind, DDP_ALL_REDUCE);
	for (uint64_t number = 2; number <= 1000; number++)
		ddp_record_end(begin(&recorder, number), DDP_OK, 9 + number);
	assert_int_equal(count_entries(1000 - DDP_RECORD_ENTRIES + 1, 1000, NULL), DDP_RECORD_ENTRIES);
	ddp_recorder_unmap(&recorder);
	assert_null(recorder.head);
}

/* What hangs is not to be lost beneath what goes on. */
TEST_WITH(operation_that_lasts_keeps_its_place, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	const ddp_recorded hangs = begin(&recorder, 1);
	struct rings rings;
	bool found = false;

	for (uint64_t number = 2; number <= 2000; number++)
		ddp_record_end(begin(&recorder, number), DDP_OK, 9);
	assert_true(rings_copy(&rings, source(), TASK));
	for (uint32_t k = 0; k < DDP_RECORD_ENTRIES; k++) {
		struct ddp_record_entry entry;
		found |= rings_entry(&rings.ring[0], k, &entry) && entry.number == 1 && entry.end_ns == 0;
	}
	assert_true(found);
	rings_free(&rings);
	/* Its end is written to its place. */
	ddp_record_end(hangs, DDP_ERR_TIMEOUT, 99);
	assert_int_equal(hangs.entry->state, DDP_ERR_TIMEOUT);
	assert_int_equal(hangs.entry->end_ns, 99);
	ddp_recorder_unmap(&recorder);
}

TEST_WITH(late_end_is_not_written_to_another_operation, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	const ddp_recorded first = begin(&recorder, 1);
	ddp_recorded last = first;

	/* Those that end make room for the next ones. */
	ddp_record_end(first, DDP_OK, 8);
	for (uint64_t number = 2; number <= DDP_RECORD_ENTRIES + 1; number++)
		last = begin(&recorder, number);
	assert_ptr_equal(last.entry, first.entry);
	ddp_record_end(first, DDP_OK, 99);
	assert_int_equal(first.entry->end_ns, 0);
	ddp_record_end(last, DDP_OK, 99);
	assert_int_equal(first.entry->end_ns, 99);
	ddp_recorder_unmap(&recorder);
}

TEST_WITH(next_context_begins_with_an_empty_ring, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);

	for (uint64_t number = 1; number <= 300; number++)
		begin(&recorder, number);
	ddp_recorder_unmap(&recorder);
	recorder = ddp_recorder_map(file, TASK, SLOT);
	assert_int_equal(count_entries(0, 0, NULL), 0);
	begin(&recorder, 7);
	assert_int_equal(count_entries(7, 7, NULL), 1);
	ddp_recorder_unmap(&recorder);
}

TEST_WITH(files_without_rings_record_nothing, make_file, drop_file)
{
	ddp_recorder recorder;

	assert_null(ddp_recorder_map(-1, 0, 0).head);
	assert_null(ddp_recorder_map(file, TASKS, 0).head);
	assert_null(ddp_recorder_map(file, -1, 0).head);
	assert_null(ddp_recorder_map(file, 0, DDP_PROGRESS_SLOTS).head);
	write_place(DDP_RECORD_VERSION + 1);
	assert_null(ddp_recorder_map(file, 0, 0).head);
	/* That of an older plugin. */
	assert_return_code(ftruncate(file, TASKS * DDP_PROGRESS_BYTES), errno);
	recorder = ddp_recorder_map(file, 0, 0);
	assert_null(recorder.head);
	assert_null(begin(&recorder, 1).entry);
	ddp_record_end(begin(NULL, 1), DDP_OK, 1);
}

/* A context that has no slot must not write the ring of one that has. */
TEST_WITH(private_page_has_no_ring, make_file, drop_file)
{
	const ddp_job job = { .rank = 1, .world_size = 3, .local_rank = TASK, .local_world_size = 3,
		              .identity_source = DDP_SOURCE_ENVIRONMENT, .hostname = "n1" };
	struct ddp_progress *pages[DDP_PROGRESS_SLOTS + 1];
	ddp_recorder recorders[DDP_PROGRESS_SLOTS + 1];
	char text[16];

	snprintf(text, sizeof(text), "%d", file);
	setenv("DDP_PROGRESS_FD", text, 1);
	for (int i = 0; i <= DDP_PROGRESS_SLOTS; i++) {
		pages[i] = ddp_page_map(&job, &recorders[i]);
		assert_true((recorders[i].head != NULL) == (i < DDP_PROGRESS_SLOTS));
	}
	for (int i = 0; i <= DDP_PROGRESS_SLOTS; i++) {
		ddp_recorder_unmap(&recorders[i]);
		ddp_page_unmap(pages[i]);
	}
	unsetenv("DDP_PROGRESS_FD");
}

/* ---- reading --------------------------------------------------------------------------- */

TEST(entries_that_are_being_written_are_left_out)
{
	struct ddp_record_entry first[DDP_RECORD_ENTRIES] = { { 0 } }, second[DDP_RECORD_ENTRIES], entry;
	const struct ring ring = { .first = first, .second = second };

	for (uint32_t i = 0; i < DDP_RECORD_ENTRIES; i++) {
		first[i] = sum;
		first[i].sequence = DDP_RECORD_ENTRIES + i;
	}
	first[9].sequence = 9 + 3 * DDP_RECORD_ENTRIES;
	memcpy(second, first, sizeof(first));
	first[1].sequence = 0;                /* under way, and then whole */
	second[2].sequence = 0;               /* the next one begins */
	second[3].count++;                    /* between both */
	first[4].sequence = second[4].sequence = 5 + DDP_RECORD_ENTRIES; /* of another place */
	second[5].end_ns = 6, second[5].state = 9; /* has ended since */
	first[6].end_ns = 6, second[6].end_ns = 7; /* such an end does not change */
	memset(first[7].where, 'x', sizeof(first[7].where));
	memset(first[7].name, 'x', sizeof(first[7].name));
	second[7] = first[7];
	for (uint32_t i = 1; i <= 4; i++)
		assert_false(rings_entry(&ring, i, &entry));
	assert_true(rings_entry(&ring, 5, &entry));
	assert_int_equal(entry.end_ns, 6);
	assert_false(rings_entry(&ring, 6, &entry));
	assert_true(rings_entry(&ring, 7, &entry));
	assert_int_equal(strlen(entry.where), sizeof(entry.where) - 1);
	assert_int_equal(strlen(entry.name), sizeof(entry.name) - 1);
	assert_true(rings_entry(&ring, 9 + DDP_RECORD_ENTRIES, &entry));
}

TEST_WITH(heads_of_another_version_are_left_out, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	struct rings rings;

	begin(&recorder, 1);
	recorder.head->version++;
	assert_true(rings_copy(&rings, source(), TASK));
	assert_int_equal(rings.count, 0);
	assert_false(rings_copy(&rings, source(), TASKS + 70000));
	ddp_recorder_unmap(&recorder);
}

/* ddp-status does not know how many tasks a node has. */
TEST_WITH(file_tells_of_its_tasks, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	struct rings_source unknown = *source();
	struct rings rings;

	begin(&recorder, 1);
	unknown.tasks = 0;
	assert_true(rings_copy(&rings, &unknown, TASK));
	assert_int_equal(rings.count, 1);
	rings_free(&rings);
	/* A user may have written any number there. */
	const struct ddp_record_place place = { .magic = DDP_RECORD_MAGIC, .version = DDP_RECORD_VERSION, .tasks = UINT32_MAX };
	assert_int_equal(pwrite(file, &place, sizeof(place), (off_t)DDP_RECORD_PLACE_OFFSET(TASKS)), sizeof(place));
	assert_true(rings_copy(&rings, &unknown, TASK));
	assert_int_equal(rings.count, 0);
	ddp_recorder_unmap(&recorder);
}

static json_t *line_of(const struct rings *rings, const char *threads)
{
	static char text[RECORD_TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));
	json_error_t error;

	record_text(&sink, &(struct record_rank){ .reason = "stall", .job = 12, .step = 3, .rank = 1, .world_size = 3,
		.node = "n\"1\\", .pid = 99, .end = "signal 9", .now_ns = 1000, .real_ns = 2000, .threads = threads,
		.rings = rings });
	assert_false(sink.full);
	json_t *json = json_loads(text, 0, &error);
	if (json == NULL)
		fail_msg("no JSON: %s at %d", error.text, error.position);
	return json;
}

TEST_WITH(line_has_what_the_rank_did, make_file, drop_file)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	struct ddp_progress slot = { .magic = DDP_PROGRESS_MAGIC, .writer = DDP_WRITER_LIBDDP, .step = 4, .pid = 99,
		                     .phase = DDP_PHASE_BACKWARD };
	struct rings rings;

	assert_int_equal(pwrite(file, &slot, sizeof(slot), TASK * DDP_PROGRESS_BYTES + SLOT * DDP_PROGRESS_SLOT_BYTES), sizeof(slot));
	ddp_record_end(begin(&recorder, 1), DDP_OK, 9);
	const ddp_recorded named = begin(&recorder, 2);
	named.entry->kind = named.entry->type = DDP_RECORD_NAMED;
	strcpy(named.entry->name, "odd u32");
	strcpy(named.entry->where, "a\"b.py:8");
	assert_true(rings_copy(&rings, source(), TASK));
	json_t *json = line_of(&rings, "thread 1\nthread 2\n");
	assert_string_equal(json_string_value(json_object_get(json, "node")), "n\"1\\");
	assert_string_equal(json_string_value(json_object_get(json, "phase")), "backward");
	assert_int_equal(json_integer_value(json_object_get(json, "training_step")), 4);
	assert_string_equal(json_string_value(json_object_get(json, "threads")), "thread 1\nthread 2\n");
	const json_t *ring = json_array_get(json_object_get(json, "rings"), 0);
	assert_string_equal(json_string_value(json_object_get(ring, "writer")), "libddp");
	const json_t *operations = json_object_get(ring, "operations");
	assert_int_equal(json_array_size(operations), 2);
	const json_t *first = json_array_get(operations, 0), *second = json_array_get(operations, 1);
	assert_int_equal(json_array_size(first), json_array_size(json_object_get(json, "columns")));
	assert_string_equal(json_string_value(json_array_get(first, 3)), "all_reduce");
	assert_string_equal(json_string_value(json_array_get(first, 4)), "f32");
	assert_string_equal(json_string_value(json_array_get(second, 3)), "odd u32");
	assert_string_equal(json_string_value(json_array_get(second, 14)), "a\"b.py:8");
	json_decref(json);
	rings_free(&rings);
	ddp_recorder_unmap(&recorder);
}

/* The task may write anything: the line is still JSON, with printable text. */
TEST_WITH(line_of_noise_is_json, make_file, drop_file)
{
	unsigned int seed = 1;

	for (int round = 0; round < 20; round++) {
		const size_t bytes = DDP_RECORD_AREA_BYTES;
		unsigned char *noise = malloc(bytes);
		assert_non_null(noise);
		for (size_t i = 0; i < bytes; i++)
			noise[i] = (unsigned char)(seed = seed * 1664525u + 1013904223u, seed >> 24);
		struct ddp_record_head *heads = (struct ddp_record_head *)noise;
		for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
			heads[i].magic = DDP_RECORD_MAGIC, heads[i].version = DDP_RECORD_VERSION;
		for (size_t i = 0; i < DDP_PROGRESS_SLOTS * DDP_RECORD_ENTRIES; i++) {
			struct ddp_record_entry *e = (struct ddp_record_entry *)(noise + DDP_RECORD_HEADS_BYTES) + i;
			e->sequence = e->sequence / DDP_RECORD_ENTRIES * DDP_RECORD_ENTRIES + i % DDP_RECORD_ENTRIES;
		}
		assert_int_equal(pwrite(file, noise, bytes, (off_t)DDP_RECORD_AREA_OFFSET(TASKS, TASK)), bytes);
		for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
			((struct ddp_progress *)noise)[i].magic = DDP_PROGRESS_MAGIC;
		assert_int_equal(pwrite(file, noise, DDP_PROGRESS_BYTES, TASK * DDP_PROGRESS_BYTES), DDP_PROGRESS_BYTES);
		struct rings rings;
		assert_true(rings_copy(&rings, source(), TASK));
		assert_int_equal(rings.count, DDP_PROGRESS_SLOTS);
		json_decref(line_of(&rings, "\x1b[2J\xff"));
		rings_free(&rings);
		free(noise);
	}
}

/* ---- files ----------------------------------------------------------------------------- */

static char folder[512];

static int make_folder(void **state)
{
	snprintf(folder, sizeof(folder), "%s/ddp-record-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	return mkdtemp(folder) == NULL ? -1 : make_file(state);
}

static int drop_folder(void **state)
{
	char command[600];

	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	return (system(command) != 0) | drop_file(state);
}

static const char *in_folder(const char *name)
{
	static char path[600];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static int count_lines(const char *name)
{
	FILE *text = fopen(in_folder(name), "r");
	int count = 0, c;

	if (text == NULL)
		return -1;
	while ((c = fgetc(text)) != EOF)
		count += c == '\n';
	fclose(text);
	return count;
}

static bool step_folder(const char *dir, bool make, uint32_t job, struct error *error)
{
	const struct folder_wish wish = record_folder_wish(dir, make);

	return record_folder_make(&wish, job, 0, error);
}

TEST_WITH(folder_is_made_and_kept_from_others, make_folder, drop_folder)
{
	struct stat info;
	struct error error;
	char dir[600];

	snprintf(dir, sizeof(dir), "%s", in_folder("new"));
	assert_true(step_folder(dir, true, 12, &error));
	assert_true(step_folder(dir, true, 12, &error));
	assert_return_code(stat(in_folder("new/12.0"), &info), errno);
	assert_int_equal(info.st_mode & 0777, 0700);
	/* Somebody else's link in a folder of all users. */
	assert_return_code(symlink("/tmp", in_folder("new/13.0")), errno);
	assert_false(step_folder(dir, true, 13, &error));
	assert_non_null(strstr(error.text, "13.0"));
	snprintf(dir, sizeof(dir), "%s", in_folder("no/such/folder"));
	assert_false(step_folder(dir, true, 12, &error));
	assert_non_null(strstr(error.text, "cannot make the folder: No such file or directory; name a folder that exists"));
	assert_return_code(close(open(in_folder("file"), O_CREAT | O_WRONLY, 0600)), errno);
	snprintf(dir, sizeof(dir), "%s", in_folder("file"));
	assert_false(step_folder(dir, true, 12, &error));
	assert_non_null(strstr(error.text, "cannot open the folder: Not a directory"));
}

/* If the first user made the site's folder, it would be that user's alone. */
TEST_WITH(folder_of_a_site_is_not_made, make_folder, drop_folder)
{
	struct error error;
	char dir[600];

	snprintf(dir, sizeof(dir), "%s", in_folder("site"));
	assert_false(step_folder(dir, false, 12, &error));
	assert_non_null(strstr(error.text, "cannot open the folder: No such file or directory; the administrator makes the "
	                                   "site's folder, with mode 1777, on all nodes"));
	assert_int_not_equal(access(dir, F_OK), 0);
	assert_return_code(mkdir(dir, 0700), errno);
	assert_true(step_folder(dir, false, 12, &error));
}

TEST_WITH(file_in_the_way_is_refused, make_folder, drop_folder)
{
	struct error error;
	int steps;

	steps = record_folder_open(&(struct folder_wish){ .option = "record", .dir = folder, .make = true, .mode = 0700 }, 1, 2, &error);
	assert_true(steps >= 0);
	assert_true(record_folder_add(steps, 5, "one\n", 4, &error));
	assert_true(record_folder_add(steps, 5, "two\n", 4, &error));
	assert_int_equal(count_lines("1.2/rank-5.jsonl"), 2);
	assert_return_code(symlink("rank-5.jsonl", in_folder("1.2/rank-6.jsonl")), errno);
	assert_false(record_folder_add(steps, 6, "one\n", 4, &error));
	assert_return_code(mkfifo(in_folder("1.2/rank-7.jsonl"), 0600), errno);
	assert_false(record_folder_add(steps, 7, "one\n", 4, &error));
	close(steps);
}

TEST_WITH(dump_writes_a_line_for_each_rank, make_folder, drop_folder)
{
	ddp_recorder recorder = ddp_recorder_map(file, TASK, SLOT);
	struct record_place place = { .job = 8, .step = 1, .owner = { .user = geteuid(), .group = getegid() } };
	const struct record_task tasks[] = { { .local_task = 0, .rank = 4, .pid = getpid() },
		                             { .local_task = TASK, .rank = 5, .end = "signal 9" },
		                             { .local_task = 2, .rank = UINT32_MAX } };
	const struct record_order order = { .place = &place, .reason = "end", .node = "n1", .world_size = 6, .tasks = tasks,
		                            .count = 3, .stacks = true };
	char text[4096] = "";

	snprintf(place.dir, sizeof(place.dir), "%s", folder);
	begin(&recorder, 1);
	const pid_t child = record_dump_beside(&order, source());
	assert_true(child > 0);
	assert_true(child_reap(child, 20000, NULL));
	assert_int_equal(count_lines("8.1/rank-4.jsonl"), 1);
	assert_int_equal(count_lines("8.1/rank-5.jsonl"), 1);
	assert_int_equal(count_lines("8.1/rank-4294967295.jsonl"), -1);
	FILE *line = fopen(in_folder("8.1/rank-4.jsonl"), "r");
	assert_non_null(line);
	assert_non_null(fgets(text, sizeof(text), line));
	fclose(line);
	assert_non_null(strstr(text, "\"threads\":\"thread "));
	/* Without record= nobody writes. */
	place.dir[0] = '\0';
	assert_int_equal(record_dump_beside(&order, source()), -1);
	ddp_recorder_unmap(&recorder);
}

/* As slurmstepd does it. */
TEST_WITH(root_becomes_the_user_first, make_folder, drop_folder)
{
	struct record_place place = { .job = 8, .step = 1, .owner = { .user = 65534, .group = 65534 } };
	const struct record_task task = { .rank = 0 };
	const struct record_order order = { .place = &place, .reason = "end", .node = "n1", .world_size = 1, .tasks = &task,
		                            .count = 1 };
	struct stat info;

	if (geteuid() != 0)
		skip();
	snprintf(place.dir, sizeof(place.dir), "%s", folder);
	/* The folder is root's, so the user cannot write there, and root does not. */
	assert_true(child_reap(record_dump_beside(&order, source()), 20000, NULL));
	assert_int_equal(count_lines("8.1/rank-0.jsonl"), -1);
	assert_return_code(chown(folder, 65534, 65534), errno);
	assert_true(child_reap(record_dump_beside(&order, source()), 20000, NULL));
	assert_return_code(stat(in_folder("8.1/rank-0.jsonl"), &info), errno);
	assert_int_equal(info.st_uid, 65534);
	assert_int_equal(info.st_gid, 65534);
}

static volatile sig_atomic_t asked;

static void note_asked(int number)
{
	asked = 1;
}

/* A process with a file for stacks, which exits with 1 once it was asked for them, and otherwise with 0 at the end of its
   input. Returns the other end of the input. */
static int start_process_with_stacks(pid_t *pid)
{
	int input[2], ready[2];
	char byte;

	assert_return_code(pipe(input), errno);
	assert_return_code(pipe(ready), errno);
	*pid = fork();
	assert_true(*pid >= 0);
	if (*pid == 0) {
		struct sigaction action = { .sa_handler = note_asked };
		char name[32];
		snprintf(name, sizeof(name), "ddp_stack-%d", SIGRTMAX - 3);
		close(input[1]);
		if (memfd_create(name, 0) < 0 || sigaction(SIGRTMAX - 3, &action, NULL) != 0 || write(ready[1], "", 1) != 1)
			_exit(2);
		while (read(input[0], &byte, 1) < 0 && errno == EINTR)
			continue;
		_exit(asked);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	close(input[0]);
	return input[1];
}

TEST_WITH(nobody_is_asked_for_stacks_that_have_no_place, make_folder, drop_folder)
{
	struct record_place place = { .job = 8, .step = 1, .owner = { .user = geteuid(), .group = getegid() } };
	struct record_task task = { .rank = 0 };
	const struct record_order order = { .place = &place, .reason = "asked", .node = "n1", .world_size = 1, .tasks = &task,
		                            .count = 1, .stacks = true };
	struct error error;

	for (int writable = 0; writable < 2; writable++) {
		const int input = start_process_with_stacks(&task.pid);
		int wait_status = 0;
		snprintf(place.dir, sizeof(place.dir), "%s", writable ? folder : in_folder("no/such/folder"));
		assert_int_equal(record_dump(&order, source(), &error), writable);
		close(input);
		assert_true(child_reap(task.pid, 60000, &wait_status));
		assert_true(WIFEXITED(wait_status));
		assert_int_equal(WEXITSTATUS(wait_status), writable);
	}
}

/* ---- when ------------------------------------------------------------------------------ */

static struct supervise supervise;
static struct flight flight;

/* A node's tasks have the ranks from 0 on, and its records go to the folder. */
static void begin_flight(uint32_t job, uint32_t tasks)
{
	struct error error;

	flight = (struct flight){ .place = { .job = job, .step = 0, .owner = { .user = geteuid(), .group = getegid() } } };
	snprintf(flight.place.dir, sizeof(flight.place.dir), "%s", folder);
	assert_true(supervise_start(&supervise, tasks, geteuid(), &error));
	strcpy(supervise.shared->node, "n7");
	for (uint32_t i = 0; i < tasks; i++)
		supervise.shared->task[i].rank = i;
}

TEST_WITH(failure_is_recorded_once_and_at_the_end, make_folder, drop_folder)
{
	begin_flight(3, 2);
	flight_note_end(&flight, &supervise);
	assert_int_equal(count_lines("3.0/rank-0.jsonl"), -1);
	supervise_reaped(&supervise, 1, SIGKILL);
	flight_note_failure(&flight, &supervise);
	flight_note_failure(&flight, &supervise);
	flight_note_end(&flight, &supervise);
	assert_int_equal(count_lines("3.0/rank-0.jsonl"), 2);
	assert_int_equal(count_lines("3.0/rank-1.jsonl"), 2);
	for (int i = 0; i < FLIGHT_CHILDREN; i++)
		assert_int_equal(flight.children[i], 0);
	supervise_end(&supervise);
}

static char said[2048];

static void note_said(const char *text)
{
	snprintf(said + strlen(said), sizeof(said) - strlen(said), "%s\n", text);
}

/* A failure's record and the last one: the first reason is told, by whoever writes. */
TEST_WITH(record_that_is_not_written_is_told, make_folder, drop_folder)
{
	struct error error;

	assert_true(step_folder(folder, false, 3, &error));
	for (int look = 0; look < 2; look++) {
		said[0] = '\0';
		begin_flight(3, 2);
		supervise_reaped(&supervise, 1, SIGKILL);
		flight_note_failure(&flight, &supervise);
		flight_note_end(&flight, &supervise);
		flight_tell_lost(&flight, &supervise, note_said);
		supervise_end(&supervise);
		if (look > 0)
			continue;
		assert_string_equal(said, "");
		assert_return_code(unlink(in_folder("3.0/rank-1.jsonl")), errno);
		assert_return_code(mkfifo(in_folder("3.0/rank-1.jsonl"), 0600), errno);
	}
	assert_int_equal(strncmp(said, "flight records of node n7 were not written to ", 46), 0);
	assert_non_null(strstr(said, ": cannot open rank-1.jsonl: "));
	assert_int_equal(count_lines("3.0/rank-0.jsonl"), 4);
}

/* A process that waits, in place of one that writes. */
static pid_t wait_in_a_child(void)
{
	const pid_t child = fork();

	assert_true(child >= 0);
	while (child == 0)
		pause();
	return child;
}

TEST_WITH(writer_that_is_killed_or_late_is_told, make_folder, drop_folder)
{
	siginfo_t ended;
	pid_t writer;

	begin_flight(4, 1);
	said[0] = '\0';
	/* One of the witness's. */
	writer = wait_in_a_child();
	atomic_store(&supervise.shared->record_writers[1], writer);
	flight_tell_lost(&flight, &supervise, note_said);
	assert_int_equal(strncmp(said, "flight records of node n7 are not yet written to ", 49), 0);
	/* It is killed together with the witness, so nobody takes its number back. */
	kill(writer, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)writer, &ended, WEXITED | WNOWAIT), 0);
	said[0] = '\0';
	flight_tell_lost(&flight, &supervise, note_said);
	assert_string_equal(said, "");
	assert_int_equal(waitpid(writer, NULL, 0), writer);
	flight_tell_lost(&flight, &supervise, note_said);
	assert_string_equal(said, "");
	flight.children[0] = wait_in_a_child();
	kill(flight.children[0], SIGALRM);
	flight.failed = true;
	flight_note_end(&flight, &supervise);
	flight_tell_lost(&flight, &supervise, note_said);
	assert_non_null(strstr(said, ": the writer was ended by signal 14, as the file server did not answer"));
	supervise_end(&supervise);
}

/* While the children of earlier failures write, another failure neither loses them nor adds more than there is room for. */
TEST_WITH(children_that_still_write_are_kept, make_folder, drop_folder)
{
	int inputs[FLIGHT_CHILDREN];

	begin_flight(3, 1);
	for (int i = 0; i < FLIGHT_CHILDREN; i++)
		inputs[i] = start_process_with_stacks(&flight.children[i]);
	flight_note_failure(&flight, &supervise);
	assert_int_equal(count_lines("3.0/rank-0.jsonl"), -1);
	for (int i = 0; i < FLIGHT_CHILDREN; i++)
		close(inputs[i]);
	flight_note_end(&flight, &supervise);
	assert_int_equal(count_lines("3.0/rank-0.jsonl"), 1);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	supervise_end(&supervise);
}
