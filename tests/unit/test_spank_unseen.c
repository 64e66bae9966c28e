/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/node/stall and spank/srun/stall_step: what srun says of ranks that stall= cannot see, and of ranks in
   different collectives. */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ddp.h"
#include "spank/node/stall.h"
#include "spank/srun/stall_step.h"
#include "tests/support/test.h"

#define SECOND 1000000000ull

enum { TEXT_MAX = 1024, MINUTE = 60000 };

/* ---- when a node tells ----------------------------------------------------------------- */

enum what { NOTHING, LIBDDP, STARTING, WAITS_STARTING, STEPS, ENDED };

static struct stall_rank rank_that(enum what what, uint32_t rank)
{
	struct stall_rank made = { .rank = rank, .end = what == ENDED ? STALL_GOOD_END : STALL_NO_END };
	bool python = what == STARTING || what == STEPS || what == WAITS_STARTING;

	made.page = (struct ddp_progress){ .magic = what == NOTHING || what == ENDED ? 0 : DDP_PROGRESS_MAGIC, .bucket = -1,
		                           .writer = python ? DDP_WRITER_PYTHON : DDP_WRITER_LIBDDP,
		                           .phase = what == STARTING || what == WAITS_STARTING ? DDP_PROGRESS_STARTING : 0,
		                           .waiting = what == WAITS_STARTING ? DDP_WAITING_COLLECTIVE : DDP_WAITING_NOT,
		                           .step = what == STEPS ? 3 : 0 };
	return made;
}

static const char *name;
static bool has_libddp;
static uint32_t program_age_ms;

static void look(void *about, uint32_t local_task, struct program *program)
{
	*program = (struct program){ .has_libddp = has_libddp, .age_ms = program_age_ms };
	strcpy(program->name, name);
}

struct row {
	enum what ranks[2];
	struct unseen_wanted wanted;
	uint32_t seconds, age_ms;
	const char *name;
	bool has_libddp;
	uint32_t program_age_ms;
	enum stall_unseen unseen;
};

static const struct unseen_wanted stall = { .stall = true }, watch = { .watch = true }, python = { .python = true },
	both = { .stall = true, .python = true }, none = { .stall = false };

