/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of recovery: trains nothing, but survives. Its steps are as quick as its model is small, so that what takes
   time after a failure is the recovery.

   usage, under srun: rank_survive METRICS STEPS BYTES [--die]
     BYTES   of the parameters
     --die   the last rank of the first generation dies in step 1, and the others end when they have gone on; then each
             rank says when it came to meet the others, if it is a newcomer, and when it had gone on, by
             CLOCK_MONOTONIC: "@ RANK came NS", "@ RANK joined NS" */
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ddp.h"

enum { TENSORS_MAX = 64 };
static const int64_t tensor_bytes = 16 << 20;

static void must(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "rank_survive: %s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(1);
}

/* In one piece, among what other ranks print. */
static void say(const ddp_job *job, const char *what)
{
	struct timespec now;
	char line[64];

	clock_gettime(CLOCK_MONOTONIC, &now);
	const int bytes = snprintf(line, sizeof(line), "@ %d %s %" PRId64 "\n", job->rank, what,
	                           now.tv_sec * INT64_C(1000000000) + now.tv_nsec);
	if (write(STDOUT_FILENO, line, (size_t)bytes) != bytes)
		exit(1);
}

/* Tensors of 16 MiB, and what is left. All ranks begin with the same. */
static ddp_model *make(ddp_context *context, int64_t bytes, int *count)
{
	ddp_model_options options = DDP_MODEL_OPTIONS;
	ddp_param params[TENSORS_MAX] = { 0 };
	char names[TENSORS_MAX][16];
	ddp_model *model;

	options.optimizer = DDP_SGD;
	for (*count = 0; bytes > 0 && *count < TENSORS_MAX; bytes -= tensor_bytes, (*count)++) {
		const int64_t now = bytes > tensor_bytes && *count + 1 < TENSORS_MAX ? tensor_bytes : bytes;
		snprintf(names[*count], sizeof(names[*count]), "p%d", *count);
		params[*count] = (ddp_param){ .name = names[*count], .ndim = 1, .shape = { (now + 3) / 4 } };
	}
	must(ddp_model_create(context, params, *count, &options, &model));
	for (int p = 0; p < *count; p++) {
		float *values = ddp_model_param_data(model, p);
		for (int64_t i = 0, elements = ddp_model_param_count(model, p); i < elements; i++)
			values[i] = 1;
	}
	return model;
}

static ddp_status step(ddp_model *model, int count)
{
	ddp_status status = DDP_OK;

	for (int p = count - 1; p >= 0 && status == DDP_OK; p--)
		status = ddp_model_grad_ready(model, p);
	return status == DDP_OK ? ddp_model_step(model, 1, 1, NULL) : status;
}

int main(int argc, char **argv)
{
	const bool dies = argc == 5 && strcmp(argv[4], "--die") == 0;
	ddp_options options = DDP_OPTIONS;
	ddp_context *context;
	int64_t done;
	int count;

	if (argc != 4 && !dies) {
		fprintf(stderr, "usage: rank_survive METRICS STEPS BYTES [--die]\n");
		return 2;
	}
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	options.metrics_path = argv[1];
	must(ddp_init(&options, &context));
	const ddp_job *job = ddp_get_job(context);
	ddp_model *model = make(context, atoll(argv[3]), &count);
	const bool comes = job->restart_count > 0;
	if (dies && comes)
		say(job, "came");
	must(ddp_survive(model, NULL, DDP_OK, &done));
	while (done < atoll(argv[2]) && !(dies && job->restart_count > 0)) {
		if (dies && job->rank == job->world_size - 1)
			raise(SIGKILL);
		must(ddp_survive(model, NULL, step(model, count), &done));
	}
	if (dies)
		say(job, "joined");
	ddp_model_free(model);
	must(ddp_finalize(context));
	return 0;
}
