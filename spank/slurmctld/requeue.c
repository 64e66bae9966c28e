/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/requeue.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

#include "base/clock.h"
#include "spank/base/worker.h"
#include "spank/slurmctld/comment.h"
#include "spank/slurmctld/query.h"
#include "spank/slurmctld/requeue_judge.h"

enum {
	LOOK_SECONDS = 600,   /* the time limit may be changed meanwhile */
	AGAIN_SECONDS = 5,    /* between two questions that slurmctld does not answer */
	GIVE_UP_SECONDS = 600,
	WAIT_FOR_END_MS = 20000,
	LOOK_FOR_END_MS = 50,
	BEHIND_SIGNAL_MS = 500,
};

/* slurmctld tells this, besides the facts that are judged. */
struct job_news {
	struct requeue_job job;
	char name[QUERY_JOB_NAME_MAX];
	time_t ends_at; /* 0: never */
};

static struct {
	pid_t process; /* 0: not begun */
	pid_t script;  /* which has started srun */
	uint32_t job_id;
	struct requeue_step step; /* as long as it runs */
	uint64_t began_ns, ended_ns;
	int closing; /* an eventfd, readable once the watch is to end */
	bool watches;
	struct worker worker;
	atomic_bool done; /* the job is requeued, or will never be: */
	atomic_bool requeued;
} requeue = { .closing = -1 };

/* True if the watch is to end. */
static bool wait_seconds(time_t seconds)
{
	struct pollfd closing = { .fd = requeue.closing, .events = POLLIN };
	int ms = seconds > INT_MAX / 1000 ? INT_MAX : (int)seconds * 1000;

	return poll(&closing, 1, seconds > 0 ? ms : 0) > 0;
}

/* ---- what slurmctld knows -------------------------------------------------------- */

static enum requeue_state state_of(const job_info_t *job)
{
	switch (job->job_state & JOB_STATE_BASE) {
	case JOB_PENDING:
		return REQUEUE_WAITS;
	case JOB_RUNNING:
	case JOB_SUSPENDED:
		return REQUEUE_RUNS;
	case JOB_CANCELLED:
		return REQUEUE_CANCELLED;
	case JOB_TIMEOUT:
		return REQUEUE_TIMED_OUT;
	case JOB_PREEMPTED:
		return REQUEUE_PREEMPTED;
	default:
		return REQUEUE_OVER;
	}
}

/* OverTimeLimit of slurm.conf lets jobs run on. */
static time_t end_of(const job_info_t *job)
{
	const slurm_conf_t *conf = query_configuration();
	uint16_t over = conf != NULL ? conf->over_time_limit : 0;

	if (job->end_time == 0 || job->time_limit == INFINITE || over == INFINITE16)
		return 0;
	return job->end_time + (over != NO_VAL16 ? over * 60 : 0);
}

/* SLURM holds a job that it has requeued because the Prolog fails on a node. */
static bool is_held(const job_info_t *job)
{
	return job->priority == 0 && job->state_desc != NULL && strncmp(job->state_desc, "launch", strlen("launch")) == 0;
}

static void read_job(const job_info_t *job, struct job_news *news)
{
	*news = (struct job_news){
		.job = { .state = state_of(job), .batch = job->batch_flag != 0, .may_requeue = job->requeue != 0,
			 .held = is_held(job), .preempted = job->preempt_time != 0, .restarts = job->restart_cnt },
		.ends_at = end_of(job),
	};
	if (job->restart_cnt > 0)
		requeue_read_note(job->comment, job->restart_cnt - 1u, &news->job.before);
	query_job_name(job, news->name);
}

/* 0, or Slurm's reason. */
static int look_once(struct job_news *news)
{
	const job_info_t *job;
	job_info_msg_t *jobs;
	int code = ESLURM_INVALID_JOB_ID;

	errno = 0;
	jobs = query_jobs(requeue.job_id);
	if (jobs == NULL)
		return errno != 0 ? errno : ESLURM_INVALID_JOB_ID;
	job = query_job_in(jobs, requeue.job_id);
	if (job != NULL) {
		read_job(job, news);
		code = 0;
	}
	query_free_jobs(jobs);
	return code;
}

