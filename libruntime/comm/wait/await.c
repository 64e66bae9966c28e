/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/await.h"

#include <stdio.h>

#include "base/clock.h"
#include "comm/core/doorbell.h"
#include "comm/core/liveness.h"
#include "comm/p2p/p2p.h"
#include "comm/wait/cores.h"
#include "comm/wait/message.h"
#include "comm/wait/verdict.h"
#include "watch/page.h"

enum {
	SPINS_ALONE = 200,         /* 2 to 10 us, while every rank has a core */
	SPINS_OVERSUBSCRIBED = 10, /* who is waited for is likely to wait for this core */
	SPINS_BESIDE = 4,          /* while the program computes in other threads */
	YIELDS = 20,               /* 4 to 10 us; the rank that is waited for may want this core */
	AWAKE_US = 50,             /* with its yields, a rank that has a core for itself stays awake for so long, */
	AWAKE_NET_US = 200,        /* and between nodes for so long */
	VAIN_COST = 8,             /* spins that were of use and that one in vain outweighs */
	VAIN_MOST = 256,           /* if that was exceeded by so much, waits between nodes spin less, */
	VAIN_TRIAL = 64,           /* but for one of so many, as it may be of use again */
	LIVENESS_MS = 100,         /* how often a sleeper looks whether its peers live */
	BUSY_TURNS = 16,           /* how often one that moves messages looks at the clock, */
	BUSY_LOOK_MS = 5,          /* and after what else ends a wait */
	LAST_TURNS = 1000          /* to take what one that is gone has left */
};

static const uint64_t ms_ns = 1000000;

static const char *operation_text(const ddp_comm *comm, char *text, size_t bytes)
{
	char kind[128];

	ddp_collective_describe(comm->run.operation, kind, sizeof(kind));
	if (ddp_kind_is_message(comm->run.operation->kind) ||
	    (comm->run.operation->kind == DDP_BARRIER && comm->run.operation->tag != 0))
		snprintf(text, bytes, "%s", kind);
	else if (comm->run.sequence == 0)
		snprintf(text, bytes, "the opening of the communicator");
	else
		snprintf(text, bytes, "%s #%llu", kind, (unsigned long long)comm->run.sequence);
	return text;
}

/* Tells once in an operation, which has lasted for some microseconds by now. A quicker one is not worth a
   description. */
static void tell_wait(ddp_comm *comm)
{
	struct ddp_progress *page = comm->roster->page;
	bool message;
	char text[160], whole[200];

	/* While a communicator opens there is no operation. */
	if (comm->run.told || page == NULL || comm->run.sequence == 0)
		return;
	message = ddp_kind_is_message(comm->run.operation->kind);
	/* The progress thread waits for messages beside the program. */
	if (message && comm->run.in_thread)
		return;
	comm->run.told = true;
	ddp_collective_describe(comm->run.operation, text, sizeof(text));
	if (message) {
		ddp_page_wait(page, 0, ddp_now_ns(), text);
	} else if (comm->is_world) {
		ddp_page_wait(page, comm->run.sequence, 0, text);
	} else {
		snprintf(whole, sizeof(whole), "%s in a group of %d", text, comm->size);
		ddp_page_wait(page, 0, ddp_now_ns(), whole);
	}
}

void ddp_comm_tell_end(ddp_comm *comm)
{
	if (comm->run.told)
		ddp_page_go_on(comm->roster->page);
	comm->run.told = false;
}

static ddp_status fail_peer(ddp_comm *comm, int rank, const char *how)
{
	char text[160];

	return ddp_comm_break_gone(comm, rank, how, operation_text(comm, text, sizeof(text)));
}

static bool move_p2p(ddp_comm *comm)
{
	return ddp_p2p_pending(comm) && ddp_p2p_progress(comm);
}

/* Will this rank of the node issue nothing more? That of a collective is told better by comparing
   what each has issued. */
static bool has_left(const ddp_comm *comm, int i)
{
	const ddp_node_rank *lines = &comm->node.shared->ranks[i];
	const ddp_operation_kind kind = comm->run.operation->kind;

	return atomic_load(&lines->left) != 0 ||
	       (ddp_kind_is_message(kind) && atomic_load(&lines->ending) != 0);
}

/* Breaks the communicator if a peer of this node has died, or if the one that
   is waited for has left. What it did before it went counts. A peer that has left may have done so because
   another one has died, so the dead come first. */
