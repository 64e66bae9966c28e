/* SPDX-License-Identifier: Apache-2.0 */
/* Contender "ddp": libddp through its public header. */
#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rank.h"

struct ddp_engine {
	struct rank_engine base;
	ddp_comm *comm;
	char memory; /* l: of all ranks, u: of the program, o: of one rank alone */
};

static bool fail(struct rank_engine *engine)
{
	return rank_fail(engine, "%s", ddp_last_error());
}

static bool open_memory(struct rank_engine *engine)
{
	struct ddp_engine *self = (struct ddp_engine *)engine;
	size_t bytes = engine->count * sizeof(float);
	void *memory;

	if (self->memory == 'u') {
		if (posix_memalign(&memory, 64, bytes))
			return rank_fail(engine, "no memory for %zu bytes", bytes);
	} else if (self->memory == 'o') {
		if (ddp_mem_alloc_local(self->comm, bytes, &memory))
			return fail(engine);
	} else if (ddp_mem_alloc(self->comm, bytes, &memory)) {
		return fail(engine);
	}
	engine->data = memory;
	return true;
}

static bool close_memory(struct rank_engine *engine)
{
	struct ddp_engine *self = (struct ddp_engine *)engine;

	if (self->memory == 'u')
		free(engine->data);
	else if (ddp_mem_free(self->comm, engine->data))
		return fail(engine);
	engine->data = NULL;
	return true;
}

static bool all_reduce(struct rank_engine *engine)
{
	struct ddp_engine *self = (struct ddp_engine *)engine;

	if (ddp_all_reduce(self->comm, NULL, engine->data, engine->count, DDP_F32, DDP_SUM))
		return fail(engine);
	return true;
}

static bool barrier(struct rank_engine *engine)
{
	struct ddp_engine *self = (struct ddp_engine *)engine;

	return ddp_barrier(self->comm) ? fail(engine) : true;
}

static int serve(char memory)
{
	ddp_context *context;
	struct ddp_engine self = {
		.base = {
			.reduces = true,
			.open = open_memory,
			.operate = all_reduce,
			.barrier = barrier,
			.close = close_memory,
		},
		.memory = memory,
	};
	int code;

	if (ddp_init(NULL, &context))
		return rank_report_error(0, ddp_last_error());
	self.comm = ddp_world(context);
	self.base.rank = ddp_comm_rank(self.comm);
	self.base.size = ddp_comm_size(self.comm);
	code = rank_serve(&self.base, rank_command_fd(self.base.rank));
	if (ddp_finalize(context) && code == 0)
		code = rank_report_error(self.base.rank, ddp_last_error());
	return code;
}

int main(int argc, char **argv)
{
	ddp_spawn_result spawned;
	const char *memory = argc > 1 ? argv[1] : "";

	if (argc < 2 || argc > 3 || (strcmp(memory, "user") != 0 && strcmp(memory, "library") != 0 && strcmp(memory, "own") != 0)) {
		fprintf(stderr, "usage: %s library|user|own [RANKS]\n", argv[0]);
		return 2;
	}
	ddp_set_log(ddp_log_stderr, NULL, DDP_LOG_WARN);
	if (argc == 2)
		return serve(memory[0]);
	if (ddp_spawn((int)rank_number("RANKS", argv[2], 1, 1024), &spawned))
		return rank_report_error(0, ddp_last_error());
	return spawned.is_rank ? serve(memory[0]) : spawned.exit_code;
}
