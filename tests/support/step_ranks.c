/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/step_ranks.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/hung.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "watch/progress.h"

enum { NODES = 3, LIMIT_SECONDS = 60 };

/* What the ranks and the test share. */
typedef struct step_state {
	atomic_bool done[STEP_HARMS], quick; /* `quick`: nobody dies any more */
	atomic_int generation;
	atomic_int arrived[STEP_HARMS]; /* ranks that die, where they do */
} step_state;

typedef struct step {
	test_step *of;
	int fd[NODES], node_of[STEP_RANKS_MAX], nodes;
	char *pages[NODES];
	pid_t pids[STEP_RANKS_MAX]; /* 0: it has ended */
	bool met[STEP_RANKS_MAX];   /* it was seen to meet the others in this generation */
	uint64_t began_ns;          /* of the generation */
	int fine;
	in_port_t port;
} step;

static step_state *shared;
static const test_step *running;
static int own_rank; /* each rank's own */

/* ---- a rank ---------------------------------------------------------------------------- */

void test_step_die(test_moment when, int number)
{
	for (int i = 0; i < STEP_HARMS; i++) {
		const test_harm *h = &running->harms[i];
		if (h->when != when || h->number != number || h->generation != atomic_load(&shared->generation) ||
		    (h->ranks >> own_rank & 1) == 0)
			continue;
		/* A rank that sees another one dead would not come here, and srun would hear of two deaths. */
		atomic_fetch_add(&shared->arrived[i], 1);
		for (int ms = 0; ms < 2000 && atomic_load(&shared->arrived[i]) < __builtin_popcount(h->ranks); ms++)
			usleep(1000);
		atomic_store(&shared->done[i], true);
		kill(getpid(), SIGKILL);
	}
}

void test_step_await_harms(int number)
{
	while (number > running->last - 2 && !atomic_load(&shared->quick))
		usleep(500);
}

/* ---- srun and its agents --------------------------------------------------------------- */

static struct ddp_progress *page_of(const step *s, int rank)
{
	return (struct ddp_progress *)(s->pages[s->node_of[rank]] + rank * DDP_PROGRESS_BYTES);
}

static void open_nodes(step *s)
{
	const size_t bytes = (STEP_RANKS_MAX + 1) * DDP_PROGRESS_BYTES;

	for (int r = 0; r < s->of->ranks; r++) {
		s->node_of[r] = s->of->node_of != NULL ? s->of->node_of[r] : 0;
		s->nodes = s->node_of[r] >= s->nodes ? s->node_of[r] + 1 : s->nodes;
	}
	for (int n = 0; n < NODES; n++) {
		s->fd[n] = memfd_create("pages", 0);
		assert_true(s->fd[n] >= 0 && ftruncate(s->fd[n], (off_t)bytes) == 0);
		s->pages[n] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd[n], 0);
		assert_true(s->pages[n] != MAP_FAILED);
	}
}

static void close_nodes(step *s)
{
	for (int n = 0; n < NODES; n++) {
		munmap(s->pages[n], (STEP_RANKS_MAX + 1) * DDP_PROGRESS_BYTES);
		close(s->fd[n]);
	}
}

static void set_number(const char *name, int number)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", number);
	setenv(name, text, 1);
}

static void write_key(char key[DDP_PROGRESS_KEY_BYTES])
{
	snprintf(key, DDP_PROGRESS_KEY_BYTES, "%064x", atomic_load(&shared->generation));
}

static void set_identity(const step *s, int rank, bool joins)
{
	char key[DDP_PROGRESS_KEY_BYTES];

	write_key(key);
	setenv("DDP_KEY", key, 1);
	setenv("DDP_PLUGIN_VERSION", "test", 1);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	set_number("MASTER_PORT", s->port);
	set_number("RANK", rank);
	set_number("WORLD_SIZE", s->of->ranks);
	/* Nodes are pretended ones of this host. */
	set_number("LOCAL_RANK", rank);
	set_number("LOCAL_WORLD_SIZE", s->of->ranks);
	set_number("NODE_RANK", 0);
	set_number("NNODES", 1);
	set_number("DDP_LOCALITY", s->node_of[rank]);
	set_number("DDP_PROGRESS_FD", s->fd[s->node_of[rank]]);
	set_number("DDP_RESTART_COUNT", s->of->restarts + s->of->joins);
	set_number("DDP_JOINS", joins ? atomic_load(&shared->generation) : 0);
}

