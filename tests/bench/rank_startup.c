/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of startup, wireup and scale: says when its first all-reduce was done.

   rank_startup [--sent | --lose]   Rank 0 says what it sent in a wire-up over TCP: "@ 0 sent BYTES". With --lose the last
                                    rank then ends as if it had died. The others go on as fewer, and each says how long
                                    that took, and its processor time: "@ RANK left NS MS" */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ddp.h"
#include "tests/bench/rank_startup.h"

static ddp_status count(ddp_comm *comm, float *ones)
{
	*ones = 1;
	return ddp_all_reduce(comm, NULL, ones, 1, DDP_F32, DDP_SUM);
}

/* The connections of the wire-up are open until ddp_finalize(). */
static unsigned long long sent_from(int port)
{
	unsigned long long bytes = 0;

	for (int fd = 0; fd < sysconf(_SC_OPEN_MAX); fd++) {
		struct sockaddr_storage own = { .ss_family = AF_UNSPEC };
		struct tcp_info info = { .tcpi_bytes_acked = 0 };
		socklen_t own_bytes = sizeof(own), info_bytes = sizeof(info);
		/* Both families have the port in one place. */
		if (getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 &&
		    (own.ss_family == AF_INET || own.ss_family == AF_INET6) &&
		    ntohs(((struct sockaddr_in *)&own)->sin_port) == port &&
		    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_bytes) == 0)
			bytes += info.tcpi_bytes_acked;
	}
	return bytes;
}

static ddp_status lose_one(ddp_comm *world)
{
	const struct startup_begin begin = startup_begin();
	ddp_comm *left;
	float ones;

	/* When it has had a second sum, all others have had the first. */
	if (ddp_comm_rank(world) == ddp_comm_size(world) - 1)
		_exit(count(world, &ones) == DDP_OK ? 0 : 1);
	while (count(world, &ones) == DDP_OK)
		continue;
	ddp_status status = ddp_comm_shrink(world, &left);
	if (status == DDP_OK)
		status = count(left, &ones);
	if (status != DDP_OK)
		return status;
	if ((int)ones != ddp_comm_size(world) - 1)
		return DDP_ERR_INTERNAL;
	printf("@ %d left %llu %.3f\n", ddp_comm_rank(world), startup_now_ns() - begin.ns, startup_cpu_ms() - begin.cpu_ms);
	fflush(stdout);
	return ddp_comm_free(left);
}

int main(int argc, char **argv)
{
	const struct startup_begin begin = startup_begin();
	const char *port = getenv("MASTER_PORT");
	ddp_context *context;
	float ones;

	ddp_status status = ddp_init(NULL, &context);
	if (status == DDP_OK)
		status = count(ddp_world(context), &ones);
	if (status == DDP_OK)
		startup_tell(ddp_comm_rank(ddp_world(context)), startup_now_ns(), ones, begin);
	if (status == DDP_OK && argc > 1 && port != NULL && ddp_comm_rank(ddp_world(context)) == 0)
		printf("@ 0 sent %llu\n", sent_from(atoi(port)));
	if (status == DDP_OK && argc > 1 && strcmp(argv[1], "--lose") == 0)
		status = lose_one(ddp_world(context));
	if (status != DDP_OK) {
		fprintf(stderr, "rank_startup: %s\n", ddp_last_error());
		return 1;
	}
	return ddp_finalize(context) ? 1 : 0;
}
