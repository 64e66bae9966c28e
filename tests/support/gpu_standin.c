/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_standin: one module for all that libddp loads of a GPU, as far as programs come with a GPU that they
 * cannot use: device/cuda itself, over the stand-in for CUDA's runtime; a table of kernels, whose queue
 * opens and knows no kernel; and of NCCL the version. Variables of the environment, in the end of this
 * file, say what is amiss.
 */
#include <stdlib.h>
#include <string.h>

#include "device/backend.h"
#include "table.h"
#include "tests/support/cuda_standin.h"

/* ---- kernels ---- */

static dk_queue *open_queue(int device, void *stream, dk_type type, const char **why);

static void close_queue(dk_queue *queue)
{
	free(queue);
}

DDP_API extern const dk_table dk_cuda_table;
const dk_table dk_cuda_table = {
	.version = DK_TABLE_VERSION, .bytes = sizeof(dk_cuda_table), .open = open_queue, .close = close_queue,
};

static dk_queue *open_queue(int device, void *stream, dk_type type, const char **why)
{
	dk_queue *queue = calloc(1, sizeof(*queue));

	(void)device;
	(void)stream;
	*why = "out of memory";
	if (queue != NULL)
		*queue = (dk_queue){ .table = &dk_cuda_table, .type = type };
	return queue;
}

/* ---- what is amiss ---- */

static int number(const char *variable, int otherwise)
{
	const char *given = getenv(variable);

	return given != NULL ? atoi(given) : otherwise;
}

DDP_API int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
	*version = number("STANDIN_NCCL", 22803);
	return 0;
}

/* STANDIN_DRIVER: the version of CUDA that the driver is for, and is too old by. */
static __attribute__((constructor)) void choose(void)
{
	cuda_standin = (cuda_runtime){ .count = number("STANDIN_GPUS", 1), .current = NO_CONTEXT,
	                               .capability = number("STANDIN_CAPABILITY", 80),
	                               .driver = number("STANDIN_DRIVER", 0) };
	if (cuda_standin.driver > 0) {
		cuda_standin.failing = "cudaGetDeviceCount";
		cuda_standin.error = cudaErrorInsufficientDriver;
	}
}