static ddp_status check_peers(ddp_comm *comm, const ddp_condition *wait)
{
	const ddp_node *node = &comm->node;
	int closed = DDP_NOBODY;

	ddp_node_look(comm);
	for (int i = 0; i < node->size; i++) {
		int rank = node->ranks[i];
		bool left = has_left(comm, i);
		if (i == node->self || (!left && !ddp_node_ended(comm, i)))
			continue;
		for (int turn = 0; turn < LAST_TURNS && move_p2p(comm); turn++)
			continue;
		/* It may have left between the two looks. */
		left = left || has_left(comm, i);
		int missing = wait->missing(comm, wait->argument);
		if (left && missing == rank)
			closed = rank;
		if (!left && missing != DDP_NOBODY)
			return fail_peer(comm, rank, "died");
	}
	if (closed != DDP_NOBODY && wait->missing(comm, wait->argument) == closed)
		return fail_peer(comm, closed, "has closed its communicator");
	return DDP_OK;
}

static uint64_t deadline_ns(ddp_comm *comm)
{
	if (comm->run.deadline_ns == 0)
		comm->run.deadline_ns = ddp_now_ns() + (uint64_t)ddp_timeout_ms(comm) * ms_ns;
	return comm->run.deadline_ns;
}

static ddp_status fail_late(ddp_comm *comm, int rank)
{
	char text[160];

	if (comm->run.operation->kind == DDP_RECV && comm->run.operation->root == DDP_ANY_SOURCE)
		return ddp_comm_break(comm, DDP_ERR_TIMEOUT, comm->rank, "%s: no rank sent a message within %d ms for %s",
		                      ddp_rank_text(comm, comm->rank), ddp_timeout_ms(comm),
		                      operation_text(comm, text, sizeof(text)));
	return ddp_comm_break(comm, DDP_ERR_TIMEOUT, rank,
	                      "%s (pid %lld) did not come within %d ms for %s: is it stopped, or did it "
	                      "take another path through the program?", ddp_rank_text(comm, rank),
	                      (long long)comm->roster->peers[comm->topology.world_ranks[rank]].pid,
	                      ddp_timeout_ms(comm), operation_text(comm, text, sizeof(text)));
}

/* A message that has a timeout of its own may be late before what is waited for is. Others are not late
   before the communicator's timeout has passed here, too. */
static ddp_status check_messages(ddp_comm *comm, uint64_t now)
{
	const ddp_operation *running = comm->run.operation;
	const ddp_request *first = ddp_p2p_first_due(comm);

	if (first == NULL || first == comm->run.awaited || first->operation.timeout_ms == 0 || now < first->deadline_ns)
		return DDP_OK;
	const ddp_operation late = first->operation;
	comm->run.operation = &late;
	const ddp_status status = fail_late(comm, ddp_p2p_peer(comm, first));
	comm->run.operation = running;
	return status;
}

/* Whoever is named at the deadline was sought before, or was found out when
   another rank wanted to know it. */
static ddp_status check_deadline(ddp_comm *comm, const ddp_condition *wait, uint64_t now)
{
	uint64_t deadline = deadline_ns(comm);

	if (now + ddp_verdict_before_ns(comm) < deadline && !ddp_verdict_wanted(comm, now))
		return DDP_OK;
	int missing = wait->missing(comm, wait->argument);
	if (missing == DDP_NOBODY)
		return DDP_OK;
	int late = ddp_verdict_seek(comm, missing, now);
	if (now < deadline || (late == DDP_NOBODY && now < ddp_verdict_end_ns(deadline)))
		return DDP_OK;
	return fail_late(comm, late != DDP_NOBODY ? late : missing);
}

