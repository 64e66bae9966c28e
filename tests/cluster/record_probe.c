/* SPDX-License-Identifier: Apache-2.0 */
/* record_probe: ranks with operations for the flight recorder, for tests/cluster/spank_record.sh.

     record_probe WHAT RANK MARK

   All ranks do 20 sums and a barrier, and then RANK does something else, while the others go on with a sum: mismatch: it
   broadcasts; hang: it computes nothing until it is killed; stop: it stops itself; die: it kills itself; wait: it comes to
   the sum when the file MARK is there, and then all end with code 0. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ddp.h>

enum { SUMS = 20, FLOATS = 4096, EXIT_LIBRARY = 3 };

static void check(ddp_status status)
{
	if (status == DDP_OK)
		return;
	fprintf(stderr, "record_probe: %s: %s\n", ddp_status_name(status), ddp_last_error());
	exit(EXIT_LIBRARY);
}

static void differ(const char *what, ddp_comm *comm, float *values, const char *mark)
{
	if (strcmp(what, "mismatch") == 0)
		check(ddp_broadcast(comm, values, FLOATS / 2, DDP_F32, 0));
	if (strcmp(what, "die") == 0)
		raise(SIGKILL);
	if (strcmp(what, "stop") == 0)
		raise(SIGSTOP);
	while (strcmp(what, "hang") == 0)
		pause();
	while (access(mark, F_OK) != 0)
		usleep(20000);
}

int main(int argc, char **argv)
{
	static float values[FLOATS];
	ddp_context *context;

	if (argc != 4)
		return 2;
	check(ddp_init(NULL, &context));
	ddp_comm *comm = ddp_world(context);
	for (int i = 0; i < SUMS; i++)
		check(ddp_all_reduce(comm, NULL, values, FLOATS, DDP_F32, DDP_SUM));
	check(ddp_barrier(comm));
	if (ddp_get_job(context)->rank == atoi(argv[2]))
		differ(argv[1], comm, values, argv[3]);
	check(ddp_all_reduce(comm, NULL, values, FLOATS, DDP_F32, DDP_SUM));
	check(ddp_finalize(context));
	return 0;
}
