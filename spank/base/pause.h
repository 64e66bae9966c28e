/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPANK_PAUSE_H
#define SPANK_PAUSE_H

/* Sleeps so long, or until a signal comes. */
void pause_ms(long ms);

#endif
