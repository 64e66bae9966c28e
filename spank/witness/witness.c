/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/witness.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"

enum {
	PARENT_DIED = SIGPWR, /* the kernel's word to the witness; Slurm sends no such signal */
	LOOKS_MAX = 100,      /* 1 ms apart */
	END_MS = 2000,        /* so long slurmstepd waits for the end of both */
	MAKING_MS = 1000,     /* so long other tasks wait for the one that makes the witness, */
	MAKING_LOOK_US = 100, /* and look so often */
	KEEPER_MS = 50,       /* a step that has ended by then has no keeper, which costs a fork */
	WITNESSES_MAX = 16,   /* a keeper makes no more: slurmstepd may not reap them before the step's end */
	RETRY_MS = 1000,      /* after which a keeper without a witness tries again, and then twice that */
	RETRY_MAX_MS = 60000,
};

/* Where a witness or a keeper is. */
struct place {
	struct witness *witness;
	const struct witness_words *words;
	pid_t slurmstepd;
	pid_t tasks; /* their process group */
};

/* slurmstepd is gone, and with it who would tell srun of its tasks' ends. */
static void tell_of_slurmstepd(const struct witness_words *words, pid_t tasks)
{
	const struct relay_news news = {
		.text = words->text,
		.generation = words->generation != NULL ? atomic_load(words->generation) : 0,
		.wait_status = SIGKILL,
		.facts = { .end = END_BY_KILL, .sent = SENT_NOTHING },
	};

	relay_tell(&words->relay, words->address, &news);
	if (words->kill_tasks)
		kill(-tasks, SIGKILL);
}

/* Slurm's signals come from slurmstepd, and root's from who may speak for Slurm,
   as systemd does when the machine goes down. Any other sender is a program of the
   user's, which has signalled its group or all that it may. */
static bool is_sent_by_slurm(const siginfo_t *info, pid_t slurmstepd)
{
	return info->si_code == SI_USER &&
	       (info->si_pid == slurmstepd || (info->si_uid == 0 && getuid() != 0));
}

/* A signal, 0 when it is time for a look, or -1. */
static int wait_signal(const sigset_t *all, int look_ms, siginfo_t *info)
{
	const struct timespec limit = { look_ms / 1000, look_ms % 1000 * 1000000L };
	int number = look_ms > 0 ? sigtimedwait(all, info, &limit) : sigwaitinfo(all, info);

	return number < 0 && errno == EAGAIN ? 0 : number;
}

static void note_signal(const struct place *place, const siginfo_t *info)
{
	if (!is_sent_by_slurm(info, place->slurmstepd))
		return;
	if (judge_is_stop(info->si_signo))
		atomic_store(&place->witness->asked_to_stop, true);
	if (judge_is_user_signal(info->si_signo) && info->si_signo != PARENT_DIED)
		atomic_store(&place->witness->word_ns, ddp_now_ns());
}

/* In a new process, in which all signals are blocked. */
static void leave_task(const struct place *place, const char *name)
{
	/* Out of reach of a task that signals, or kills, its own process group. */
	if (!place->words->stay_in_group)
		setpgid(0, 0);
	prctl(PR_SET_DUMPABLE, 0);
	title_take(name);
	owner_close_files(0);
	prctl(PR_SET_PDEATHSIG, PARENT_DIED);
}

/* A fork, but the child is the parent's sibling: glibc has no call for that. The kernel notes the child's
   number before the child runs, and also if somebody kills the parent meanwhile. */
static pid_t fork_sibling(_Atomic pid_t *number)
{
	const long flags = CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD;

#ifdef __s390__
	return (pid_t)syscall(SYS_clone, 0, flags, number, 0, 0);
#else
	return (pid_t)syscall(SYS_clone, flags, 0, number, 0, 0);
#endif
}

static void keep_witnesses(const struct place *place);

/* In the witness. Returns when to try again; UINT64_MAX: never. */
static uint64_t make_keeper(const struct place *place)
{
	/* Without it the keeper would not see the witness's end. */
	int process = handle_open(place->slurmstepd);
	pid_t pid;

	if (process < 0)
		return UINT64_MAX;
	close(process);
	pid = fork_sibling(&place->witness->keeper);
	if (pid == 0) {
		keep_witnesses(place);
		/* Its end is not that of one who was killed. */
		atomic_store(&place->witness->keeper, 0);
		_exit(0);
	}
	/* The user may have no more processes now. */
	return pid > 0 ? UINT64_MAX : ddp_now_ns() + RETRY_MS * NS_PER_MS;
}

/* How long the witness waits for a signal; 0: for ever. */
static int wait_ms(int look_ms, uint64_t keeper_ns)
{
	uint64_t now_ns = ddp_now_ns(), left_ms = keeper_ns > now_ns ? (keeper_ns - now_ns) / NS_PER_MS + 1 : 1;

	if (keeper_ns == UINT64_MAX || (look_ms > 0 && (uint64_t)look_ms < left_ms))
		return look_ms;
	return (int)left_ms;
}

