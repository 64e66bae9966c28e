/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum {
	TURNS = 8,         /* yields to a rank on this core before they part */
	PARTED_MOST = 9,   /* doublings of that, after as many attempts in vain */
	TAKEN_NS = 1000,   /* a yield to nobody takes 0.3 us, one to a rank that looks for messages 2.5 us, */
	HELD_NS = 100000,  /* and one to somebody who gives nothing back soon longer than this; */
	BUSY_NS = 1000000, /* whoever keeps the core for so long computes */
	BUSY_WAITS = 256,  /* for which sleeping is better: whoever wakes soon gets the core back */
	TAKEN_COST = 16,   /* yields to nobody that one to somebody outweighs */
	TAKEN_MOST = 64
};

bool ddp_core_is_wanted(const ddp_running *run)
{
	/* One yield alone may have met an interrupt. */
	return run->taken > TAKEN_COST;
}

/* Is a core of this machine idle, as far as the kernel tells at once? */
static bool some_core_is_idle(void)
{
	const long cores = sysconf(_SC_NPROCESSORS_ONLN);
	char text[128];
	int running;

	const int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	const ssize_t length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	/* Three averages, then how many run or want to. */
	return sscanf(text, "%*f %*f %*f %d/", &running) == 1 && running <= cores;
}

void ddp_core_leave(void)
{
	const int core = sched_getcpu();
	cpu_set_t allowed;

	if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return;
	cpu_set_t others = allowed;
	CPU_CLR((size_t)core, &others);
	if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0)
		return;
	(void)sched_setaffinity(0, sizeof(allowed), &allowed);
}

/* The rank with the lower number goes, and soon; the other one stays, lest they meet again. */
static unsigned int turns_before_parting(ddp_comm *comm, const ddp_condition *wait)
{
	const unsigned int turns = (unsigned int)TURNS << comm->run.parted;

	return wait->missing(comm, wait->argument) > comm->rank ? turns : 4 * turns;
}

/*
 * On two nodes that are containers of one machine, the scheduler may wake a rank on the core of the rank that sent
 * to it. Both then give the core to each other for as long as they exchange small messages, as the scheduler moves
 * none that runs for less than a tick, and where most cores were busy lately it does not look for an idle one when
 * a sleeper wakes. Neither rank sees that the other one is on its core; a yield lasts longer if somebody was
 * there.
 */
static void yield_between_nodes(ddp_comm *comm, const ddp_condition *wait)
{
	ddp_running *run = &comm->run;
	const uint64_t begin_ns = ddp_now_ns();

	sched_yield();
	const uint64_t took_ns = ddp_now_ns() - begin_ns;
	if (took_ns > BUSY_NS) {
		run->busy = BUSY_WAITS;
		run->taken = 0;
	}
	if (took_ns > HELD_NS)
		return;
	const bool taken = took_ns > TAKEN_NS;
	run->taken += taken ? TAKEN_COST : -1;
	run->taken = run->taken < 0 ? 0 : run->taken < TAKEN_MOST ? run->taken : TAKEN_MOST;
	if (!taken) {
		run->turns = 0;
		if (!ddp_core_is_wanted(run))
			run->parted = 0;
	} else if (++run->turns >= turns_before_parting(comm, wait)) {
		run->turns = 0;
		if (some_core_is_idle()) {
			ddp_core_leave();
			run->parted += run->parted < PARTED_MOST;
			run->taken = TAKEN_COST;
		}
	}
}

/* Is the rank that is waited for on this core as well, and ready to run? */
static bool shares_core(ddp_comm *comm, const ddp_condition *wait, uint32_t core)
{
	int rank = wait->missing(comm, wait->argument);

	return rank != DDP_NOBODY &&
	       atomic_load(&comm->node.shared->ranks[comm->topology.local_of[rank]].yields_on) == core;
}

bool ddp_core_give_up(ddp_comm *comm, const ddp_condition *wait)
{
	_Atomic uint32_t *yields_on = &comm->node.shared->ranks[comm->node.self].yields_on;

	if (comm->node.oversubscribed) {
		sched_yield();
		return true;
	}
	if (comm->net != NULL && comm->run.busy > 0) {
		comm->run.busy--;
		return false;
	}
	if (comm->net != NULL) {
		yield_between_nodes(comm, wait);
		return true;
	}
	/* Two ranks that only ever yield to each other stay on one core for long, though another is idle. */
	uint32_t core = (uint32_t)sched_getcpu() + 1;
	if (shares_core(comm, wait, core) && ++comm->run.turns % TURNS == 0)
		return false;
	atomic_store(yields_on, core);
	sched_yield();
	atomic_store(yields_on, 0);
	return true;
}