static void start_rank(step *s, int rank, bool joins)
{
	memset(page_of(s, rank), 0, DDP_PROGRESS_BYTES);
	fflush(NULL);
	s->pids[rank] = fork();
	assert_true(s->pids[rank] >= 0);
	if (s->pids[rank] > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	own_rank = rank;
	test_be_rank(rank, NULL);
	set_identity(s, rank, joins);
	/* The ordinary way, so that the leak check comes too. */
	exit(s->of->body(rank));
}

static in_port_t free_port(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	close(fd);
	return ntohs(address.sin_port);
}

static void begin_generation(step *s)
{
	s->port = free_port();
	s->began_ns = ddp_now_ns();
	memset(s->met, 0, sizeof(s->met));
	atomic_fetch_add(&shared->generation, 1);
}

/* An agent writes the generation last. */
static void deal(const step *s)
{
	struct ddp_progress_deal dealt = { .restart_count = (uint32_t)(s->of->restarts + s->of->joins), .master_port = s->port,
		                           .master_addr = "127.0.0.1" };

	write_key(dealt.key);
	for (int n = 0; n < s->nodes; n++) {
		struct ddp_progress_node *node = (struct ddp_progress_node *)(s->pages[n] + STEP_RANKS_MAX * DDP_PROGRESS_BYTES);
		node->deal = dealt;
		__atomic_store_n(&node->deal.generation, (uint32_t)atomic_load(&shared->generation), __ATOMIC_RELEASE);
	}
}

static bool survives(const step *s, int rank)
{
	return (__atomic_load_n(&page_of(s, rank)->aside, __ATOMIC_RELAXED) & DDP_PROGRESS_SURVIVES) != 0;
}

/* Whether the rank waits for something that begins with these words. */
static bool waits_for(const step *s, int rank, const char *text)
{
	const struct ddp_progress *page = page_of(s, rank);

	return __atomic_load_n(&page->waiting, __ATOMIC_RELAXED) != 0 && strncmp(page->collective_text, text, strlen(text)) == 0;
}

static void fail_rank(step *s, int rank, const char *what)
{
	test_show_stacks(s->pids[rank]);
	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] > 0)
			kill(s->pids[r], SIGKILL);
	}
	fail_msg("%s: rank %d in generation %d %s", s->of->name, rank, atomic_load(&shared->generation), what);
}

/* Returns whether a rank has failed. *kept: all that run stay, as far as srun knows. */
static bool reap(step *s, bool *kept)
{
	bool died = false;
	int state;

	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] == 0 || waitpid(s->pids[r], &state, WNOHANG) != s->pids[r])
			continue;
		s->pids[r] = 0;
		const bool killed = WIFSIGNALED(state) && WTERMSIG(state) == SIGKILL;
		if (!killed && !(WIFEXITED(state) && (WEXITSTATUS(state) == 0 || WEXITSTATUS(state) == STEP_FAILED)))
			fail_rank(s, r, "has ended by a signal, a failed check or a sanitizer's report");
		*kept = *kept && survives(s, r);
		died = died || killed || WEXITSTATUS(state) != 0;
		s->fine += !killed && WEXITSTATUS(state) == 0;
	}
	return died;
}

static void end_all(step *s)
{
	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] > 0)
			kill(s->pids[r], SIGKILL);
	}
	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] > 0)
			waitpid(s->pids[r], NULL, 0);
		s->pids[r] = 0;
	}
}

static void hurt(step *s, int number)
{
	const test_harm *h = &s->of->harms[number];

	atomic_store(&shared->done[number], true);
	for (int r = 0; r < s->of->ranks; r++) {
		if ((h->ranks >> r & 1) != 0 && s->pids[r] > 0)
			kill(s->pids[r], SIGKILL);
	}
}

static bool is_due(const step *s, const test_harm *h)
{
	const int rank = __builtin_ctz(h->ranks);

	switch (h->when) {
	case WAITS:
		return waits_for(s, rank, "others that srun starts");
	/* Or it was faster than this test, and waits for its end. */
	case MEETS:
		return s->met[rank] || page_of(s, rank)->step > s->of->last - 2;
	case RECEIVES:
		return (s->met[rank] && !waits_for(s, rank, DDP_PROGRESS_FIRST_EXCHANGE)) || page_of(s, rank)->step > s->of->last - 2;
	case PAST_STEP:
		return page_of(s, rank)->step >= h->number;
	case LATER:
		return ddp_now_ns() - s->began_ns >= (uint64_t)h->number * 1000;
	default:
		return false;
	}
}