/* Sleeps until a peer rings, or it is time to look after the peers. */
static void sleep_for(ddp_comm *comm, const ddp_condition *wait)
{
	ddp_node_shared *shared = comm->node.shared;
	ddp_node_rank *self = ddp_lines_own(comm);
	uint32_t bell = atomic_load(&self->bell);
	uint64_t now = ddp_now_ns(), timeout_ns = LIVENESS_MS * ms_ns;

	const uint64_t next = ddp_verdict_next_ns(comm, deadline_ns(comm), now);
	if (next < now + timeout_ns)
		timeout_ns = next - now;
	ddp_verdict_wait(comm, now);
	/* The doorbell begins before other threads see this one sleep. So a thread that then wakes this one is
	   heard. */
	ddp_doorbell *doorbell = &comm->roster->doorbell;
	const uint32_t begun = comm->net != NULL ? ddp_doorbell_begin(doorbell) : 0;
	atomic_store(&self->sleeps_until, wait->until);
	atomic_store(&self->sleeps_for, wait->sleeps_for);
	atomic_fetch_add(&shared->sleepers, 1);
	bool moved = move_p2p(comm) || (comm->net != NULL && ddp_net_progress(comm));
	/* Last, as UCX may have ended a transfer without saying that something moved. */
	if (!moved && wait->missing(comm, wait->argument) != DDP_NOBODY &&
	    atomic_load(&shared->failed_by) == 0) {
		if (comm->net == NULL)
			ddp_futex_wait(&self->bell, bell, timeout_ns);
		else if (ddp_net_arm(comm->roster)) {
			const int fd = ddp_net_fd(comm->roster, &timeout_ns);
			ddp_doorbell_sleep(doorbell, begun, fd, timeout_ns);
		}
	}
	if (comm->net != NULL)
		ddp_doorbell_end(doorbell);
	atomic_fetch_sub(&shared->sleepers, 1);
	atomic_store(&self->sleeps_for, DDP_AWAKE);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static ddp_status check_failure(ddp_comm *comm, const ddp_condition *wait)
{
	ddp_status status = ddp_comm_check_silence(comm);

	if (status != DDP_OK || comm->net == NULL)
		return status;
	const int missing = wait->missing(comm, wait->argument);
	const bool lost = missing != DDP_NOBODY && ddp_net_lost(comm, missing);
	/* Messages that it sent before count, and may just have come, also by another thread. */
	const int still = lost ? wait->missing(comm, wait->argument) : missing;
	return ddp_message_check(comm, still, lost && still == missing);
}

/* Lets messages coalesce; a peer's notification ends it. */
static ddp_status coalesce(ddp_comm *comm, const ddp_condition *wait)
{
	ddp_status status = check_failure(comm, wait);

	if (status != DDP_OK)
		return status;
	ddp_doorbell_rest(&comm->roster->doorbell, wait->coalesce_ns);
	return DDP_OK;
}

/* When what ends a wait was last looked for, and how many ends of processes were known then. */
typedef struct looks {
	uint64_t failed_ns, peers_ns;
	uint32_t ends;
} looks;

/* Looks after the peers, when one has ended and otherwise not too often, and after the deadline. */
static ddp_status check_others(ddp_comm *comm, const ddp_condition *wait, uint64_t now, looks *last)
{
	const uint32_t ends = atomic_load(&comm->roster->doorbell.ends);
	ddp_status status = DDP_OK;

	if (ends != last->ends || now - last->peers_ns >= LIVENESS_MS * ms_ns / 2) {
		last->ends = ends;
		last->peers_ns = now;
		status = check_peers(comm, wait);
	}
	if (status == DDP_OK)
		status = check_messages(comm, now);
	return status == DDP_OK ? check_deadline(comm, wait, now) : status;
}

/* One turn of waiting that has lasted. */
static ddp_status pause_once(ddp_comm *comm, const ddp_condition *wait, bool sleep, looks *last)
{
	ddp_status status = check_failure(comm, wait);

	if (status != DDP_OK)
		return status;
	if (!sleep && ddp_core_give_up(comm, wait))
		return DDP_OK;
	tell_wait(comm);
	sleep_for(comm, wait);
	return check_others(comm, wait, ddp_now_ns(), last);
}

/* Messages keep moving, which need not be those that are waited for. */
static ddp_status look_up(ddp_comm *comm, const ddp_condition *wait, looks *last)
{
	uint64_t now = ddp_now_ns();

	if (now - last->failed_ns < BUSY_LOOK_MS * ms_ns)
		return DDP_OK;
	last->failed_ns = now;
	tell_wait(comm);
	ddp_verdict_wait(comm, now);
	ddp_status status = check_failure(comm, wait);
	return status == DDP_OK ? check_others(comm, wait, now, last) : status;
}

static ddp_status give_up(ddp_comm *comm)
{
	if (comm->net != NULL)
		ddp_net_shut_down(comm);
	ddp_p2p_fail(comm);
	return ddp_comm_check(comm);
}

/* Between nodes each look costs system calls, and SPINS_ALONE looks cost some 100 us. If the other rank has
   another core, that is the price for not having to be woken. If the other rank waits for this core, as on two
   nodes that are containers of one machine, it comes later because of the looks. Nobody tells which case it is;
   only the outcome of earlier spins is known. */
static uint64_t spins_of(ddp_comm *comm)
{
	ddp_running *run = &comm->run;

	if (comm->node.oversubscribed)
		return SPINS_OVERSUBSCRIBED;
	if (comm->net == NULL || run->vain_spins < VAIN_MOST || ++run->short_spins % VAIN_TRIAL == 0)
		return SPINS_ALONE;
	return SPINS_OVERSUBSCRIBED;
}

/* Learns from a wait in which nothing moved for `turns`, unless fewer spins would have led to the same. */
static void learn_spinning(ddp_comm *comm, uint64_t spins, uint64_t turns)
{
	int *vain = &comm->run.vain_spins;

	if (spins != SPINS_ALONE || turns <= SPINS_OVERSUBSCRIBED)
		return;
	*vain += turns > spins ? VAIN_COST : -1;
	*vain = *vain < 0 ? 0 : *vain < VAIN_MOST ? *vain : VAIN_MOST;
}

/* Until when does a rank stay awake that has yielded YIELDS times? If it sleeps, it has to be woken: on a virtual
   machine that costs the waker an interrupt of some 10 us, and the sleeper up to 100 us if its core has been halted.
   So it comes late for the next operation, for which the waker sleeps, and so on. On one node it yields no more, as
   further yields would lose a core that other processes want, for longer than a sleep. Between nodes it yields, but
   asks the kernel before. */
static uint64_t awake_until(ddp_comm *comm, uint64_t yielding_since_ns)
{
	/* While the progress thread waits, the program computes. */
	if (comm->node.oversubscribed || comm->run.in_thread || (comm->net != NULL && !ddp_cores_suffice(comm)))
		return yielding_since_ns;
	return yielding_since_ns + (comm->net != NULL ? AWAKE_NET_US : AWAKE_US) * 1000u;
}

ddp_status ddp_comm_await(ddp_comm *comm, const ddp_condition *wait)
{
	/* While the progress thread waits, the program computes. A message comes about each half millisecond, and
	   until then the cores belong to the program. */
	const bool beside = comm->run.in_thread && wait->sleeps_for == DDP_SLEEPS_FOR_NET;
	const uint64_t spins = beside ? SPINS_BESIDE : spins_of(comm);
	bool coalesces = beside && wait->coalesce_ns > 0;
	ddp_status status = DDP_OK;
	looks last = { .ends = 0 };
	uint64_t in_vain = 0, yielding_since_ns = 0, awake_until_ns = 0;

	for (uint64_t i = 0; wait->missing(comm, wait->argument) != DDP_NOBODY && status == DDP_OK; i++) {
		const bool moved = move_p2p(comm) || (comm->net != NULL && ddp_net_progress(comm));
		in_vain += !moved;
		if (moved) {
			if (i % BUSY_TURNS == BUSY_TURNS - 1)
				status = look_up(comm, wait, &last);
		} else if (coalesces) {
			/* The wait coalesces once. If nothing has come meanwhile, the next message wakes us. */
			coalesces = false;
			status = coalesce(comm, wait);
		} else if (i < spins) {
			/* Between nodes a look's system call is pause enough. */
			if (comm->net == NULL)
				relax();
		} else {
			if (yielding_since_ns == 0)
				yielding_since_ns = ddp_now_ns();
			const bool yielded = i >= spins + YIELDS;
			if (yielded && awake_until_ns == 0)
				awake_until_ns = awake_until(comm, yielding_since_ns);
			const bool awake = yielded && !beside && ddp_now_ns() < awake_until_ns;
			if (awake && comm->net == NULL)
				relax();
			else
				status = pause_once(comm, wait, beside || (yielded && !awake), &last);
		}
	}
	if (comm->net != NULL)
		learn_spinning(comm, spins, in_vain);
	ddp_verdict_end(comm);
	return status == DDP_OK ? DDP_OK : give_up(comm);
}

/* ---- transfers between nodes ------------------------------------------------------------ */

typedef struct transfers {
	const ddp_transfer *list;
	int count;
} transfers;

static int missing_transfer(ddp_comm *comm, const void *argument)
{
	const transfers *t = argument;

	(void)comm;
	for (int i = 0; i < t->count; i++) {
		if (!t->list[i].done)
			return t->list[i].peer;
	}
	return DDP_NOBODY;
}

ddp_status ddp_await_transfers_coalescing(ddp_comm *comm, const ddp_transfer *list, int count,
                                          uint64_t coalesce_ns)
{
	const transfers t = { list, count };

	/* Most waits of an operation find everything done. */
	if (missing_transfer(comm, &t) == DDP_NOBODY)
		return DDP_OK;
	const ddp_condition condition = { .missing = missing_transfer, .argument = &t,
	                                  .sleeps_for = DDP_SLEEPS_FOR_NET, .coalesce_ns = coalesce_ns };

	return ddp_comm_await(comm, &condition);
}

ddp_status ddp_await_transfers(ddp_comm *comm, const ddp_transfer *list, int count)
{
	return ddp_await_transfers_coalescing(comm, list, count, 0);
}
