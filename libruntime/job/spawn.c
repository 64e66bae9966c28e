/* SPDX-License-Identifier: Apache-2.0 */
/* ddp_spawn(): local ranks without a launcher. The parent opens the socket at
   which the ranks meet before it forks, so no port can be taken and no rank
   can come too early; it then watches its children until the last has ended. */
#include "job/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/path.h"

static const uint64_t term_to_kill_ns = 5000000000u;

static ddp_spawned self = { .rank = -1, .listener = -1 };

const ddp_spawned *ddp_spawned_get(void)
{
	return self.rank >= 0 ? &self : NULL;
}

int ddp_spawned_listener(void)
{
	return fcntl(self.listener, F_DUPFD_CLOEXEC, 0);
}

static ddp_status open_rendezvous(ddp_spawned *spawned)
{
	struct sockaddr_un any = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "ddp_spawn: cannot make a socket");
	spawned->rendezvous_bytes = sizeof(spawned->rendezvous);
	/* Bound without a name, the kernel picks a free abstract one. */
	if (bind(fd, (struct sockaddr *)&any, sizeof(any.sun_family)) < 0 ||
	    listen(fd, DDP_SPAWN_MAX) < 0 ||
	    getsockname(fd, (struct sockaddr *)&spawned->rendezvous, &spawned->rendezvous_bytes) < 0) {
		int error = errno;
		close(fd);
		return ddp_fail_errno(DDP_ERR_IO, error, "ddp_spawn: cannot listen for the ranks");
	}
	if (getrandom(spawned->key.bytes, sizeof(spawned->key.bytes), 0) !=
	    (ssize_t)sizeof(spawned->key.bytes)) {
		int error = errno;
		close(fd);
		return ddp_fail_errno(DDP_ERR_IO, error, "ddp_spawn: no random key");
	}
	spawned->key.present = true;
	spawned->listener = fd;
	return DDP_OK;
}

/* The parent changes these while it watches, and puts them back. */
struct signals {
	sigset_t waited;
	sigset_t mask;
	struct sigaction on_child;
};

static ddp_status take_signals(struct signals *signals)
{
	struct sigaction normal = { .sa_handler = SIG_DFL };

	sigemptyset(&signals->waited);
	sigaddset(&signals->waited, SIGCHLD);
	sigaddset(&signals->waited, SIGINT);
	sigaddset(&signals->waited, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &signals->waited, &signals->mask) < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "ddp_spawn: sigprocmask");
	/* With SIGCHLD ignored, the kernel would drop the exit codes. */
	sigaction(SIGCHLD, &normal, &signals->on_child);
	return DDP_OK;
}

static void give_back_signals(const struct signals *signals)
{
	sigaction(SIGCHLD, &signals->on_child, NULL);
	sigprocmask(SIG_SETMASK, &signals->mask, NULL);
}

struct family {
	int ranks;
	pid_t *pids;      /* 0: has ended */
	int running;
	bool failed;
	uint64_t kill_ns; /* when SIGTERM turns to SIGKILL; 0: never */
	ddp_spawn_result result;
};

static void signal_all(const struct family *family, int number)
{
	for (int r = 0; r < family->ranks; r++)
		if (family->pids[r] > 0)
			kill(family->pids[r], number);
}

