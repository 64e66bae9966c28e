#include "comm/verdict.h"

#include "comm/net.h"
#include "comm/pairs.h"

enum {
	/* One that runs says so every 100 ms, if the machine has a core for it. The
	   limits for this, of which it is a part of the timeout between them. */
	SILENT_LEAST_MS = 1000,
	SILENT_MOST_MS = 5000,
	SILENT_PART = 4,
	WANTED_MS = 1000, /* for so long an inquiry counts */
	ASK_MS = 100,     /* how often ranks of other nodes are asked */
	CERTAIN_MS = 200  /* so long the end of the chain must stay the same */
};

static uint64_t ns(int ms)
{
	return (uint64_t)ms * 1000000;
}

static int silent_ms(const ddp_comm *comm)
{
	int part_ms = comm->timeout_ms / SILENT_PART;

	if (part_ms < SILENT_LEAST_MS)
		return SILENT_LEAST_MS;
	return part_ms < SILENT_MOST_MS ? part_ms : SILENT_MOST_MS;
}

uint64_t ddp_verdict_before_ns(const ddp_comm *comm)
{
	int half_ms = comm->timeout_ms / 2, twice_ms = 2 * silent_ms(comm);

	return ns(half_ms < twice_ms ? half_ms : twice_ms);
}

uint64_t ddp_verdict_after_ns(const ddp_comm *comm)
{
	return ns(2 * silent_ms(comm));
}

/* Times of other processes may be a little later than the caller's. */
static bool older(uint64_t at_ns, uint64_t now, int ms)
{
	return at_ns + ns(ms) < now;
}

static ddp_node_rank *own_lines(const ddp_comm *comm)
{
	return &comm->node.shared->ranks[comm->node.self];
}

/* ---- what this rank tells --------------------------------------------------------------- */

/* Does the program itself wait? Messages that the progress thread waits for
   beside the program keep nobody from coming. */
static bool program_waits(ddp_comm *comm)
{
	bool message = comm->running->kind == DDP_SEND || comm->running->kind == DDP_RECV;

	return !message || !comm->in_thread || ddp_requests_awaited(comm);
}

void ddp_verdict_wait(ddp_comm *comm, uint64_t now)
{
	if (!program_waits(comm)) {
		ddp_verdict_end(comm);
		return;
	}
	comm->chain.waits = true;
	atomic_store_explicit(&own_lines(comm)->waits_ns, now, memory_order_release);
}

void ddp_verdict_end(ddp_comm *comm)
{
	if (!comm->chain.waits)
		return;
	comm->chain = (ddp_chain){ .missing = DDP_NOBODY, .end = DDP_NOBODY };
	atomic_store(&own_lines(comm)->waits_ns, 0);
	atomic_store(&own_lines(comm)->names, 0);
}

bool ddp_verdict_wanted(const ddp_comm *comm, uint64_t now)
{
	return !older(atomic_load(&own_lines(comm)->wanted_ns), now, WANTED_MS);
}

static ddp_answer answer_of(const ddp_node_rank *lines)
{
	uint64_t waits_ns = atomic_load_explicit(&lines->waits_ns, memory_order_acquire);

	return (ddp_answer){ .at_ns = waits_ns, .waits = waits_ns != 0,
	                     .names = atomic_load(&lines->names) - 1 };
}

ddp_answer ddp_verdict_answer(ddp_comm *comm, uint64_t now)
{
	atomic_store(&own_lines(comm)->wanted_ns, now);
	return answer_of(own_lines(comm));
}

/* ---- the chain --------------------------------------------------------------------------- */

static ddp_answer ask_local(ddp_comm *comm, int rank, uint64_t now)
{
	ddp_node_rank *lines = &comm->node.shared->ranks[comm->local_of[rank]];

	atomic_store(&lines->wanted_ns, now);
	return answer_of(lines);
}

static ddp_answer ask_remote(ddp_comm *comm, int rank, uint64_t now)
{
	ddp_chain *chain = &comm->chain;

	if (older(chain->asked_ns, now, ASK_MS)) {
		chain->asked_ns = now;
		ddp_net_inquire(comm, rank);
	}
	ddp_answer answer = ddp_net_answer_of(comm, rank);
	/* Until it has had its time to answer, it is taken for one that runs. */
	if (answer.at_ns < chain->since_ns)
		answer = (ddp_answer){ .at_ns = chain->since_ns, .waits = true, .names = DDP_NOBODY };
	return answer;
}

/* Where the chain ends, as far as the one that is waited for knows. */
static int end_of(const ddp_comm *comm, int missing, const ddp_answer *answer, uint64_t now)
{
	if (!answer->waits || older(answer->at_ns, now, silent_ms(comm)))
		return missing;
	/* This rank has been silent itself, but has come. */
	return answer->names == comm->rank ? DDP_NOBODY : answer->names;
}

int ddp_verdict_seek(ddp_comm *comm, int missing, uint64_t now)
{
	ddp_chain *chain = &comm->chain;

	if (chain->missing != missing) {
		chain->missing = missing;
		chain->end = DDP_NOBODY;
		chain->since_ns = now;
		chain->asked_ns = 0;
		atomic_store(&own_lines(comm)->names, 0);
	}
	const ddp_answer answer = ddp_is_local(comm, missing) ? ask_local(comm, missing, now)
	                                                       : ask_remote(comm, missing, now);
	int end = end_of(comm, missing, &answer, now);
	if (end < 0 || end >= comm->size)
		end = DDP_NOBODY;
	if (end != chain->end) {
		chain->end = end;
		chain->certain_ns = now + ns(CERTAIN_MS);
		if (chain->waits)
			atomic_store(&own_lines(comm)->names, end + 1);
	}
	return now >= chain->certain_ns ? end : DDP_NOBODY;
}
