/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* spank/wire/relay against who records what nodes tell and sends it again: each message counts once, and a
   note of a stall only while it is the last word of its node. */
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/srun/peers.h"
#include "spank/srun/relay_srun.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

/* A step of one node whose srun ends it as soon as it stalls. */
static struct relay open_relay(void)
{
	const struct step_policy policy = { .hold_ms = 1, .doubt_ms = LONG_MS, .grace_ms = LONG_MS,
		                            .kill_on_failure = true, .stall_seconds = 1, .kill_on_stall = true };

	return open_srun(&policy);
}

/* What a node tells, as who sits on the network gets it: srun does not. */
static struct relay_message record(const struct relay *relay, const struct relay_news *news)
{
	struct relay recorder = *relay;
	struct relay_message message;
	int listener = listen_here(&recorder.port), fd;

	recorder.reply_ms = 0;
	assert_false(relay_tell(&recorder, "127.0.0.1", news));
	fd = accept(listener, NULL, NULL);
	assert_int_equal(recv(fd, &message, sizeof(message), MSG_WAITALL), sizeof(message));
	close(fd);
	close(listener);
	return message;
}

/* Sends the bytes over a connection of its own, as whoever has recorded them can; whether srun answers. */
static bool is_taken(const struct relay *relay, const void *message, size_t bytes)
{
	struct pollfd ready = { .fd = connect_here(relay->port), .events = POLLIN };
	unsigned char answer[SIPHASH_BYTES];
	bool answered;

	assert_int_equal(send(ready.fd, message, bytes, MSG_NOSIGNAL), bytes);
	answered = poll(&ready, 1, LONG_MS) == 1 &&
	           recv(ready.fd, answer, sizeof(answer), MSG_WAITALL) == (ssize_t)sizeof(answer);
	close(ready.fd);
	return answered;
}

static bool is_heard(const struct relay *relay, const struct relay_message *message)
{
	return is_taken(relay, message, sizeof(*message));
}

static struct relay_news failure(const char *text)
{
	return (struct relay_news){ .text = text, .wait_status = W_EXITCODE(7, 0),
		                    .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
}

/* A node's note: its two ranks, all that the step has, wait for so long. */
static struct relay_news note(bool stalled, uint32_t quiet_ms, unsigned char bytes[STALL_NOTE_BYTES])
{
	const struct stall_note what = { .stalled = stalled, .ranks = 2, .lowest = 0, .world_size = 2, .at_work = 2,
		                         .absent = 1, .quiet_ms = quiet_ms, .kind = STALL_RUNS, .who = "rank 0" };

