#include "spank/failure/witness.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/contained.h"
#include "spank/failure/timeline.h"
#include "spank/pause.h"

enum {
	PARENT_DIED = SIGPWR, /* the kernel's word to the witness; Slurm sends no such signal */
	LOOKS_MAX = 100,      /* 1 ms apart */
};

static void close_everything(void)
{
	long count = sysconf(_SC_OPEN_MAX);

#ifdef SYS_close_range
	if (syscall(SYS_close_range, 0u, ~0u, 0u) == 0)
		return;
#endif
	for (long fd = 0; fd < (count > 0 ? count : 1024); fd++)
		close((int)fd);
}

/* Not slurmstepd's name: who looks for that, to end one, is not to find this. The
   title that ps shows lies in memory where the kernel says in /proc. */
static void take_name(void)
{
	static const char name[] = "ddp-witness";
	unsigned long start = 0, end = 0;
	char text[1024], *field;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	prctl(PR_SET_NAME, name);
	text[got > 0 ? got : 0] = '\0';
	/* Behind the command in parentheses comes field 3; these are 48 and 49. */
	field = strrchr(text, ')');
	for (int i = 2; field != NULL && i < 48; i++)
		field = strchr(field + 1, ' ');
	if (field == NULL || sscanf(field, "%lu %lu", &start, &end) != 2 || end <= start ||
	    end - start < sizeof(name))
		return;
	memset((void *)start, 0, end - start);
	memcpy((void *)start, name, sizeof(name));
}

/* slurmstepd is gone, and with it who would tell srun of its tasks' ends. */
static void tell_of_slurmstepd(const struct witness_words *words, pid_t tasks)
{
	const struct relay_news news = {
		.text = words->text,
		.wait_status = SIGKILL,
		.facts = { .end = END_BY_KILL, .sent = SENT_NOTHING },
	};

	relay_tell(&words->relay, words->address, &news);
	if (words->kill_tasks)
		kill(-tasks, SIGKILL);
}

/*
 * Slurm's signals come from slurmstepd, and root's from who may speak for Slurm,
 * as systemd does when the machine goes down. Any other sender is a program of the
 * user's, which has signalled its group or all that it may.
 */
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

static void watch(struct witness *witness, const struct witness_words *words, pid_t parent)
{
	pid_t tasks = getpgrp();
	int look_ms = words->look_ms;
	bool suspended = false;
	sigset_t all;

	sigfillset(&all);
	/* Out of reach of a task that signals, or kills, its own process group. */
	if (!words->stay_in_group)
		setpgid(0, 0);
	prctl(PR_SET_DUMPABLE, 0);
	take_name();
	close_everything();
	prctl(PR_SET_PDEATHSIG, PARENT_DIED);
	while (getppid() == parent) {
		siginfo_t info = { .si_signo = 0 };
		int number = wait_signal(&all, look_ms, &info);
		if (number < 0 && errno != EINTR)
			return;
		if (judge_is_stop(number) && is_sent_by_slurm(&info, parent))
			atomic_store(&witness->asked_to_stop, true);
		if (judge_is_word(number) && number != PARENT_DIED && is_sent_by_slurm(&info, parent))
			atomic_store(&witness->word_ns, ddp_now_ns());
		/* The ranks stop by it: Slurm sends it 2 s before the SIGSTOP with which it
		   suspends a step, and that stops the witness, too. */
		suspended = number == SIGTSTP || (suspended && number != SIGCONT);
		if (look_ms > 0 && !suspended)
			look_ms = words->look(words->about, atomic_load(&witness->asked_to_stop));
	}
	tell_of_slurmstepd(words, tasks);
}

/* A fork, but the child is the parent's sibling: glibc has no call for that. */
static pid_t fork_sibling(void)
{
#ifdef __s390__
	return (pid_t)syscall(SYS_clone, 0, CLONE_PARENT | SIGCHLD, 0, 0, 0);
#else
	return (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
#endif
}

void witness_make(struct witness *witness, const struct witness_words *words)
{
	sigset_t all, before;
	pid_t parent = getppid(), pid;

	if (atomic_exchange(&witness->made, true))
		return;
	sigfillset(&all);
	if (sigprocmask(SIG_SETMASK, &all, &before) < 0)
		return;
	pid = fork_sibling();
	if (pid == 0) {
		watch(witness, words, parent);
		_exit(0);
	}
	if (pid > 0)
		atomic_store(&witness->pid, pid);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

bool witness_was_killed(const struct witness *witness)
{
	pid_t pid = atomic_load(&witness->pid);
	siginfo_t info = { .si_pid = 0 };

	if (pid > 0 && contained_here())
		return contained_sees_end(pid);
	/* slurmstepd may have reaped it among the tasks. */
	return pid > 0 && (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
	                   info.si_pid != 0);
}

/* What the kernel says of the witness at one moment: the signals that wait for it to
   run, as a mask, and whether it runs. */
static uint64_t pending(pid_t pid, bool *runs)
{
	char path[64], text[4096];
	static const char *const names[] = { "\nSigPnd:", "\nShdPnd:" };
	uint64_t mask = 0;
	ssize_t got;
	int fd;

	*runs = false;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = '\0';
	*runs = strstr(text, "\nState:\tR") != NULL;
	for (int i = 0; i < 2; i++) {
		const char *found = strstr(text, names[i]);
		if (found != NULL)
			mask |= strtoull(found + strlen(names[i]), NULL, 16);
	}
	return mask;
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
		if (judge_is_word(number) && number != PARENT_DIED)
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

/*
 * A signal waits for the witness, and is noted once the witness has run and
 * found that it is Slurm's. In between it is in neither place, but then the witness
 * runs: it is looked at again, for as long as a busy machine may keep it from its next
 * line. Of a signal that still waits then, nobody knows that it is not Slurm's.
 */
enum slurm_sent witness_sent(const struct witness *witness)
{
	pid_t pid = atomic_load(&witness->pid);
	enum slurm_sent waits = SENT_NOTHING;
	bool runs = true;

	if (pid == 0)
		return SENT_UNKNOWN;
	for (int look = 0; (runs || waits != SENT_NOTHING) && look < LOOKS_MAX; look++) {
		waits = sent_by(pending(pid, &runs));
		if (atomic_load(&witness->asked_to_stop))
			return SENT_STOP;
		if (runs || waits != SENT_NOTHING)
			pause_ms(1);
	}
	if (waits == SENT_STOP)
		return SENT_STOP;
	if (witness_was_killed(witness))
		return SENT_KILL;
	return waits == SENT_SIGNAL || has_word(witness) ? SENT_SIGNAL : SENT_NOTHING;
}

void witness_end(struct witness *witness)
{
	pid_t pid = atomic_load(&witness->pid);

	if (pid > 0 && !witness_was_killed(witness))
		kill(pid, SIGKILL);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	/* Its parent reaps it, at the latest by its own end. */
	for (int look = 0; pid > 0 && contained_here() && !contained_sees_end(pid) && look < LOOKS_MAX; look++)
		pause_ms(1);
}