TEST(node_tells_what_it_does_not_see)
{
	const struct row rows[] = {
		/* Two minutes, or stall= if that is longer; 20 times stall= if that is shorter. */
		{ { NOTHING, NOTHING }, stall, 60, 2 * MINUTE - 1, "python3.11", false, 2 * MINUTE, STALL_SEEN },
		{ { NOTHING, NOTHING }, stall, 60, 2 * MINUTE, "python3.11", false, 2 * MINUTE, STALL_NO_PAGE },
		{ { NOTHING, NOTHING }, stall, 300, 2 * MINUTE, "train", false, 2 * MINUTE, STALL_SEEN },
		{ { NOTHING, NOTHING }, stall, 300, 5 * MINUTE, "train", false, 2 * MINUTE, STALL_NO_PAGE },
		{ { NOTHING, NOTHING }, stall, 1, 19999, "train", false, 2 * MINUTE, STALL_SEEN },
		{ { NOTHING, NOTHING }, stall, 1, 20000, "train", false, 2 * MINUTE, STALL_NO_PAGE },
		{ { NOTHING, NOTHING }, watch, 0, 2 * MINUTE, "python3", false, 2 * MINUTE, STALL_NO_PAGE },
		/* Nobody has asked. */
		{ { NOTHING, NOTHING }, none, 0, 20 * MINUTE, "python3", false, 2 * MINUTE, STALL_SEEN },
		/* It has loaded libddp, and will come to ddp_init(). */
		{ { NOTHING, NOTHING }, stall, 60, 9 * MINUTE, "train", true, 9 * MINUTE, STALL_SEEN },
		/* Python is known to be without slurm_ddp earlier than other programs. */
		{ { NOTHING, NOTHING }, python, 0, 20000, "python3.12", false, 20000, STALL_NO_PYTHON },
		{ { NOTHING, NOTHING }, python, 0, 20000, "python3.12", true, 20000, STALL_NO_PYTHON },
		{ { NOTHING, NOTHING }, python, 0, 19999, "python3.12", false, 20000, STALL_SEEN },
		{ { NOTHING, NOTHING }, python, 0, 90000, "python3.12", false, 19999, STALL_SEEN },
		{ { NOTHING, NOTHING }, python, 0, 20 * MINUTE, "train", false, 20 * MINUTE, STALL_SEEN },
		{ { NOTHING, NOTHING }, both, 600, 20000, "python", false, 20000, STALL_NO_PYTHON },
		{ { STARTING, NOTHING }, both, 60, 20000, "python", false, 20000, STALL_NO_PYTHON },
		/* One that is seen. */
		{ { STEPS, STEPS }, both, 60, 99 * MINUTE, "python3", false, 99 * MINUTE, STALL_SEEN },
		{ { LIBDDP, ENDED }, both, 60, 99 * MINUTE, "python3", false, 99 * MINUTE, STALL_SEEN },
		/* A start may last for five times as long. */
		{ { STARTING, STEPS }, both, 60, 10 * MINUTE - 1, "python3", false, 10 * MINUTE, STALL_SEEN },
		{ { STARTING, STEPS }, both, 60, 10 * MINUTE, "python3", false, 10 * MINUTE, STALL_STARTS },
		{ { STARTING, STEPS }, python, 0, 99 * MINUTE, "python3", false, 10 * MINUTE, STALL_SEEN },
		/* It waits for others, which stall= sees. */
		{ { WAITS_STARTING, STEPS }, both, 60, 99 * MINUTE, "python3", false, 10 * MINUTE, STALL_SEEN },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		const struct row *row = &rows[i];
		struct stall_rank ranks[2] = { rank_that(row->ranks[0], 4), rank_that(row->ranks[1], 5) };
		const struct stall_node node = { .name = "n2", .world_size = 6, .seconds = row->seconds, .ranks = ranks, .count = 2 };
		const struct unseen_watch watched = { .wanted = row->wanted, .seconds = row->seconds, .age_ms = row->age_ms, .look = look };
		struct stall_note note = { .ranks = 2, .lowest = 4, .world_size = 6 };
		uint32_t first = row->ranks[0] == NOTHING || row->ranks[0] == STARTING ? 4 : 5, last = row->ranks[1] == NOTHING ? 5 : 4;
		name = row->name;
		has_libddp = row->has_libddp;
		program_age_ms = row->program_age_ms;
		if (row->unseen == STALL_NO_PYTHON && row->ranks[0] == STARTING)
			first = 5;
		if (unseen_judge(&watched, &node, &note) != (row->unseen != STALL_SEEN) || note.unseen != row->unseen)
			fail_msg("row %zu: %d", i, (int)note.unseen);
		if (note.unseen == STALL_SEEN)
			continue;
		assert_false(note.stalled);
		assert_true(note.ranks == 2 && note.lowest == 4 && note.world_size == 6 && note.unseen_ms == row->age_ms);
		assert_string_equal(note.program, row->name);
		if (note.range_count != 1 || note.ranges[0].first != first || note.ranges[0].last != last)
			fail_msg("row %zu: ranks %u-%u", i, note.ranges[0].first, note.ranges[0].last);
	}
}

/* ---- what srun says ---------------------------------------------------------------------- */

static void take(struct stall_step *step, const struct stall_note *note, uint64_t seconds)
{
	unsigned char bytes[STALL_NOTE_BYTES];

	stall_pack(note, bytes);
	stall_step_take(step, bytes, seconds * SECOND);
}

static struct stall_note unseen_note(uint32_t lowest, enum stall_unseen unseen, const char *program)
{
	struct stall_note note = { .ranks = 2, .lowest = lowest, .world_size = 4, .unseen = unseen, .unseen_ms = 120400,
		                   .range_count = 1, .ranges = { { lowest, lowest + 1 } } };

	strcpy(note.program, program);
	return note;
}

static const char *say(struct stall_step *step)
{
	static char text[TEXT_MAX];
	struct sink sink = sink_on(text, sizeof(text));

	stall_step_say_unseen(step, &sink);
	assert_false(sink.full);
	return text;
}

TEST(srun_says_once_what_is_not_seen)
{
	struct stall_note first = unseen_note(0, STALL_NO_PAGE, "python3.11"), second = unseen_note(2, STALL_NO_PAGE, "python3.11");
	struct stall_step step = { .seconds = 60, .asked = { .stall = true } };

	assert_true(stall_step_unseen_due(&step) == UINT64_MAX);
	take(&step, &first, 100);
	assert_true(stall_step_unseen_due(&step) == 110 * SECOND);
	/* The node had no answer in time. */
	take(&step, &first, 101);
	assert_true(stall_step_unseen_due(&step) == 110 * SECOND);
	take(&step, &second, 101);
	assert_true(stall_step_unseen_due(&step) == 100 * SECOND);
	assert_true(stall_step_due(&step) == UINT64_MAX);
	assert_string_equal(say(&step), "stall= sees nothing of ranks 0-3 (python3.11): 120 s after the start, the program uses "
	                    "neither libddp nor slurm_ddp; a program of Python is seen with --ddp=python, and one of NCCL with "
	                    "--ddp=watch");
	assert_true(stall_step_unseen_due(&step) == UINT64_MAX);
	take(&step, &first, 200);
	assert_true(stall_step_unseen_due(&step) == UINT64_MAX);
	stall_step_end(&step);
}