	stall_pack(&what, bytes);
	return (struct relay_news){ .text = "", .stall = bytes };
}

static bool tell(const struct relay *relay, const struct relay_news *news)
{
	return relay_tell(relay, "127.0.0.1", news);
}

/* Once srun has answered the next message, it has done what it does because of earlier ones. */
static void srun_has_done_nothing(const struct relay *relay)
{
	const struct relay_news here = { .text = "", .here = true };

	for (int i = 0; i < 3; i++)
		assert_true(tell(relay, &here));
	assert_int_equal(atomic_load(&times_ended), 0);
	assert_int_equal(atomic_load(&times_said), 0);
}

/* A note that was told comes again once its node goes on. Nodes of this release number their messages, and
   those of an earlier one do not. */
TEST(an_old_note_of_a_stall_ends_no_step)
{
	for (int numbered = 0; numbered <= 1; numbered++) {
		unsigned char stalled[STALL_NOTE_BYTES], goes_on[STALL_NOTE_BYTES];
		const struct relay_news stalls = note(true, 0, stalled), runs = note(false, 0, goes_on);
		struct relay_sender sender = { .number = 0 };
		struct relay relay = open_relay();
		struct relay_message recorded;
		if (numbered)
			relay.sender = relay_start_sender(&sender);
		recorded = record(&relay, &stalls);
		assert_true(is_heard(&relay, &recorded));
		assert_true(tell(&relay, &runs));
		assert_false(is_heard(&relay, &recorded));
		usleep(1200000); /* more than stall= */
		srun_has_done_nothing(&relay);
		relay_close();
	}
}

/* A note that somebody has kept from srun comes when its node has told anything else. */
TEST(a_note_that_was_kept_back_ends_no_step)
{
	const struct relay_news here = { .text = "", .here = true };
	unsigned char bytes[STALL_NOTE_BYTES];
	const struct relay_news stalls = note(true, 60000, bytes);
	struct relay_sender sender = { .number = 0 };
	struct relay relay = open_relay();
	struct relay_message recorded;

	relay.sender = relay_start_sender(&sender);
	recorded = record(&relay, &stalls);
	assert_true(tell(&relay, &here));
	assert_false(is_heard(&relay, &recorded));
	srun_has_done_nothing(&relay);
	/* What the node tells itself is heard. */
	assert_true(tell(&relay, &stalls));
	wait_for(&times_ended, 1);
	relay_close();
}

/* Any other message: at most once, over the same connection or another one. */
TEST(a_message_counts_once)
{
	const struct relay_news news = failure("rank 1");
	struct relay relay = open_relay();
	struct relay_message twice[2];
	unsigned char answers[2 * SIPHASH_BYTES];
	int fd;

	twice[0] = twice[1] = record(&relay, &news);
	fd = connect_here(relay.port);
	assert_int_equal(send(fd, twice, sizeof(twice), MSG_NOSIGNAL), sizeof(twice));
	shutdown(fd, SHUT_WR);
	assert_int_equal(recv(fd, answers, SIPHASH_BYTES, MSG_WAITALL), SIPHASH_BYTES);
	assert_true(recv(fd, answers, sizeof(answers), MSG_WAITALL) <= 0);
	close(fd);
	for (int i = 0; i < 3; i++)
		assert_false(is_heard(&relay, &twice[0]));
	relay_close();
	assert_int_equal(atomic_load(&times_said), 1);
	assert_string_equal(said, "rank 1");
}

/* The connections of one node: a later one may be heard first. */
TEST(an_overtaken_message_is_heard)
{
	const struct relay_news first = { .text = "", .here = true }, second = failure("rank 1");
	struct relay_sender sender = { .number = 0 };
	struct relay relay = open_relay();
	struct relay_message earlier, later;

	relay.sender = relay_start_sender(&sender);
	earlier = record(&relay, &first);
	later = record(&relay, &second);
	assert_true(is_heard(&relay, &later));
	assert_true(is_heard(&relay, &earlier));
	assert_false(is_heard(&relay, &earlier));
	relay_close();
	assert_int_equal(atomic_load(&times_said), 1);
}

/* Each srun has a secret of its own, also for another step of the same job. */
TEST(a_message_of_another_step_is_not_heard)
{
	const struct relay_news news = failure("rank 1");
	struct relay relay = open_relay();
	struct relay_message recorded = record(&relay, &news);

	relay_close();
	relay = open_relay();
	assert_false(is_heard(&relay, &recorded));
	srun_has_done_nothing(&relay);
	relay_close();
}

TEST(part_of_a_message_is_not_heard)
{
	const struct relay_news news = failure("rank 1");
	struct relay relay = open_relay();
	struct relay_message recorded = record(&relay, &news), other = recorded;

	for (size_t bytes = 1; bytes < sizeof(recorded); bytes += sizeof(recorded) / 5)
		assert_false(is_taken(&relay, &recorded, bytes));
	/* Another number with the same tag is another message. */
	other.nonce[RELAY_MARK_BYTES] ^= 1;
	assert_false(is_heard(&relay, &other));
	other = recorded;
	other.nonce[0] ^= 1;
	assert_false(is_heard(&relay, &other));
	srun_has_done_nothing(&relay);
	assert_true(is_heard(&relay, &recorded));
	relay_close();
}

/* In a child, in srun's place: answers with srun's answer to an earlier message, or with the node's own
   bytes. */
static void answer_falsely(int listener, const unsigned char *answer)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		struct relay_message message;
		int fd = accept(listener, NULL, NULL);
		if (recv(fd, &message, sizeof(message), MSG_WAITALL) != (ssize_t)sizeof(message))
			_exit(1);
		send(fd, answer != NULL ? answer : (unsigned char *)&message, SIPHASH_BYTES, MSG_NOSIGNAL);
		close(fd);
	}
}

