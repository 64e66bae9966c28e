/*
 * comm/net/nics: which of a node's InfiniBand ports a rank uses, if there are several:
 * those near the cores on which it may run, shared out among the node's ranks. Left to
 * itself, UCX gives all ranks the same best one.
 */
#ifndef DDP_COMM_NET_NICS_H
#define DDP_COMM_NET_NICS_H

#include <sched.h>
#include <stdbool.h>

/*
 * For number `local` of a node's `locals` ranks, each of which may run on the cores of its
 * own of the sets `allowed`, of allowed_bytes each: writes the ports' names as UCX takes
 * them, "mlx5_0:1,mlx5_1:1". `sys` is where sysfs is. False: it is for UCX to choose.
 * There is only one, or they are all this rank's; or they are not known to reach each
 * other: Ethernet, or different subnets. Only the fastest of the active ones count.
 */
bool ddp_nics_choose(const char *sys, const cpu_set_t *allowed, size_t allowed_bytes, int local, int locals,
                     char *names, size_t bytes);

#endif
