/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/nics: which of a node's InfiniBand ports a rank uses, if there are several: those near the cores on which
   it may run, shared out among the node's ranks. Left to itself, UCX gives all ranks the same best one. */
#pragma once

#include <sched.h>
#include <stdbool.h>

/* Is there an RDMA device that this rank can open? A job's cgroup may forbid some. `sys` is
   where sysfs is, `dev` the devices "uverbs0" and so on. */
bool ddp_nics_any(const char *sys, const char *dev);

/* Chooses the ports of number `local` of a node's `locals` ranks. Each rank may run on the cores of its own set of
   `allowed`; a set has allowed_bytes. Writes the ports' names as UCX takes them, "mlx5_0:1,mlx5_1:1". Only the fastest
   ports count, of those that are active and that this rank can open. False: UCX chooses. There is only one port, or
   all ports are this rank's, or ports are not known to reach each other, as with Ethernet or different subnets. */
bool ddp_nics_choose(const char *sys, const char *dev, const cpu_set_t *allowed, size_t allowed_bytes, int local,
                     int locals, char *names, size_t bytes);
