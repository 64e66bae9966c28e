/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Allreduce in place, of the program's own memory, or with BENCH_MPI_MEMORY of MPI_Alloc_mem(). */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rank.h"

static bool succeed(struct rank_engine *engine, const char *what, int code)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;

	if (code == MPI_SUCCESS)
		return true;
	if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
		return rank_fail(engine, "%s: error %d", what, code);
	return rank_fail(engine, "%s: %s", what, text);
}

static bool open_memory(struct rank_engine *engine)
{
	size_t bytes = engine->count * sizeof(float);
	void *memory;

	if (getenv("BENCH_MPI_MEMORY")) {
		if (!succeed(engine, "MPI_Alloc_mem", MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &memory)))
			return false;
	} else if (posix_memalign(&memory, 4096, bytes)) {
		return rank_fail(engine, "no memory for %zu bytes", bytes);
	}
	engine->data = memory;
	return true;
}

static bool close_memory(struct rank_engine *engine)
{
	if (getenv("BENCH_MPI_MEMORY"))
		MPI_Free_mem(engine->data);
	else
		free(engine->data);
	engine->data = NULL;
	return true;
}

static bool all_reduce(struct rank_engine *engine)
{
	return succeed(engine, "MPI_Allreduce",
	               MPI_Allreduce(MPI_IN_PLACE, engine->data, (int)engine->count,
	                             MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

static bool barrier(struct rank_engine *engine)
{
	return succeed(engine, "MPI_Barrier", MPI_Barrier(MPI_COMM_WORLD));
}

int main(int argc, char **argv)
{
	struct rank_engine engine = {
		.reduces = true,
		.open = open_memory,
		.operate = all_reduce,
		.barrier = barrier,
		.close = close_memory,
	};
	int code;

	if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
		return rank_report_error(0, "MPI_Init failed");
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_rank(MPI_COMM_WORLD, &engine.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &engine.size);
	code = rank_serve(&engine, rank_command_fd(engine.rank));
	if (code)
		MPI_Abort(MPI_COMM_WORLD, code);
	MPI_Finalize();
	return code;
}
