/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/hier/all_gather: each block goes once to each other node, to the rank there
 * that has the same index (modulo the node's size), and is read by that node's
 * other ranks from there.
 */
#ifndef DDP_COMM_HIER_ALL_GATHER_H
#define DDP_COMM_HIER_ALL_GATHER_H

#include "ddp.h"

ddp_status ddp_hier_all_gather(ddp_comm *comm, const ddp_operation *c);

#endif