/* ---- what it is asked for -------------------------------------------------------- */

/* If the job was seen running, the request is void for a job that was cancelled meanwhile. */
static int ask_once(const struct job_news *news)
{
	__typeof__(slurm_requeue2) *ask;
	job_array_resp_msg_t *answer = NULL;
	char name[QUERY_JOB_NAME_MAX];
	int code;

	*(void **)&ask = dlsym(RTLD_DEFAULT, "slurm_requeue2");
	if (ask == NULL)
		return ENOSYS;
	snprintf(name, sizeof(name), "%s", news->name);
	errno = 0;
	code = ask(name, news->job.state == REQUEUE_RUNS ? JOB_RUNNING : 0, &answer);
	return query_answer_code(code, answer);
}

struct run {
	uint32_t restarts;
	struct requeue_note note;
};

static bool add_run(const void *about, const char *before, char *after, size_t bytes)
{
	const struct run *run = about;

	return requeue_write_note(before, run->restarts, &run->note, after, (uint32_t)bytes);
}

/* The note tells the next run how far this run came. If Slurm takes no note, requeue=N is the only limit. */
static void leave_note(const struct requeue_step *step, const struct job_news *news)
{
	struct run run = { .restarts = news->job.restarts };
	int code;

	if (!requeue_make_note(step, &news->job, &run.note))
		return;
	code = comment_change(requeue.job_id, COMMENT_MAX, add_run, &run);
	if (code > 0)
		slurm_debug("ddp: cannot note in the job's comment how far it came: %s",
		            spank_strerror((spank_err_t)code));
}

/* slurmctld has refused if the error is one of Slurm's own, from 2000 on. Other errors come from the connection. */
static bool is_final(int code)
{
	return code == ENOSYS || (code >= 2000 && code < 5000 && code != ESLURM_IN_STANDBY_MODE);
}

/* The request was void if the job is neither pending nor has another count of restarts. */
static bool was_cancelled(const struct job_news *before)
{
	struct job_news after;

	return before->job.state == REQUEUE_RUNS && look_once(&after) == 0 &&
	       after.job.state == REQUEUE_CANCELLED && after.job.restarts == before->job.restarts;
}

static int judge_and_ask(const struct requeue_step *step)
{
	char text[REQUEUE_TEXT_MAX];
	struct job_news news;
	int code = look_once(&news);

	if (code != 0)
		return code;
	if (!requeue_judge(step, &news.job, text)) {
		if (text[0] != '\0')
			print_to_user(text);
		return 0;
	}
	if (!news.job.held)
		leave_note(step, &news);
	code = news.job.held ? change_job(news.name, NULL, NULL, true) : ask_once(&news);
	/* The line is written at once, because srun may be killed with the script. */
	if (code == 0)
		print_to_user(text);
	if (code == 0 && was_cancelled(&news))
		print_to_user("the job is not requeued after all: it was cancelled meanwhile");
	else if (code == 0)
		atomic_store(&requeue.requeued, true);
	return code == ESLURM_JOB_PENDING ? 0 : code;
}

/* Asks until slurmctld answers, or `watched` and the watch is to end. */
static void ask_until_answered(const struct requeue_step *step, bool watched)
{
	uint64_t end_ns = ddp_now_ns() + GIVE_UP_SECONDS * 1000000000ull;
	bool said = false;

	for (;;) {
		int code = judge_and_ask(step);
		if (code == 0 || is_final(code) || ddp_now_ns() >= end_ns) {
			atomic_store(&requeue.done, true);
			if (code != 0)
				slurm_error("ddp: the job is not requeued: %s", spank_strerror((spank_err_t)code));
			return;
		}
		if (!said)
			slurm_error("ddp: the job is to be requeued, but slurmctld does not answer (%s): srun asks "
			            "again for %d minutes", spank_strerror((spank_err_t)code), GIVE_UP_SECONDS / 60);
		said = true;
		if (watched ? wait_seconds(AGAIN_SECONDS) : poll(NULL, 0, AGAIN_SECONDS * 1000) < 0)
			return;
	}
}