/* With restart=, srun asks once more when the last rank has ended. */
TEST(nothing_is_due_when_all_is_over)
{
	struct stall_note note = unseen_note(0, STALL_NO_PAGE, "train");
	struct stall_step step = { .seconds = 60, .asked = { .stall = true } };

	take(&step, &note, 100);
	stall_step_end(&step);
	assert_true(stall_step_unseen_due(&step) == UINT64_MAX);
	assert_true(stall_step_due(&step) == UINT64_MAX);
}

TEST(srun_says_what_to_do)
{
	static const struct { struct stall_asked asked; enum stall_unseen unseen; const char *program, *text; } rows[] = {
		{ { .python = true }, STALL_NO_PYTHON, "python3.11",
		  "--ddp=python has not started slurm_ddp in ranks 2-3 (python3.11): this Python ignores PYTHONPATH (-I, -E, a "
		  "container), or is older than 3.8; install slurm_ddp for it by pip, or begin the program with "
		  "slurm_ddp.install() (see srun-ddp(7))" },
		{ { .watch = true }, STALL_NO_PAGE, "",
		  "watch sees nothing of ranks 2-3: 120 s after the start, the program uses neither libddp nor slurm_ddp nor NCCL "
		  "2.27 or later; a program of Python is seen with --ddp=python" },
		{ { .stall = true, .python = true }, STALL_NO_PAGE, "train",
		  "stall= sees nothing of ranks 2-3 (train): 120 s after the start, the program uses neither libddp nor slurm_ddp" },
		{ { .stall = true, .python = true }, STALL_STARTS, "python3",
		  "stall= sees no step yet: 120 s after the start, ranks 2-3 have told of no step and no phase, and a start may "
		  "last for any time; slurm_ddp sees batches of PyTorch's DataLoader and its optimizers, and otherwise what "
		  "slurm_ddp.step() and phase() tell" },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		struct stall_step step = { .asked = rows[i].asked };
		struct stall_note note = unseen_note(2, rows[i].unseen, rows[i].program);
		take(&step, &note, 1);
		assert_string_equal(say(&step), rows[i].text);
		stall_step_end(&step);
	}
}

TEST(site_line_alone_says_nothing)
{
	struct stall_step step = { .seconds = 60 };
	struct stall_note note = unseen_note(0, STALL_NO_PAGE, "train");

	take(&step, &note, 1);
	assert_true(stall_step_unseen_due(&step) == UINT64_MAX);
	stall_step_end(&step);
}

/* ---- ranks in different collectives ----------------------------------------------------------- */

TEST(operations_are_compared)
{
	static const struct { const char *one, *other; bool differ; } rows[] = {
		{ "collective #6 all_reduce f32[10] sum", "collective #6 all_reduce f32[10] sum", false },
		{ "collective #6 all_reduce f32[10] sum", "collective #6 all_reduce f32[11] sum", true },
		{ "collective #6 all_reduce f32[10]", "collective #7 all_reduce f32[11]", false },
		{ "collective #6 all_reduce f32[10]", "collective #16 all_reduce f32[11]", false },
		{ "collective #6 barrier", "collective #6 all_reduce f32[10]", true },
		{ "collective #6 barrier", "collective #6 barrier", false },
		{ "collective #6 all_gather f32[10]", "collective #6 all_gather f32[9]", false },
		{ "collective #6 all_gather f32[10]", "collective #6 all_gather_into f32[9]", true },
		{ "collective #6 scatter f32[10] and 3 more", "collective #6 scatter f32[10]", false },
		{ "collective #6 NCCL all_reduce f32[10]", "collective #6 NCCL broadcast f32[10]", true },
		{ "collective #6 NCCL all_gather f32[10]", "collective #6 NCCL broadcast f32[10]", true },
		{ "collective #6 NCCL all_gather f32[10]", "collective #6 NCCL all_gather f32[9]", false },
		{ "collective #6", "collective #6 barrier", false },
		{ "recv from rank 3", "collective #6 barrier", false },
		{ "", "", false },
	};

	for (size_t i = 0; i < COUNT(rows); i++)
		if (stall_differs(rows[i].one, rows[i].other) != rows[i].differ || stall_differs(rows[i].other, rows[i].one) != rows[i].differ)
			fail_msg("row %zu", i);
}

static struct stall_rank waiting(uint32_t rank, uint32_t collective, const char *text)
{
	struct stall_rank made = { .rank = rank, .changed_ns = 100 * SECOND };

