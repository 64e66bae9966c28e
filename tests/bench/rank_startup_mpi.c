/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of wireup: says when the first all-reduce of MPI was done. */
#include <mpi.h>

#include "tests/bench/rank_startup.h"

int main(int argc, char **argv)
{
	const struct startup_begin begin = startup_begin();
	float ones = 1;
	int rank;

	if (MPI_Init(&argc, &argv) != MPI_SUCCESS ||
	    MPI_Allreduce(MPI_IN_PLACE, &ones, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
		fprintf(stderr, "rank_startup_mpi: MPI failed\n");
		return 1;
	}
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	startup_tell(rank, startup_now_ns(), ones, begin);
	return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