static void watch_signals(const struct place *place, bool has_keeper)
{
	const struct witness_words *words = place->words;
	uint64_t keeper_ns = has_keeper ? UINT64_MAX : ddp_now_ns() + KEEPER_MS * NS_PER_MS;
	int look_ms = words->look_ms;
	bool suspended = false;
	sigset_t all;

	sigfillset(&all);
	leave_task(place, "ddp-witness");
	while (getppid() == place->slurmstepd) {
		siginfo_t info = { .si_signo = 0 };
		int number = wait_signal(&all, wait_ms(look_ms, keeper_ns), &info);
		if (number == 0 && ddp_now_ns() >= keeper_ns) {
			keeper_ns = make_keeper(place);
			continue;
		}
		if (number < 0 && errno != EINTR)
			return;
		if (number > 0)
			note_signal(place, &info);
		/* The ranks stop by it: Slurm sends it 2 s before the SIGSTOP with which it
		   suspends a step, and that stops the witness, too. */
		suspended = number == SIGTSTP || (suspended && number != SIGCONT);
		if (look_ms > 0 && !suspended)
			look_ms = words->look(words->about, atomic_load(&place->witness->asked_to_stop));
	}
	tell_of_slurmstepd(words, place->tasks);
}

/* In the keeper. Gives what tells of the end of the new witness; -1: there is none, as where the user may have no
   more processes. */
static int make_another(const struct place *place)
{
	const struct witness_words *words = place->words;
	pid_t pid = fork_sibling(&place->witness->pid);
	int process;

	if (pid == 0) {
		if (words->look_ms > 0 && words->begin_again != NULL)
			words->begin_again(words->about);
		watch_signals(place, true);
		_exit(0);
	}
	process = pid > 0 ? handle_open(pid) : -1;
	/* Nobody would see its end. */
	if (pid > 0 && process < 0 && errno != ESRCH)
		kill(pid, SIGKILL);
	return process;
}

/* A keeper and its witness. */
struct kept {
	int process;  /* tells of the end of the witness; -1: there is none */
	int made;
	int retry_ms; /* until the next try; -1: there is none */
	bool told;    /* that nobody looks any more */
};

static void replace_witness(const struct place *place, struct kept *kept)
{
	const struct witness_words *words = place->words;

	if (kept->process >= 0)
		close(kept->process);
	kept->process = kept->made < WITNESSES_MAX ? make_another(place) : -1;
	if (kept->process >= 0) {
		*kept = (struct kept){ .process = kept->process, .made = kept->made + 1, .retry_ms = -1 };
		return;
	}
	if (!kept->told)
		kept->told = words->look_ms == 0 || words->give_up == NULL || words->give_up(words->about);
	if (kept->told && kept->made == WITNESSES_MAX)
		kept->retry_ms = -1;
	else if (kept->retry_ms < 0)
		kept->retry_ms = RETRY_MS;
	else
		kept->retry_ms = kept->retry_ms < RETRY_MAX_MS / 2 ? kept->retry_ms * 2 : RETRY_MAX_MS;
}

/* Notes the same signals, and makes another witness when somebody has killed the last one. Without one it tells itself
   if slurmstepd dies. */
static void keep_witnesses(const struct place *place)
{
	enum { SIGNALS, SLURMSTEPD, WITNESS, COUNT };
	const struct timespec now = { .tv_sec = 0 };
	struct kept kept = { .retry_ms = -1 };
	struct pollfd ready[COUNT];
	sigset_t all;

	sigfillset(&all);
	leave_task(place, "ddp-keeper");
	ready[SIGNALS] = (struct pollfd){ .fd = signalfd(-1, &all, SFD_CLOEXEC), .events = POLLIN };
	ready[SLURMSTEPD] = (struct pollfd){ .fd = handle_open(place->slurmstepd), .events = POLLIN };
	kept.process = handle_open(atomic_load(&place->witness->pid));
	if (kept.process < 0)
		kept.retry_ms = RETRY_MS;
	while (getppid() == place->slurmstepd) {
		siginfo_t info;
		int count;
		ready[WITNESS] = (struct pollfd){ .fd = kept.process, .events = POLLIN };
		count = poll(ready, COUNT, kept.retry_ms);
		if (count < 0 && errno != EINTR)
			return;
		while (sigtimedwait(&all, &info, &now) > 0)
			note_signal(place, &info);
		if (count <= 0 ? kept.process >= 0 || count < 0 : kept.process < 0 || ready[WITNESS].revents == 0)
			continue;
		/* Slurm, which kills both, does so within this time. */
		pause_ms(LOSS_MS);
		replace_witness(place, &kept);
	}
	if (kept.process < 0)
		tell_of_slurmstepd(place->words, place->tasks);
}