static void look_at_harms(step *s)
{
	bool quick = true;

	for (int r = 0; r < s->of->ranks; r++)
		s->met[r] = s->met[r] || waits_for(s, r, DDP_PROGRESS_FIRST_EXCHANGE);
	for (int i = 0; i < STEP_HARMS; i++) {
		if (s->of->harms[i].when == NEVER)
			continue;
		if (!atomic_load(&shared->done[i]) && s->of->harms[i].generation == atomic_load(&shared->generation) &&
		    is_due(s, &s->of->harms[i]))
			hurt(s, i);
		quick = quick && atomic_load(&shared->done[i]);
	}
	atomic_store(&shared->quick, quick);
}

static void check_limit(step *s)
{
	const uint64_t seconds = (ddp_now_ns() - s->began_ns) / 1000000000;

	if (seconds < LIMIT_SECONDS || seconds < LIMIT_SECONDS * (uint64_t)test_slowness())
		return;
	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] > 0)
			fail_rank(s, r, "hangs");
	}
}

/* Who dies while it waits for others does so before they are there. */
static void await_waiting(step *s)
{
	bool kept = true;

	for (int i = 0; i < STEP_HARMS; i++) {
		while (s->of->harms[i].when == WAITS && s->of->harms[i].generation == atomic_load(&shared->generation) &&
		       !atomic_load(&shared->done[i])) {
			usleep(200);
			check_limit(s);
			look_at_harms(s);
			while (atomic_load(&shared->done[i]) && !reap(s, &kept))
				usleep(500);
		}
	}
}

/* The ranks that died with their node get another one. */
static void move_ranks(step *s)
{
	for (int i = 0; i < STEP_HARMS; i++) {
		const test_harm *h = &s->of->harms[i];
		if (!h->node || h->generation != atomic_load(&shared->generation) || !atomic_load(&shared->done[i]))
			continue;
		for (int r = 0; r < s->of->ranks; r++)
			s->node_of[r] = (h->ranks >> r & 1) != 0 ? s->nodes : s->node_of[r];
		s->nodes++;
	}
}

static void go_on(step *s, bool kept)
{
	for (int r = 0; r < s->of->ranks; r++)
		kept = kept && (s->pids[r] == 0 || survives(s, r));
	assert_int_equal(s->fine, 0);
	if (kept)
		await_waiting(s);
	else
		end_all(s);
	move_ranks(s);
	begin_generation(s);
	*(kept ? &s->of->joins : &s->of->restarts) += 1;
	if (kept)
		deal(s);
	for (int r = 0; r < s->of->ranks; r++) {
		if (s->pids[r] == 0)
			start_rank(s, r, kept);
	}
}

/* Whether ranks that have come to die have not all died yet. */
static bool die_together(const step *s)
{
	bool left = false;

	for (int i = 0; i < STEP_HARMS; i++) {
		const test_harm *h = &s->of->harms[i];
		const bool all = atomic_load(&shared->arrived[i]) == __builtin_popcount(h->ranks);
		for (int r = 0; r < s->of->ranks && all && h->generation == atomic_load(&shared->generation); r++)
			left = left || ((h->ranks >> r & 1) != 0 && s->pids[r] != 0);
	}
	return left;
}

void test_step_run(test_step *of)
{
	step made = { .of = of }, *s = &made;

	if (shared == NULL)
		shared = test_share(sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	running = of;
	of->joins = of->restarts = 0;
	test_count_run();
	open_nodes(s);
	begin_generation(s);
	for (int r = 0; r < s->of->ranks; r++)
		start_rank(s, r, false);
	while (s->fine < s->of->ranks) {
		bool kept = true;
		look_at_harms(s);
		if (reap(s, &kept)) {
			/* Other ranks may end just now. */
			do {
				usleep(2000);
				reap(s, &kept);
			} while (die_together(s));
			go_on(s, kept);
		}
		check_limit(s);
		usleep(100);
	}
	close_nodes(s);
}
