#include "spank/failure/kill.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/failure/component.h"

enum { TERM_GRACE_MS = 500 }; /* between SIGTERM and SIGKILL */

struct kill_request {
	uint32_t job_id, step_id;
	bool term_first;
	long delay_ms;
	char *het_nodes;
	uint32_t jobs[COMPONENTS_MAX];
	int job_count;
};

static pthread_t killer;
static bool killing;

/*
 * Slurm's own request to signal a step on all its nodes, as its PMIx plugin
 * makes it: found in the process that loaded us, since we link no library.
 */
static int signal_job(uint32_t job_id, uint32_t step_id, uint16_t number)
{
	__typeof__(slurm_kill_job_step) *send_signal;

	*(void **)&send_signal = dlsym(RTLD_DEFAULT, "slurm_kill_job_step");
	if (send_signal == NULL) {
		errno = ENOSYS;
		return -1;
	}
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
	slurm_step_id_t step = SLURM_STEP_ID_INITIALIZER;
	step.job_id = job_id;
	step.step_id = step_id;
	return send_signal(&step, number, 0);
#elif SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
	return send_signal(job_id, step_id, number, 0);
#else
	return send_signal(job_id, step_id, number);
#endif
}

/* The components of a heterogeneous step are steps of the same number in jobs of
   their own. What counts is how it went with this node's. */
static int signal_step(const struct kill_request *request, uint16_t number)
{
	int error, result = signal_job(request->jobs[0], request->step_id, number);

	error = errno;
	for (int i = 1; i < request->job_count; i++)
		signal_job(request->jobs[i], request->step_id, number);
	errno = error;
	return result;
}

static void pause_ms(long ms)
{
	const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

/* In a thread: the controller may take its time, and tasks are to be reaped. */
static void *kill_step(void *argument)
{
	struct kill_request *request = argument;
	int result;

	pause_ms(request->delay_ms);
	if (request->het_nodes != NULL)
		request->job_count = component_jobs(request->job_id, request->het_nodes, request->jobs);
	result = signal_step(request, request->term_first ? SIGTERM : SIGKILL);
	if (result == 0 && request->term_first) {
		pause_ms(TERM_GRACE_MS);
		/* That the step is gone by now is as it should be. */
		signal_step(request, SIGKILL);
	}
	/* A step that has ended meanwhile needs no more. */
	if (result != 0 && errno != ESLURM_ALREADY_DONE && errno != ESLURM_INVALID_JOB_ID)
		slurm_error("ddp: cannot end step %u.%u: %s; scancel %u.%u does", request->job_id,
		            request->step_id, spank_strerror((spank_err_t)errno), request->job_id,
		            request->step_id);
	free(request->het_nodes);
	free(request);
	return NULL;
}

void kill_start(uint32_t job_id, uint32_t step_id, long delay_ms, bool term_first,
                const char *het_nodes)
{
	struct kill_request *request = calloc(1, sizeof(*request));

	if (request == NULL)
		return;
	*request = (struct kill_request){ .job_id = job_id, .step_id = step_id, .term_first = term_first,
		                          .delay_ms = delay_ms, .jobs = { job_id }, .job_count = 1 };
	if (het_nodes != NULL)
		request->het_nodes = strdup(het_nodes);
	killing = pthread_create(&killer, NULL, kill_step, request) == 0;
	if (killing)
		return;
	free(request->het_nodes);
	free(request);
}

void kill_join(int seconds)
{
	struct timespec deadline;

	if (!killing || clock_gettime(CLOCK_REALTIME, &deadline) != 0)
		return;
	deadline.tv_sec += seconds;
	pthread_timedjoin_np(killer, NULL, &deadline);
	killing = false;
}