	made.page = (struct ddp_progress){ .magic = DDP_PROGRESS_MAGIC, .bucket = -1, .phase = DDP_PROGRESS_COMPUTING, .step = 3,
		                           .writer = DDP_WRITER_PYTHON, .collective = collective, .described = collective,
		                           .collective_ns = 100 * SECOND, .updated_ns = 100 * SECOND,
		                           .waiting = DDP_WAITING_COLLECTIVE };
	strcpy(made.page.collective_text, text);
	return made;
}

#define STALLS "the step stalls: no rank has made progress for 30.0 s; "
#define DIFFER STALLS "ranks call different operations as collective #6: "

TEST(rank_in_another_collective_is_named)
{
	static const struct { const char *ranks[4]; const char *text; } rows[] = {
		{ { "all_reduce f32[9]", "barrier", "all_reduce f32[9]", "all_reduce f32[9]" },
		  DIFFER "rank 1 of 4 on n0 calls barrier, and others call all_reduce f32[9]; waiting: ranks 0-3 for 30.0 s" },
		{ { "all_reduce f32[1]", "all_reduce f32[9]", "all_reduce f32[9]", "all_reduce f32[9]" },
		  DIFFER "rank 0 of 4 on n0 calls all_reduce f32[1], and others call all_reduce f32[9]; waiting: ranks 0-3 for 30.0 s" },
		{ { "all_reduce f32[9]", "all_reduce f32[9]", "all_reduce f32[9]", "barrier" },
		  DIFFER "rank 3 of 4 on n1 calls barrier, and others call all_reduce f32[9]; waiting: ranks 0-3 for 30.0 s" },
		{ { "all_reduce f32[9]", "all_reduce f32[9]", "barrier", "all_reduce f32[9]" },
		  DIFFER "rank 2 of 4 on n1 calls barrier, and others call all_reduce f32[9]; waiting: ranks 0-3 for 30.0 s" },
		{ { "all_gather f32[9]", "all_gather f32[8]", "all_gather f32[9]", "all_gather f32[7]" },
		  STALLS "all wait, and furthest behind is rank 0 of 4 on n0, " },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		struct stall_step step = { .seconds = 30 };
		char text[TEXT_MAX];
		struct sink sink = sink_on(text, sizeof(text));
		for (uint32_t n = 0; n < 2; n++) {
			const struct stall_rank ranks[2] = { waiting(2 * n, 6, rows[i].ranks[2 * n]),
				                             waiting(2 * n + 1, 6, rows[i].ranks[2 * n + 1]) };
			const struct stall_node node = { .name = n == 0 ? "n0" : "n1", .world_size = 4, .seconds = 30, .ranks = ranks,
				                         .count = 2 };
			struct stall_note note;
			stall_judge_node(&node, 130 * SECOND, &note);
			assert_true(note.stalled);
			take(&step, &note, 130);
		}
		stall_step_say(&step, 130 * SECOND, &sink);
		if (strncmp(text, rows[i].text, strlen(rows[i].text)) != 0)
			fail_msg("row %zu: %s", i, text);
		stall_step_end(&step);
	}
}

/* ---- a rank's program -------------------------------------------------------------------------- */

static pid_t start(char *const arguments[])
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setpgid(0, 0);
		execvp(arguments[0], arguments);
		_exit(127);
	}
	return pid;
}

/* The program itself, and not the shell that has started it, whenever that comes to it. */
static void await_program(pid_t pid, const char *wanted)
{
	const uint64_t deadline_ns = ddp_now_ns() + 60 * SECOND;
	struct program program;

	do {
		program_of(pid, &program);
		if (ddp_now_ns() > deadline_ns)
			fail_msg("the program is '%s'", program.name);
	} while (strcmp(program.name, wanted) != 0);
	assert_false(program.has_libddp);
	assert_true(program.age_ms < 120000);
}

TEST(program_of_a_task_is_known)
{
	char *const plain[] = { "sleep", "100", NULL };
	char *const wrapped[] = { "sh", "-c", "sleep 100; :", NULL };
	pid_t pid;
	struct program program;

	for (int i = 0; i < 2; i++) {
		pid = start(i == 0 ? plain : wrapped);
		await_program(pid, "sleep");
		/* What the shell has started would hold the test's output until it ends. */
		kill(-pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
	}
	program_of(0, &program);
	assert_string_equal(program.name, "");
	program_of(pid, &program);
	assert_string_equal(program.name, "");
	assert_true(program_is_python("python") && program_is_python("python3") && program_is_python("python3.13t"));
	assert_false(program_is_python("pythonize") || program_is_python("mypython3") || program_is_python(""));
}