bool witness_is_made(const struct witness *witness)
{
	const uint64_t deadline_ns = ddp_now_ns() + MAKING_MS * NS_PER_MS;
	enum witness_making made;

	/* Somebody may have killed the task that makes it. */
	while ((made = atomic_load(&witness->made)) == WITNESS_BEGUN && ddp_now_ns() < deadline_ns)
		usleep(MAKING_LOOK_US);
	return made != WITNESS_NONE;
}

void witness_make(struct witness *witness, const struct witness_words *words)
{
	enum witness_making none = WITNESS_NONE;
	const struct place place = { .witness = witness, .words = words, .slurmstepd = getppid(), .tasks = getpgrp() };
	sigset_t all, before;

	if (!atomic_compare_exchange_strong(&witness->made, &none, WITNESS_BEGUN)) {
		witness_is_made(witness);
		return;
	}
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	if (fork_sibling(&witness->pid) == 0) {
		watch_signals(&place, false);
		_exit(0);
	}
	atomic_store(&witness->made, WITNESS_DONE);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

/* In slurmstepd. */
static bool has_ended(pid_t pid)
{
	if (pid > 0 && contained_here())
		return contained_sees_end(pid);
	/* slurmstepd may have reaped it among the tasks. */
	return pid > 0 && !child_runs(pid);
}

pid_t witness_present(const struct witness *witness)
{
	pid_t pid = atomic_load(&witness->pid), keeper = atomic_load(&witness->keeper);

	if (pid > 0 && !has_ended(pid))
		return pid;
	return keeper > 0 && !has_ended(keeper) ? keeper : 0;
}

bool witness_was_killed(const struct witness *witness)
{
	return atomic_load(&witness->pid) > 0 && witness_present(witness) == 0;
}

/* Returns what the signals of the mask ask for. */
static enum slurm_sent sent_by(uint64_t mask)
{
	enum slurm_sent sent = SENT_NOTHING;

	for (int number = 1; number < 64; number++) {
		if ((mask >> (number - 1) & 1) == 0)
			continue;
		if (judge_is_stop(number))
			return SENT_STOP;
		if (judge_is_user_signal(number) && number != PARENT_DIED)
			sent = SENT_SIGNAL;
	}
	return sent;
}

/* No end is a consequence of a word that came longer ago. */
static bool has_word(const struct witness *witness)
{
	uint64_t word_ns = atomic_load(&witness->word_ns);

	return word_ns != 0 && ddp_now_ns() - word_ns < SIGNAL_SECONDS * 1000000000ull;
}

/* A signal waits for the witness, and is noted once the witness has run and
   found that it is Slurm's. In between it is in neither place, but then the witness
   runs: it is looked at again, for as long as a busy machine may keep it from its next
   line. Of a signal that still waits then, nobody knows that it is not Slurm's. */
enum slurm_sent witness_sent(const struct witness *witness)
{
	enum slurm_sent waits = SENT_NOTHING;
	struct proc_status status = { .runs = true };

	if (atomic_load(&witness->pid) == 0)
		return SENT_UNKNOWN;
	for (int look = 0; (status.runs || waits != SENT_NOTHING) && look < LOOKS_MAX; look++) {
		status = proc_status(witness_present(witness));
		waits = sent_by(status.pending);
		if (atomic_load(&witness->asked_to_stop))
			return SENT_STOP;
		if (status.runs || waits != SENT_NOTHING)
			pause_ms(1);
	}
	if (waits == SENT_STOP)
		return SENT_STOP;
	if (witness_was_killed(witness))
		return SENT_KILL;
	return waits == SENT_SIGNAL || has_word(witness) ? SENT_SIGNAL : SENT_NOTHING;
}

static void kill_process(pid_t pid)
{
	if (pid > 0 && contained_here())
		contained_signal(pid, SIGKILL);
	else
		child_signal(pid, SIGKILL);
}

static void reap_process(pid_t pid, uint64_t deadline_ns)
{
	uint64_t now_ns = ddp_now_ns();
	int left_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / NS_PER_MS) : 0;

	if (pid > 0 && !contained_here())
		child_reap(pid, left_ms, NULL);
	/* Its parent reaps it, at the latest by its own end. */
	while (pid > 0 && contained_here() && !contained_sees_end(pid) && ddp_now_ns() < deadline_ns)
		pause_ms(1);
}

void witness_end(struct witness *witness)
{
	const uint64_t deadline_ns = ddp_now_ns() + END_MS * NS_PER_MS;
	pid_t keeper, pid;

	/* Both are killed before one is waited for, so that they end beside each other. Until it is dead, either may make
	   the other one. */
	do {
		keeper = atomic_load(&witness->keeper);
		pid = atomic_load(&witness->pid);
		kill_process(keeper);
		kill_process(pid);
		reap_process(keeper, deadline_ns);
		reap_process(pid, deadline_ns);
	} while (atomic_load(&witness->pid) != pid || atomic_load(&witness->keeper) != keeper);
}
