/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/wire/deal.h"

enum {
	ORDER_BITS = 3,
	LOOK_MS = 1000,     /* an agent looks at its orders so often, should a signal be lost, */
	KILL_LOOK_MS = 20,  /* and at its children while it kills them */
	FORK_TRIES = 20,    /* the user may have no more processes until those of the last generation are reaped: */
	FORK_PAUSE_MS = 50, /* the pause between two tries */
	WAKE = SIGCONT,
	PARENT_DIED = SIGPWR, /* the kernel's word */
};

/* ---- slurmstepd ------------------------------------------------------------------------- */

static size_t shared_bytes(uint32_t count)
{
	return sizeof(struct agents_shared) + count * sizeof(struct agent);
}

bool agents_make(struct agents *agents, uint32_t count, struct error *error)
{
	*agents = (struct agents){ .news = -1 };
	if (count > DEAL_TASKS_MAX)
		return error_set(error, "restart=: a node of the step may have at most %d tasks, and this node has %u",
		                 DEAL_TASKS_MAX, count);
	*agents = (struct agents){ .count = count, .slurmstepd = getpid(), .news = -1 };
	agents->pids = calloc(count, sizeof(*agents->pids));
	agents->shared = mmap(NULL, shared_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (agents->shared == MAP_FAILED)
		agents->shared = NULL;
	else
		agents->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (agents->pids == NULL || agents->news < 0) {
		int reason = errno;
		agents_free(agents);
		return error_set(error, "restart=: this node cannot make agents for %u tasks: %s", count,
		                 strerror(reason));
	}
	/* slurmstepd adopts what an agent that was killed leaves behind. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return true;
}

void agents_free(struct agents *agents)
{
	if (agents->shared != NULL)
		munmap(agents->shared, shared_bytes(agents->count));
	if (agents->news >= 0)
		close(agents->news);
	free(agents->pids);
	*agents = (struct agents){ .news = -1 };
}

void agents_forked(struct agents *agents, uint32_t local_task, pid_t pid)
{
	if (local_task < agents->count)
		agents->pids[local_task] = pid;
}

void agents_reaped(struct agents *agents, uint32_t local_task)
{
	if (local_task < agents->count)
		agents->pids[local_task] = 0;
}

void agents_wake(const struct agents *agents, uint32_t local_task)
{
	child_signal(agents->pids[local_task], WAKE);
}

void agents_order(struct agents *agents, enum agents_order order, uint32_t generation)
{
	uint64_t wanted = (uint64_t)generation << ORDER_BITS | (uint64_t)order;

	if (wanted < atomic_load(&agents->shared->wanted))
		return;
	atomic_store(&agents->shared->wanted, wanted);
	for (uint32_t i = 0; i < agents->count; i++)
		agents_wake(agents, i);
}

enum agents_order agents_ordered(const struct agents *agents, uint32_t *generation)
{
	uint64_t wanted = atomic_load(&agents->shared->wanted);

	*generation = (uint32_t)(wanted >> ORDER_BITS);
	return (enum agents_order)(wanted & ((1u << ORDER_BITS) - 1));
}

bool agents_child_ended(const struct agents *agents, uint32_t local_task, uint32_t generation, int *wait_status)
{
	const struct agent *agent = &agents->shared->agent[local_task];

	if (generation == 0 || atomic_load(&agent->ended) != generation)
		return false;
	*wait_status = atomic_load(&agent->wait_status);
	return true;
}

bool agents_child_never_ran(const struct agents *agents, uint32_t local_task, uint32_t generation)
{
	return generation > 0 && atomic_load(&agents->shared->agent[local_task].unborn) == generation;
}

bool agents_agent_runs(const struct agents *agents, uint32_t local_task)
{
	return child_runs(agents->pids[local_task]);
}

uint32_t agents_ready(const struct agents *agents)
{
	uint32_t ready = 0;

	for (uint32_t i = 0; i < agents->count; i++)
		ready += atomic_load(&agents->shared->agent[i].pid) != 0;
	return ready;
}

uint32_t agents_left(const struct agents *agents)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < agents->count; i++)
		left += agents_agent_runs(agents, i);
	return left;
}

bool agents_agent_clear(const struct agents *agents, uint32_t local_task, uint32_t generation)
{
	const struct agent *agent = &agents->shared->agent[local_task];
	uint32_t ignored, done = agents_ordered(agents, &ignored) == AGENTS_KEEP ? atomic_load(&agent->kept)
	                                                                         : atomic_load(&agent->clear);

	return done >= generation || !agents_agent_runs(agents, local_task);
}

bool agents_clear(const struct agents *agents, uint32_t generation)
{
	for (uint32_t i = 0; i < agents->count; i++)
		if (!agents_agent_clear(agents, i, generation))
			return false;
	return true;
}

bool agents_child_runs(const struct agents *agents, uint32_t local_task)
{
	return atomic_load(&agents->shared->agent[local_task].child) != 0 && agents_agent_runs(agents, local_task);
}

void agents_give_news(const struct agents *agents)
{
	if (agents->shared != NULL)
		(void)eventfd_raise(agents->news);
}

void agents_take_news(const struct agents *agents)
{
	uint64_t ignored;

	while (agents->shared != NULL && read(agents->news, &ignored, sizeof(ignored)) < 0 && errno == EINTR)
		continue;
}

/* ---- the agent -------------------------------------------------------------------------- */

static struct {
	const struct agents *agents;
	struct agent *own;
	pid_t child;            /* 0: there is none, or it was reaped */
	bool ends;              /* the child is being killed */
	uint64_t owed;          /* bit i: SLURM's signal i + 1 came when there was no program for it */
	sigset_t all, before;   /* signals that are blocked in the agent, and in the task */
	struct sigaction on_child; /* the task's */
	struct termios terminal;
	bool has_terminal;      /* srun --pty */
	bool tells;             /* a child was forked last that only tells */
} self;

static bool is_orphan(void)
{
	return getppid() != self.agents->slurmstepd;
}

/* SLURM itself stops and continues all processes of a step that it suspends. A dead parent seems to have sent
   PARENT_DIED. */
static bool is_for_program(const siginfo_t *info)
{
	return info->si_code == SI_USER && info->si_pid == self.agents->slurmstepd && info->si_signo != WAKE &&
	       info->si_signo != SIGTSTP && info->si_signo != PARENT_DIED;
}

/* Others are to end the program that runs, and no later one. */
static bool is_announcement(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGUSR1 || number == SIGUSR2 ||
	       number == SIGXCPU || number >= SIGRTMIN;
}

static void take_signal(int number)
{
	if ((self.child == 0 || self.ends) && is_announcement(number))
		self.owed |= 1ull << (number - 1);
	else if (self.child != 0 && !self.ends && self.agents->shared->hands_on)
		kill(self.child, number);
}

/* Waits for a signal: an order, the end of a child, the end of slurmstepd, or one of SLURM's. False: none came. */
static bool wait_for_signal(long ms)
{
	const struct timespec limit = { ms / 1000, ms % 1000 * 1000000 };
	siginfo_t info;

	if (sigtimedwait(&self.all, &info, &limit) <= 0)
		return false;
	if (is_for_program(&info))
		take_signal(info.si_signo);
	return true;
}

/* Without a handler, the signal would end a program that is about to set one. */
static void hand_on_owed(void)
{
	uint64_t caught;

	if (self.owed == 0 || self.child == 0 || child_never_ran(self.child))
		return;
	caught = self.owed & proc_status(self.child).caught;
	self.owed &= ~caught;
	for (int number = 1; caught != 0; number++, caught >>= 1)
		if ((caught & 1) != 0)
			kill(self.child, number);
}

static void note_end(int wait_status)
{
	self.child = 0;
	atomic_store(&self.own->wait_status, wait_status);
	atomic_store(&self.own->ended, atomic_load(&self.own->begun));
	atomic_store(&self.own->child, 0);
	agents_give_news(self.agents);
}

/* Notes a child that ended before it became the program, as long as the kernel tells of it. */
static void note_unborn(void)
{
	siginfo_t info = { .si_pid = 0 };

	if (self.child != 0 && waitid(P_PID, (id_t)self.child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	    info.si_pid == self.child && child_never_ran(self.child))
		atomic_store(&self.own->unborn, atomic_load(&self.own->begun));
}

/* Reaps all that has ended. False: there is no child any more, dead or alive. */
static bool reap(void)
{
	int wait_status;
	pid_t pid;

	note_unborn();
	while ((pid = waitpid(-1, &wait_status, WNOHANG | __WALL)) > 0)
		if (pid == self.child)
			note_end(wait_status);
	return pid == 0 || errno != ECHILD;
}

/* Kills children until there are none. What a killed child leaves behind becomes the agent's child. So only children
   are killed: the number of a child that is not reaped cannot belong to another process. An inner srun first has the
   time to end its step. */
static void end_all(void)
{
	const uint64_t asks_until_ns = ddp_now_ns() + AGENTS_ASK_MS * 1000000ull;
	struct asked_sruns asked = { .count = 0 };

	self.ends = true;
	while (reap()) {
		kill_children(ddp_now_ns() < asks_until_ns ? &asked : NULL);
		if (reap())
			wait_for_signal(KILL_LOOK_MS);
	}
	self.ends = false;
}

/* Ends as a child with this wait status has ended. */
_Noreturn static void exit_like(int wait_status)
{
	if (WIFSIGNALED(wait_status)) {
		const struct rlimit no_core = { 0, 0 };
		sigset_t only;
		setrlimit(RLIMIT_CORE, &no_core);
		signal(WTERMSIG(wait_status), SIG_DFL);
		kill(getpid(), WTERMSIG(wait_status));
		sigemptyset(&only);
		sigaddset(&only, WTERMSIG(wait_status));
		sigprocmask(SIG_UNBLOCK, &only, NULL);
		_exit(128 + WTERMSIG(wait_status));
	}
	_exit(WEXITSTATUS(wait_status));
}

_Noreturn static void quit(void)
{
	int status = atomic_load(&self.agents->shared->quit_status);

	end_all();
	/* How a program of an earlier generation has ended says nothing of the step. */
	if (status == AGENTS_OWN_STATUS)
		status = atomic_load(&self.own->spare) ? 0 : atomic_load(&self.own->wait_status);
	exit_like(status);
}

/* The last program may have left the terminal to a process group of its own, and in another mode. */
static void take_terminal_back(void)
{
	if (!self.has_terminal)
		return;
	tcsetpgrp(STDIN_FILENO, getpgrp());
	tcsetattr(STDIN_FILENO, TCSANOW, &self.terminal);
}

/* In the new child. */
static void leave_agent(pid_t agent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != agent)
		_exit(1);
	sigaction(SIGCHLD, &self.on_child, NULL);
	sigprocmask(SIG_SETMASK, &self.before, NULL);
}

static pid_t try_fork(void)
{
	pid_t agent = getpid(), pid = -1;

	for (int try = 0; pid < 0 && try < FORK_TRIES; try++) {
		if (try > 0)
			wait_for_signal(FORK_PAUSE_MS);
		pid = fork();
	}
	if (pid == 0)
		leave_agent(agent);
	return pid;
}

/* Whether the child lives and stays. */
static bool child_stays(void)
{
	reap();
	return self.child != 0 && atomic_load(&self.own->stays);
}

/* The signals that a spare got, also those that it has not taken yet, were for the ranks of the generation that
   ends. */
static void forget_signals_of_spare(void)
{
	if (!atomic_load(&self.own->spare))
		return;
	while (wait_for_signal(0))
		continue;
	self.owed = 0;
}

/* Begins a generation. True in its child. */
static bool fork_program(uint32_t generation)
{
	pid_t pid;

	self.tells = child_stays();
	if (!self.tells)
		end_all();
	atomic_store(&self.own->begun, generation);
	if (atomic_load(&self.own->spare))
		return false;
	if (!self.tells) {
		take_terminal_back();
		/* What has come up to now does not reach the child. */
		while (wait_for_signal(0))
			continue;
	}
	pid = try_fork();
	if (pid == 0)
		return true;
	/* If there is no child to tell it, the program waits in vain, and ends. */
	if (self.tells)
		return false;
	if (pid < 0) {
		note_end(W_EXITCODE(1, 0));
		return false;
	}
	self.child = pid;
	atomic_store(&self.own->child, pid);
	agents_give_news(self.agents);
	return false;
}

void agent_become(const struct agents *agents, uint32_t local_task)
{
	const struct sigaction usual = { .sa_handler = SIG_DFL };

	self.agents = agents;
	self.own = &agents->shared->agent[local_task];
	sigfillset(&self.all);
	sigprocmask(SIG_SETMASK, &self.all, &self.before);
	/* If SIGCHLD were ignored, the kernel would keep no status. */
	sigaction(SIGCHLD, &usual, &self.on_child);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_PDEATHSIG, PARENT_DIED);
	/* srun deals the generation meanwhile. */
	atomic_store(&self.own->pid, getpid());
	agents_give_news(self.agents);
}

static void tidy_up(void)
{
	/* If an agent kept the writing end of a standard input, no program would read to the end of that input. */
	proc_close_channels();
	self.has_terminal = tcgetattr(STDIN_FILENO, &self.terminal) == 0;
	title_take("ddp-agent");
}

bool agent_is_known(const struct agents *agents, struct error *error)
{
	if (getppid() == agents->slurmstepd)
		return true;
	return error_set(error, "restart= does not work where SLURM gives tasks a PID namespace (clone_newpid of "
	                 "namespace/linux), or where slurmstepd has ended: leave restart= out");
}

bool agent_child_tells(void)
{
	return self.tells;
}

uint32_t agent_serve(void)
{
	uint32_t generation;

	tidy_up();
	for (;;) {
		enum agents_order order = agents_ordered(self.agents, &generation);
		if (is_orphan()) {
			end_all();
			_exit(1);
		}
		if (order == AGENTS_QUIT)
			quit();
		if (order == AGENTS_RUN && atomic_load(&self.own->begun) < generation) {
			if (fork_program(generation))
				return generation;
			continue;
		}
		if (order == AGENTS_KEEP && atomic_load(&self.own->kept) < generation) {
			forget_signals_of_spare();
			if (!child_stays())
				end_all();
			atomic_store(&self.own->kept, generation);
			agents_give_news(self.agents);
			continue;
		}
		if (order == AGENTS_END && atomic_load(&self.own->clear) < generation) {
			forget_signals_of_spare();
			end_all();
			atomic_store(&self.own->clear, generation);
			agents_give_news(self.agents);
			continue;
		}
		reap();
		hand_on_owed();
		wait_for_signal(LOOK_MS);
	}
}