static int exit_code_of(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Reaps what has ended. Of several failures seen at once, a death by signal
   counts as the first: the others are likely to have failed for its sake. */
static void reap(struct family *family)
{
	int first = -1, first_code = 0;
	bool first_by_signal = false;

	for (int r = 0; r < family->ranks; r++) {
		int status;

		if (family->pids[r] == 0 || waitpid(family->pids[r], &status, WNOHANG) <= 0)
			continue;
		family->pids[r] = 0;
		family->running--;
		int code = exit_code_of(status);
		if (code != 0 && (first < 0 || (WIFSIGNALED(status) && !first_by_signal))) {
			first = r;
			first_code = code;
			first_by_signal = WIFSIGNALED(status);
		}
	}
	if (first < 0 || family->failed)
		return;
	family->failed = true;
	family->result.failed_rank = first;
	family->result.exit_code = first_code;
	family->kill_ns = ddp_now_ns() + term_to_kill_ns;
	signal_all(family, SIGTERM);
}

static void watch(struct family *family, const struct signals *signals)
{
	while (reap(family), family->running > 0) {
		const struct timespec tick = { .tv_nsec = 200000000 };
		siginfo_t info;

		int number = sigtimedwait(&signals->waited, &info, &tick);
		/* The terminal has sent its Ctrl-C to the whole group already. */
		if ((number == SIGINT || number == SIGTERM) && info.si_code != SI_KERNEL)
			signal_all(family, number);
		if (family->kill_ns != 0 && ddp_now_ns() >= family->kill_ns) {
			signal_all(family, SIGKILL);
			family->kill_ns = 0;
		}
	}
}

static void become_rank(int rank, pid_t parent, const struct signals *signals,
                        const struct family *family, const ddp_spawned *spawned)
{
	/* A rank must not outlive a parent that was killed. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(128 + SIGKILL);
	give_back_signals(signals);
	free(family->pids);
	self = *spawned;
	self.rank = rank;
	if (rank != 0) {
		close(self.listener);
		self.listener = -1;
	}
}

static ddp_status give_up(struct family *family, const struct signals *signals, int error)
{
	int rank = family->running;

	signal_all(family, SIGKILL);
	watch(family, signals);
	return ddp_fail_errno(DDP_ERR_NOMEM, error, "ddp_spawn: cannot fork rank %d of %d "
	                      "(see ulimit -u)", rank, family->ranks);
}

/* In the child, returns with is_rank set. */
static ddp_status fork_and_watch(ddp_spawned *spawned, struct family *family,
                                 const struct signals *signals)
{
	pid_t parent = getpid();

	for (int r = 0; r < family->ranks; r++) {
		pid_t pid = fork();
		if (pid < 0)
			return give_up(family, signals, errno);
		if (pid == 0) {
			become_rank(r, parent, signals, family, spawned);
			family->result.is_rank = true;
			return DDP_OK;
		}
		family->pids[r] = pid;
		family->running++;
	}
	close(spawned->listener);
	spawned->listener = -1;
	watch(family, signals);
	return DDP_OK;
}

ddp_status ddp_spawn(int ranks, ddp_spawn_result *result)
{
	ddp_spawned spawned = { .world_size = ranks, .listener = -1 };
	struct family family = { .ranks = ranks, .result.failed_rank = -1 };
	struct signals signals;

	if (result == NULL)
		return ddp_fail_null("ddp_spawn", "result");
	if (ranks < 1 || ranks > DDP_SPAWN_MAX)
		return ddp_fail(DDP_ERR_INVALID, "ddp_spawn: %d ranks asked for; 1 to %d are possible",
		                ranks, DDP_SPAWN_MAX);
	if (self.rank >= 0)
		return ddp_fail(DDP_ERR_STATE, "ddp_spawn: this process is rank %d of an earlier "
		                "ddp_spawn()", self.rank);
	ddp_path_keep_standard_descriptors();
	ddp_status status = open_rendezvous(&spawned);
	if (status != DDP_OK)
		return status;
	family.pids = calloc((size_t)ranks, sizeof(*family.pids));
	if (family.pids == NULL) {
		close(spawned.listener);
		return ddp_fail(DDP_ERR_NOMEM, "ddp_spawn: no memory for %d ranks", ranks);
	}
	status = take_signals(&signals);
	if (status == DDP_OK) {
		/* Or each child would print what the parent has buffered. */
		fflush(NULL);
		status = fork_and_watch(&spawned, &family, &signals);
		if (status == DDP_OK && family.result.is_rank) {
			*result = family.result;
			return DDP_OK;
		}
		give_back_signals(&signals);
	}
	if (spawned.listener >= 0)
		close(spawned.listener);
	free(family.pids);
	if (status == DDP_OK)
		*result = family.result;
	return status;
}
