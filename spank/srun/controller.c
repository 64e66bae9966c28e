/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/controller.h"

#include <stdlib.h>
#include <string.h>

#include "spank/base/worker.h"

/* A request that slurmctld does not answer goes on when srun no longer listens. */
static struct {
	struct relay_actions actions;
	enum controller_request request; /* until its answer is taken */
	char *nodes;
	bool answer;
	bool runs; /* its thread was not joined */
	struct worker worker;
} controller;

static void ask(void)
{
	switch (controller.request) {
	case REQUEST_NODE_FAILED:
		controller.answer = controller.actions.node_failed(controller.nodes);
		break;
	case REQUEST_SLURM_ENDS_IT:
		controller.answer = controller.actions.slurm_ends_it();
		break;
	case REQUEST_LOSE_NODES:
		controller.actions.lose_nodes(controller.nodes);
		break;
	case REQUEST_END_STEP:
		controller.actions.end_step();
		break;
	case REQUEST_NONE:
		break;
	}
}

bool controller_start(const struct relay_actions *actions, enum controller_request request, const char *nodes)
{
	char *copy = controller.runs ? NULL : strdup(nodes);

	if (copy == NULL)
		return false;
	free(controller.nodes);
	controller.nodes = copy;
	controller.actions = *actions;
	controller.request = request;
	controller.answer = false;
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
