/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/slurmctld/kill.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/worker.h"
#include "spank/slurmctld/ask.h"
#include "spank/wire/timeline.h"

enum { POLL_MS = 20 };

static struct {
	struct kill_alone request;
	struct worker worker;
	bool running, asked;
	atomic_bool tasks_ended;
} alone;

/* Slurm's own request to signal a step on all its nodes, as its PMIx plugin
   makes it: found in the process that loaded us, since we link no library. */
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

void kill_step(uint32_t job_id, uint32_t step_id)
{
	if (signal_job(job_id, step_id, SIGKILL) != 0 && errno != ESLURM_ALREADY_DONE &&
	    errno != ESLURM_INVALID_JOB_ID)
		slurm_error("ddp: cannot end step %u.%u: %s; scancel %u.%u does", job_id, step_id,
		            spank_strerror((spank_err_t)errno), job_id, step_id);
}

/* If a witness was killed, the node finds out, in the thread that watches the tasks, whether it was
   Slurm. That thread may wait for srun meanwhile; in a contained callback there is none. */
enum { DOUBTED_MS = LOSS_MS + SETTLE_MS + CONNECT_MS + REPLY_MS };

/* False if there is nothing to ask for any more. */
static bool wait_for_turn(void)
{
	const struct kill_alone *request = &alone.request;
	uint64_t turn_ns = ddp_now_ns() + (uint64_t)request->delay_ms * 1000000, killed_ns = 0;

	for (;;) {
		bool killed = witness_was_killed(request->witness) && !atomic_load(request->witness_lost);
		uint64_t now_ns = ddp_now_ns();
		if (!killed || killed_ns == 0)
			killed_ns = killed ? now_ns : 0;
		if ((killed || request->with_tasks) && atomic_load(&alone.tasks_ended))
			return false;
		if (killed && (contained_here() || now_ns - killed_ns >= DOUBTED_MS * 1000000ull))
			return false;
		if (!killed && now_ns >= turn_ns)
			return true;
		pause_ms(POLL_MS);
	}
}

/* In a thread: the controller may take its time, and tasks are to be reaped. */
static void kill_in_turn(void)
{
	uint32_t job_id = alone.request.job_id;

	if (wait_for_turn())
		kill_step(alone.request.heterogeneous ? ask_leader(job_id) : job_id, alone.request.step_id);
}

void kill_start_alone(const struct kill_alone *request)
{
	/* A contained thread would end with its callback, which keeps Slurm from reaping tasks: it asks
	   itself, where that is due soon. */
	if (alone.asked || (contained_here() && request->with_tasks))
		return;
	alone.request = *request;
	if (contained_here())
		kill_in_turn();
	else
		alone.running = worker_start(&alone.worker, kill_in_turn);
	alone.asked = alone.running || contained_here();
}

void kill_finish_alone(void)
{
	long left_ms = alone.request.with_tasks ? 0 : alone.request.delay_ms;

	atomic_store(&alone.tasks_ended, true);
	if (alone.running)
		worker_join(&alone.worker, (int)left_ms + JOIN_MS);
	alone.running = false;
}
