/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/wait/cores.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum {
	TURNS = 8,         /* yields to a rank on this core before they part, */
	PART_MS = 2,       /* and how often at most */
	COUNT_MS = 1,      /* how often the kernel is asked for the threads that want to run, which takes 3 us */
	TAKEN_NS = 1000,   /* a yield to nobody takes 0.3 us, one to a rank that looks for messages 2.5 us, */
	HELD_NS = 100000   /* and one to somebody who computes longer than this */
};

/* Has this machine a core for each thread that wants to run? */
static bool cores_suffice_now(void)
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
	return sscanf(text, "%*s %*s %*s %d/", &running) == 1 && running <= cores;
}

bool ddp_cores_suffice(ddp_comm *comm)
{
	const uint64_t now = ddp_now_ns();

	if (comm->run.counted_ns == 0 || now - comm->run.counted_ns >= COUNT_MS * 1000000u) {
		comm->run.suffice = cores_suffice_now();
		comm->run.counted_ns = now;
	}
	return comm->run.suffice;
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
	/* It may need memory. */
	for (int i = 0; i < 10 && sched_setaffinity(0, sizeof(allowed), &allowed) != 0; i++)
		sched_yield();
}

/* The rank with the lower number goes first, lest both go and meet again; the other one after four times as many
   turns. */
static bool is_time_to_part(ddp_comm *comm, const ddp_condition *wait)
{
	const unsigned int turns = comm->run.turns;

	if (turns < TURNS || (turns < 4 * TURNS && wait->missing(comm, wait->argument) < comm->rank))
		return false;
	return ddp_now_ns() - comm->run.parted_ns >= PART_MS * 1000000u;
}

/* On two nodes that are containers of one machine, the scheduler may wake a rank on the core of the rank that sent
   to it. Both then give the core to each other for as long as they exchange small messages, as the scheduler moves
   none that runs for less than a tick, and where most cores were busy lately it does not look for an idle one when
   a sleeper wakes. Neither rank sees that the other one is on its core; a yield lasts longer if somebody was
   there. */
static void yield_between_nodes(ddp_comm *comm, const ddp_condition *wait)
{
	ddp_running *run = &comm->run;
	const uint64_t begin_ns = ddp_now_ns();

	sched_yield();
	const uint64_t took_ns = ddp_now_ns() - begin_ns;
	run->turns = took_ns > TAKEN_NS && took_ns < HELD_NS ? run->turns + 1 : 0;
	if (is_time_to_part(comm, wait) && ddp_cores_suffice(comm)) {
		ddp_core_leave();
		run->turns = 0;
		run->parted_ns = ddp_now_ns();
	}
}

/* Is the rank that is waited for on this core as well, and ready to run? */
static bool shares_core(ddp_comm *comm, const ddp_condition *wait, uint32_t core)
{
	int rank = wait->missing(comm, wait->argument);

	return rank != DDP_NOBODY &&
	       atomic_load(&ddp_lines_of(comm, rank)->yields_on) == core;
}

bool ddp_core_give_up(ddp_comm *comm, const ddp_condition *wait)
{
	_Atomic uint32_t *yields_on = &ddp_lines_own(comm)->yields_on;

	if (comm->node.oversubscribed) {
		sched_yield();
		return true;
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
