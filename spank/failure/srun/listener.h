/* SPDX-License-Identifier: Apache-2.0 */
/* The port on which srun listens for its nodes. libc only. */
#ifndef SPANK_LISTENER_H
#define SPANK_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

/* A socket that listens, in both families if the machine has them, on a free port from `low` to `high`, or on any if
   they are 0; -1 and errno if there is none. */
int listener_open(uint16_t low, uint16_t high);

/* Whether at least so many ports of the range are free here and now. */
bool listener_has_room(uint16_t low, uint16_t high, uint32_t ports);

#endif
