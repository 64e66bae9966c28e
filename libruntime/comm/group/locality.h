/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm/group/locality: which ranks can share memory. Ranks are on one node if their
 * boot id, /dev/shm, PID and IPC namespaces agree and the lower rank's segment
 * can really be opened; host names are not asked. DDP_LOCALITY=TEXT in a
 * rank's environment tells ranks with another text apart, for tests and for
 * measuring the network on one machine.
 */
#ifndef DDP_COMM_GROUP_LOCALITY_H
#define DDP_COMM_GROUP_LOCALITY_H

#include "comm/core/comm.h"

enum { DDP_LOCALITY_TEXT = 256 };

/* Writes this process's key; processes with different keys share nothing. */
void ddp_locality_key(char key[DDP_LOCALITY_TEXT]);

#endif
