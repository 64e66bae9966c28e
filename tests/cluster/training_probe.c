/* SPDX-License-Identifier: Apache-2.0 */
/* training_probe: steps of a tiny model, in which one rank does something else;
   for tests on clusters.

     training_probe ACTION RANK [FILE [SECONDS]]

   With never, RANK ends with 0 before ddp_init(); with retry, a model of all ranks fails, and
   another one is trained. After three steps RANK makes FILE and then: hang: sleeps in forward; spin: computes
   there for ever; leave: exits with 0, without a word; finish: the same after
   ddp_finalize(); go: goes on, too; busy: is in evaluation for SECONDS; save: in a checkpoint; late: nothing
   yet; none: nothing. The others go on until an error, which gives exit code 3; after `busy`
   and `save`, and with `late`, `retry` and `none`, all end after three steps more, RANK with `late`
   SECONDS after the others. So they do with these, of which RANK alone does more: miss: it stops itself
   before ddp_finalize(); halt: behind it; alarm: SECONDS microseconds behind its last step, wherever it
   is then.

   With slow, all go on for SECONDS; each step computes for SHORT_US of processor time, and RANK also waits for SLOW_US, as for a disk.

   With pair, all open two more contexts after three steps and end one of them; then RANK hangs in forward, and the
   others wait for it in a barrier of the other one. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <ddp.h>
#include "tests/support/options.h"

enum { PARAMS = 1000, EXIT_USAGE = 2, EXIT_LIBRARY = 3, FIRST_STEPS = 3, STEP_US = 20000, SHORT_US = 3000,
       SLOW_US = 40000 };

struct plan {
	const char *action, *file;
	int rank, seconds;
};

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "training_probe: %s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(EXIT_LIBRARY);
}

static void train(ddp_model *model, int steps)
{
	for (int step = 0; step < steps; step++) {
		ddp_model_set_phase(model, DDP_PHASE_FORWARD);
		usleep(STEP_US);
		ddp_model_set_phase(model, DDP_PHASE_BACKWARD);
		memset(ddp_model_param_grad(model, 0), 0, PARAMS * sizeof(float));
		check(ddp_model_grad_ready(model, 0));
		check(ddp_model_step(model, 16, 0, NULL));
	}
}

static bool does(const struct plan *plan, const char *action)
{
	return strcmp(plan->action, action) == 0;
}

/* Until the thread has used so much processor time, however busy the machine is. */
static void use(int microseconds)
{
	struct timespec now, begin;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < microseconds);
}

static void train_unevenly(const struct plan *plan, ddp_model *model, bool is_odd)
{
	for (int step = 0; step < plan->seconds * 1000000 / SHORT_US; step++) {
		ddp_model_set_phase(model, DDP_PHASE_FORWARD);
		use(SHORT_US);
		if (is_odd)
			usleep(SLOW_US);
		ddp_model_set_phase(model, DDP_PHASE_BACKWARD);
		memset(ddp_model_param_grad(model, 0), 0, PARAMS * sizeof(float));
		check(ddp_model_grad_ready(model, 0));
		check(ddp_model_step(model, 16, 0, NULL));
	}
}

static void hang(void)
{
	for (;;)
		pause();
}

static void act(const struct plan *plan, ddp_context *context, ddp_model *model)
{
	int fd = plan->file != NULL ? open(plan->file, O_CREAT | O_WRONLY, 0666) : -1;
	const volatile bool spins = strcmp(plan->action, "spin") == 0;

	if (fd >= 0)
		close(fd);
	ddp_model_set_phase(model, DDP_PHASE_FORWARD);
	while (strcmp(plan->action, "hang") == 0)
		pause();
	while (spins)
		continue;
	if (strcmp(plan->action, "leave") == 0)
		_exit(0);
	if (strcmp(plan->action, "finish") == 0) {
		ddp_model_free(model);
		check(ddp_finalize(context));
		exit(0);
	}
	if (strcmp(plan->action, "busy") == 0 || strcmp(plan->action, "save") == 0) {
		ddp_model_set_phase(model, plan->action[0] == 'b' ? DDP_PHASE_EVAL : DDP_PHASE_CHECKPOINT);
		sleep((unsigned int)plan->seconds);
	}
}

static void stop(int number)
{
	(void)number;
	raise(SIGSTOP);
}

static void stop_after(int microseconds)
{
	const struct itimerval timer = { .it_value = { microseconds / 1000000, microseconds % 1000000 + 1 } };

	signal(SIGALRM, stop);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void wait_in_pair(const struct plan *plan, ddp_context *context, ddp_model *model)
{
	ddp_context *second, *third;

	check(ddp_init(NULL, &second));
	check(ddp_init(NULL, &third));
	check(ddp_finalize(third));
	ddp_model_set_phase(model, DDP_PHASE_FORWARD);
	if (ddp_get_job(context)->rank == plan->rank)
		hang();
	check(ddp_barrier(ddp_world(second)));
}

static bool is_one_of(const char *action, const char *words)
{
	const char *found = strstr(words, action);

	return found != NULL && strchr(" ", found[strlen(action)]) != NULL;
}

int main(int argc, char **argv)
{
	const ddp_param params[] = { { .name = "weight", .ndim = 1, .shape = { PARAMS } } };
	const ddp_model_options options = { DDP_MODEL_OPTIONS_FIELDS, .optimizer = DDP_SGD, .learning_rate = 0.1 };
	ddp_context *context;
	ddp_model *model;

	if (argc < 3 || argc > 5) {
		fprintf(stderr, "usage: training_probe never|retry|pair|hang|spin|leave|finish|miss|halt|alarm|go|busy|save|late|none|slow RANK [FILE [SECONDS]]\n");
		return EXIT_USAGE;
	}
	const struct plan plan = { argv[1], argc > 3 ? argv[3] : NULL, atoi(argv[2]),
		                   argc > 4 ? atoi(argv[4]) : 5 };
	const bool retries = does(&plan, "retry");
	const bool ends = is_one_of(plan.action, "late retry none busy save miss halt alarm slow");
	if (strcmp(plan.action, "never") == 0 && getenv("RANK") != NULL && atoi(getenv("RANK")) == plan.rank)
		return 0;
	check(ddp_init(NULL, &context));
	if (retries && ddp_model_create(context, params, 0, &options, &model) == DDP_OK)
		return EXIT_USAGE;
	check(ddp_model_create(context, params, 1, &options, &model));
	train(model, FIRST_STEPS);
	if (does(&plan, "slow"))
		train_unevenly(&plan, model, ddp_get_job(context)->rank == plan.rank);
	if (does(&plan, "pair"))
		wait_in_pair(&plan, context, model);
	const bool is_odd = ddp_get_job(context)->rank == plan.rank;
	if (is_odd)
		act(&plan, context, model);
	do
		train(model, FIRST_STEPS);
	while (!ends);
	if (is_odd && does(&plan, "late"))
		sleep((unsigned int)plan.seconds);
	if (is_odd && does(&plan, "alarm"))
		stop_after(plan.seconds);
	ddp_model_free(model);
	if (is_odd && does(&plan, "miss"))
		raise(SIGSTOP);
	check(ddp_finalize(context));
	if (is_odd && does(&plan, "halt"))
		raise(SIGSTOP);
	return 0;
}