TEST(a_node_takes_no_recorded_answer)
{
	const struct relay_news news = failure("rank 1");
	struct relay_sender sender = { .number = 0 };
	struct relay relay = open_relay(), false_srun = relay;
	struct relay_message recorded;
	unsigned char answer[SIPHASH_BYTES];
	int listener = listen_here(&false_srun.port);

	relay.sender = false_srun.sender = relay_start_sender(&sender);
	recorded = record(&relay, &news);
	relay_sign_answer(&relay, &recorded, answer);
	for (int own = 0; own <= 1; own++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			answer_falsely(listener, own ? NULL : answer);
		assert_false(tell(&false_srun, &news));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	close(listener);
	relay_close();
}

/* ---- the memory of it -------------------------------------------------------------- */

static bool accept_number(struct replay_guard *guard, uint64_t mark, uint64_t number, bool last_word)
{
	unsigned char nonce[RELAY_NONCE_BYTES];

	for (int i = 0; i < 8; i++) {
		nonce[i] = (unsigned char)(mark >> (8 * i));
		nonce[8 + i] = (unsigned char)(number >> (8 * i));
	}
	return replay_guard_accept(guard, nonce, last_word);
}

TEST(numbers_are_heard_once_and_within_the_window)
{
	struct replay_guard guard = { .nodes = NULL };

	assert_true(accept_number(&guard, 5, 100, false));
	assert_false(accept_number(&guard, 5, 100, false));
	assert_true(accept_number(&guard, 5, 100 - REPLAY_WINDOW + 1, false));
	assert_false(accept_number(&guard, 5, 100 - REPLAY_WINDOW + 1, false));
	assert_false(accept_number(&guard, 5, 100 - REPLAY_WINDOW, false));
	assert_false(accept_number(&guard, 5, 99, true));
	assert_true(accept_number(&guard, 5, 99, false));
	assert_true(accept_number(&guard, 5, 101, true));
	for (uint64_t number = 98; number <= 101; number++)
		assert_int_equal(accept_number(&guard, 5, number, false), number == 98);
	/* What the window leaves behind is not heard any more. */
	assert_true(accept_number(&guard, 5, 101 + REPLAY_WINDOW, false));
	assert_false(accept_number(&guard, 5, 101, false));
	assert_true(accept_number(&guard, 5, 102, false));
	assert_true(accept_number(&guard, 5, UINT64_MAX, false));
	assert_false(accept_number(&guard, 5, 103, false));
	assert_true(accept_number(&guard, 5, UINT64_MAX - 1, false));
	assert_false(accept_number(&guard, 5, UINT64_MAX, false));
	replay_guard_end(&guard);
}

TEST(many_nodes_are_told_apart)
{
	enum { NODES = 20000 };
	struct replay_guard guard = { .nodes = NULL };

	for (uint64_t round = 1; round <= 3; round++)
		/* Marks that fall into few places. */
		for (uint64_t node = 0; node < NODES; node++)
			assert_true(accept_number(&guard, node * 3, round, round == 2));
	for (uint64_t round = 1; round <= 3; round++)
		for (uint64_t node = 0; node < NODES; node++)
			assert_false(accept_number(&guard, node * 3, round, false));
	assert_int_equal(guard.count, NODES);
	replay_guard_end(&guard);
}
