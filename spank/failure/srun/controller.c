/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/srun/controller.h"

#include <stdio.h>

#include "spank/base/worker.h"

/* A request that slurmctld does not answer goes on when srun no longer listens. */
static struct {
	struct relay_actions actions;
	enum controller_request request; /* until its answer is taken */
	char node[HOST_NAME_MAX_BYTES];
	bool answer;
	bool runs; /* its thread was not joined */
	struct worker worker;
} controller;

static void ask(void)
{
	switch (controller.request) {
	case REQUEST_NODE_FAILED:
		controller.answer = controller.actions.node_failed(controller.node);
		break;
	case REQUEST_SLURM_ENDS_IT:
		controller.answer = controller.actions.slurm_ends_it();
		break;
	case REQUEST_LOSE_NODE:
		controller.actions.lose_node(controller.node);
		break;
	case REQUEST_END_STEP:
		controller.actions.end_step();
		break;
	case REQUEST_NONE:
		break;
	}
}

bool controller_start(const struct relay_actions *actions, enum controller_request request, const char *node)
{
	if (controller.runs)
		return false;
	controller.actions = *actions;
	controller.request = request;
	controller.answer = false;
	snprintf(controller.node, sizeof(controller.node), "%s", node);
	controller.runs = worker_start(&controller.worker, ask);
	if (!controller.runs)
		ask();
	return true;
}

int controller_descriptor(void)
{
	return controller.runs ? controller.worker.done : -1;
}

bool controller_has_answer(void)
{
	return !controller.runs && controller.request != REQUEST_NONE;
}

bool controller_finish(int ms, enum controller_request *request, bool *answer)
{
	if (controller.runs && !worker_join(&controller.worker, ms))
		return false;
	controller.runs = false;
	*request = controller.request;
	*answer = controller.answer;
	controller.request = REQUEST_NONE;
	return true;
}
