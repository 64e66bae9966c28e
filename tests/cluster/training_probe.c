/*
 * training_probe: steps of a tiny model, in which one rank does something else;
 * for tests on clusters.
 *
 *   training_probe ACTION RANK [FILE [SECONDS]]
 *
 * With never, RANK ends with 0 before ddp_init(); with retry, a model of all ranks fails, and
 * another one is trained. After three steps RANK makes FILE and then: hang: sleeps in forward; spin: computes
 * there for ever; leave: exits with 0, without a word; finish: the same after
 * ddp_finalize(); go: goes on, too; busy: is in evaluation for SECONDS; save: in a checkpoint; late: nothing
 * yet; none: nothing. The others go on until an error, which gives exit code 3; after `busy`
 * and `save`, and with `late`, `retry` and `none`, all end after three steps more, RANK with `late`
 * SECONDS after the others.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ddp.h>

enum { PARAMS = 1000, EXIT_USAGE = 2, EXIT_LIBRARY = 3, FIRST_STEPS = 3, STEP_US = 20000 };

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
		ddp_set_phase(model, DDP_PHASE_FORWARD);
		usleep(STEP_US);
		ddp_set_phase(model, DDP_PHASE_BACKWARD);
		memset(ddp_param_grad(model, 0), 0, PARAMS * sizeof(float));
		check(ddp_grad_ready(model, 0));
		check(ddp_step(model, 16, 0, NULL));
	}
}

static void act(const struct plan *plan, ddp_context *context, ddp_model *model)
{
	int fd = plan->file != NULL ? open(plan->file, O_CREAT | O_WRONLY, 0666) : -1;
	const volatile bool spins = strcmp(plan->action, "spin") == 0;

	if (fd >= 0)
		close(fd);
	ddp_set_phase(model, DDP_PHASE_FORWARD);
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
		ddp_set_phase(model, plan->action[0] == 'b' ? DDP_PHASE_EVAL : DDP_PHASE_CHECKPOINT);
		sleep((unsigned int)plan->seconds);
	}
}

int main(int argc, char **argv)
{
	const ddp_param params[] = { { .name = "weight", .ndim = 1, .shape = { PARAMS } } };
	const ddp_model_options options = { .size = sizeof(options), .optimizer = DDP_SGD, .learning_rate = 0.1 };
	ddp_context *context;
	ddp_model *model;

	if (argc < 3 || argc > 5) {
		fprintf(stderr, "usage: training_probe never|retry|hang|spin|leave|finish|go|busy|save|late|none RANK [FILE [SECONDS]]\n");
		return EXIT_USAGE;
	}
	const struct plan plan = { argv[1], argc > 3 ? argv[3] : NULL, atoi(argv[2]),
		                   argc > 4 ? atoi(argv[4]) : 5 };
	const bool late = strcmp(plan.action, "late") == 0;
	const bool retries = strcmp(plan.action, "retry") == 0;
	const bool ends = late || retries || strcmp(plan.action, "none") == 0 || strcmp(plan.action, "busy") == 0 ||
	                  strcmp(plan.action, "save") == 0;
	if (strcmp(plan.action, "never") == 0 && getenv("RANK") != NULL && atoi(getenv("RANK")) == plan.rank)
		return 0;
	check(ddp_init(NULL, &context));
	if (retries && ddp_model_create(context, params, 0, &options, &model) == DDP_OK)
		return EXIT_USAGE;
	check(ddp_model_create(context, params, 1, &options, &model));
	train(model, FIRST_STEPS);
	if (ddp_get_job(context)->rank == plan.rank)
		act(&plan, context, model);
	do
		train(model, FIRST_STEPS);
	while (!ends);
	if (late && ddp_get_job(context)->rank == plan.rank)
		sleep((unsigned int)plan.seconds);
	ddp_model_free(model);
	check(ddp_finalize(context));
	return 0;
}
