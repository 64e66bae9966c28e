/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/verdict.h"

#include "comm/core/comm.h"
#include "comm/net/net.h"

enum {
	/* One that runs says so every 100 ms, if the machine has a core for it. The
	   limits for this, of which it is a part of the timeout between them. */
	SILENT_LEAST_MS = 300,
	SILENT_MOST_MS = 5000,
	SILENT_PART = 4,
	SEEK_LEAST_MS = 1000, /* so long before a deadline ranks seek, or longer */
	WANTED_MS = 1000, /* for so long an inquiry counts */
	ASK_MS = 100,     /* how often ranks of other nodes are asked */
	CERTAIN_MS = 200, /* so long the end of the chain must stay the same */
	AFTER_MS = 200    /* a wait may last so much longer than its timeout */
};

static uint64_t ns(int ms)
{
	return (uint64_t)ms * 1000000;
}

static int silent_ms(const ddp_comm *comm)
{
	int part_ms = ddp_timeout_ms(comm) / SILENT_PART;

	if (part_ms < SILENT_LEAST_MS)
		return SILENT_LEAST_MS;
	return part_ms < SILENT_MOST_MS ? part_ms : SILENT_MOST_MS;
}

uint64_t ddp_verdict_before_ns(const ddp_comm *comm)
{
	const int twice_ms = 2 * silent_ms(comm);

	return ns(twice_ms > SEEK_LEAST_MS ? twice_ms : SEEK_LEAST_MS);
}

uint64_t ddp_verdict_end_ns(uint64_t deadline_ns)
{
	return deadline_ns + ns(AFTER_MS);
}

uint64_t ddp_verdict_next_ns(const ddp_comm *comm, uint64_t deadline_ns, uint64_t now)
{
	const uint64_t times[] = { deadline_ns - ddp_verdict_before_ns(comm), deadline_ns, comm->run.chain.certain_ns,
	                           ddp_verdict_end_ns(deadline_ns) };
	uint64_t next = UINT64_MAX;

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		if (times[i] > now && times[i] < next)
			next = times[i];
	}
	return next;
}

/* Times of other processes may be a little later than the caller's. */
static bool older(uint64_t at_ns, uint64_t now, int ms)
{
	return at_ns + ns(ms) < now;
}

/* ---- what this rank tells --------------------------------------------------------------- */

/* Does the program itself wait? Messages that the progress thread waits for
   beside the program keep nobody from coming. */
static bool program_waits(ddp_comm *comm)
{
	bool message = ddp_kind_is_message(comm->run.operation->kind);

	return !message || !comm->run.in_thread || ddp_requests_awaited(comm);
}

void ddp_verdict_wait(ddp_comm *comm, uint64_t now)
{
	if (!program_waits(comm)) {
		ddp_verdict_end(comm);
		return;
	}
	comm->run.chain.waits = true;
	atomic_store_explicit(&ddp_lines_own(comm)->waits_ns, now, memory_order_release);
}

void ddp_verdict_end(ddp_comm *comm)
{
	if (!comm->run.chain.waits)
		return;
	comm->run.chain = (ddp_chain){ .missing = DDP_NOBODY, .end = DDP_NOBODY };
	atomic_store(&ddp_lines_own(comm)->waits_ns, 0);
	atomic_store(&ddp_lines_own(comm)->names, 0);
}

bool ddp_verdict_wanted(const ddp_comm *comm, uint64_t now)
{
	return !older(atomic_load(&ddp_lines_own(comm)->wanted_ns), now, WANTED_MS);
}

/* ---- the chain --------------------------------------------------------------------------- */

static ddp_answer ask_remote(ddp_comm *comm, int rank, uint64_t now)
{
	ddp_chain *chain = &comm->run.chain;

	if (older(chain->asked_ns, now, ASK_MS)) {
		chain->asked_ns = now;
		ddp_net_inquire(comm, rank);
	}
	ddp_answer answer = ddp_net_answer_of(comm, rank);
	/* Until the rank has had its time to answer, it counts as a rank that runs. */
	if (answer.at_ns < chain->since_ns)
		answer = (ddp_answer){ .at_ns = chain->since_ns, .waits = true, .names = DDP_NOBODY };
	return answer;
}

/* Returns where the chain ends, as far as the rank that is waited for knows. */
static int end_of(const ddp_comm *comm, int missing, const ddp_answer *answer, uint64_t now)
{
	if (!answer->waits || older(answer->at_ns, now, silent_ms(comm)))
		return missing;
	/* This rank has been silent itself, but has come. */
	return answer->names == comm->rank ? DDP_NOBODY : answer->names;
}

int ddp_verdict_seek(ddp_comm *comm, int missing, uint64_t now)
{
	ddp_chain *chain = &comm->run.chain;

	if (chain->missing != missing) {
		chain->missing = missing;
		chain->end = DDP_NOBODY;
		chain->since_ns = now;
		chain->asked_ns = 0;
		atomic_store(&ddp_lines_own(comm)->names, 0);
	}
	const ddp_answer answer = ddp_is_local(comm, missing)
		? ddp_lines_inquire(ddp_lines_of(comm, missing), now)
		: ask_remote(comm, missing, now);
	int end = end_of(comm, missing, &answer, now);
	if (end < 0 || end >= comm->size)
		end = DDP_NOBODY;
	if (end != chain->end) {
		chain->end = end;
		chain->certain_ns = now + ns(CERTAIN_MS);
		if (chain->waits)
			atomic_store(&ddp_lines_own(comm)->names, end + 1);
	}
	return now >= chain->certain_ns ? end : DDP_NOBODY;
}
