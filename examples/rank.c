/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

bool rank_another_tells(void)
{
	if (!ddp_last_error_is_told())
		return false;
	sleep(1);
	return true;
}

void rank_must(const char *program, ddp_status status)
{
	if (status == DDP_OK)
		return;
	if (!rank_another_tells())
		fprintf(stderr, "%s: %s: %s\n", program, ddp_status_name(status), ddp_last_error());
	exit(EXIT_LIBRARY);
}

void rank_spawn(const char *program, int count)
{
	ddp_spawn_result spawned = {.is_rank = true};

	if (count > 0)
		rank_must(program, ddp_spawn(count, &spawned));
	if (spawned.is_rank)
		return;
	if (spawned.exit_code > 128)
		fprintf(stderr, "%s: rank %d was killed by signal %d\n", program, spawned.failed_rank, spawned.exit_code - 128);
	exit(spawned.exit_code);
}

bool rank_fail(struct rank *self, const char *format, ...)
{
	char message[1200];
	va_list arguments;

	self->told = true;
	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	if (self->job == NULL) {
		fprintf(stderr, "%s: %s\n", self->program, message);
		return false;
	}
	fprintf(stderr, "%s: rank %d on %s: %s\n", self->program, self->job->rank, self->job->hostname, message);
	if (!self->stays && ddp_comm_abort(ddp_world(self->context), message) != DDP_OK)
		fprintf(stderr, "%s: cannot tell the other ranks: %s\n", self->program, ddp_last_error());
	return false;
}

bool rank_fine(struct rank *self, ddp_status status)
{
	if (status == DDP_OK)
		return true;
	if (self->told || status == DDP_ERR_ABORTED || (self->job != NULL && rank_another_tells()))
		return false;
	return rank_fail(self, "%s", ddp_last_error());
}

bool rank_leads(const ddp_model *model)
{
	return ddp_comm_rank(ddp_model_comm(model)) == 0;
}

bool rank_accumulate(struct rank *self, const char *option, int64_t wanted, int64_t weight, int *accumulate)
{
	if (wanted == 0 || ddp_accumulation(wanted, weight, self->job->world_size, accumulate) == DDP_OK)
		return true;
	/* The first rank says it, before the others end. */
	if (self->job->rank == 0)
		fprintf(stderr, "%s: %s: %s\n", self->program, option, ddp_last_error());
	self->told = true;
	ddp_barrier(ddp_world(self->context));
	return false;
}

void *rank_allocate(void *user, size_t bytes)
{
	struct rank *self = user;
	void *memory;

	if (rank_fine(self, ddp_mem_alloc_on(ddp_world(self->context), DDP_MEMORY_DEVICE, bytes, &memory)))
		return memory;
	self->told = true; /* by this rank, or the one that failed */
	return NULL;
}

void rank_release(void *user, void *memory)
{
	const struct rank *self = user;

	if (ddp_mem_free(ddp_world(self->context), memory) != DDP_OK && !self->told)
		fprintf(stderr, "%s: %s\n", self->program, ddp_last_error());
}

void rank_tell_of_graphs(struct rank *self, const char *why)
{
	if (why == NULL || self->told_of_graphs)
		return;
	self->told_of_graphs = true;
	fprintf(stderr, "%s: rank %d on %s: passes go without graphs, kernel by kernel: a pass could not be captured: %s\n",
	        self->program, self->job->rank, self->job->hostname, why);
}

bool rank_end(struct rank *self, bool fine)
{
	if (ddp_finalize(self->context) == DDP_OK || !fine)
		return fine;
	fprintf(stderr, "%s: %s\n", self->program, ddp_last_error());
	return false;
}
