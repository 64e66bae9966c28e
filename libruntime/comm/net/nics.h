/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/net/nics: which of a node's InfiniBand ports a rank uses, if there are several:
 * those near the cores on which it may run, shared out among the node's ranks. Left to
 * itself, UCX gives all ranks the same best one.
 */
#ifndef DDP_COMM_NET_NICS_H
#define DDP_COMM_NET_NICS_H

#include <sched.h>
#include <stdbool.h>

/* Is there an RDMA device that this rank can open? A job's cgroup may forbid some. `sys` is
   where sysfs is, `dev` the devices "uverbs0" and so on. */
bool ddp_nics_any(const char *sys, const char *dev);

/*
 * For number `local` of a node's `locals` ranks, each of which may run on the cores of its
 * own of the sets `allowed`, of allowed_bytes each: writes the ports' names as UCX takes
 * them, "mlx5_0:1,mlx5_1:1". False: it is for UCX to choose. There is only one, or they
 * are all this rank's; or they are not known to reach each other: Ethernet, or different
 * subnets. Only the fastest count, of those that are active and that this rank can open.
 */
bool ddp_nics_choose(const char *sys, const char *dev, const cpu_set_t *allowed, size_t allowed_bytes, int local,
                     int locals, char *names, size_t bytes);

#endif