/* ---- the time limit -------------------------------------------------------------- */

static bool says_why_not(const struct job_news *news)
{
	char text[REQUEUE_TEXT_MAX];

	if (!requeue_is_impossible(&requeue.step, &news->job, text))
		return false;
	if (text[0] != '\0')
		print_to_user(text);
	return true;
}

/* At its time limit the batch script, and with it this srun, ends before the tasks have saved. So srun asks a little
   earlier: Slurm then ends the tasks in the same way, by SIGTERM and KillWait later SIGKILL. */
static void watch_time_limit(void)
{
	struct job_news news;
	bool first = true;

	for (;;) {
		int code = look_once(&news);
		time_t now = time(NULL), left;
		if (code != 0 && is_final(code))
			return;
		if (code == 0 && first && says_why_not(&news))
			return;
		if (code == 0 && news.job.state != REQUEUE_RUNS)
			return;
		first &= code != 0;
		left = code != 0 ? AGAIN_SECONDS
		     : news.ends_at == 0 ? LOOK_SECONDS : news.ends_at - now - REQUEUE_LEAD_SECONDS;
		if (left <= 0)
			break;
		if (wait_seconds(left < LOOK_SECONDS ? left : LOOK_SECONDS))
			return;
	}
	ask_until_answered(&requeue.step, true);
}

void requeue_begin(uint32_t job_id, uint32_t allowed, bool given)
{
	if (allowed == 0 || requeue.process != 0)
		return;
	requeue.process = getpid();
	requeue.script = getppid();
	requeue.job_id = job_id;
	requeue.step = (struct requeue_step){ .allowed = allowed, .given = given };
	requeue.began_ns = ddp_now_ns();
	requeue.closing = eventfd(0, EFD_CLOEXEC);
	requeue.watches = requeue.closing >= 0 && worker_start(&requeue.worker, watch_time_limit);
	if (!requeue.watches)
		slurm_error("ddp: requeue= does not heed the time limit: cannot start a thread: %s", strerror(errno));
}

void requeue_end_watch(void)
{
	if (requeue.process != getpid() || requeue.ended_ns != 0)
		return;
	requeue.ended_ns = ddp_now_ns();
	if (requeue.watches && !eventfd_raise(requeue.closing))
		slurm_debug("ddp: cannot end the thread that waits for the time limit: %s", strerror(errno));
}

/* Slurm is about to end the script. Until then srun keeps the script from going on, which would take the failure for
   the last one. Slurm's signal may come to srun first; a script that heeds it may wait for srun's end. */
static void wait_for_end(void)
{
	const struct timespec look = { .tv_nsec = LOOK_FOR_END_MS * 1000000 };
	int until_ms = WAIT_FOR_END_MS;
	sigset_t ends;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
	for (int ms = 0; ms < until_ms && getppid() == requeue.script; ms += LOOK_FOR_END_MS)
		if (sigtimedwait(&ends, NULL, &look) > 0 && ms + BEHIND_SIGNAL_MS < until_ms)
			until_ms = ms + BEHIND_SIGNAL_MS;
}

void requeue_finish(int status, bool failed, bool stopping, uint64_t at)
{
	struct requeue_step step = requeue.step;

	if (requeue.process != getpid() || status == 0)
		return;
	requeue_end_watch();
	step.ended = true;
	step.status = status;
	step.failed = failed;
	step.stopping = stopping;
	step.at = at;
	step.seconds = (double)(requeue.ended_ns - requeue.began_ns) * 1e-9;
	/* The thread may be waiting for slurmctld's answer to the same request. */
	if (requeue.watches && !worker_join(&requeue.worker, GIVE_UP_SECONDS * 1000))
		return;
	requeue.watches = false;
	if (!atomic_load(&requeue.done))
		ask_until_answered(&step, false);
	if (atomic_load(&requeue.requeued))
		wait_for_end();
}
