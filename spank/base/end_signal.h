/* SPDX-License-Identifier: Apache-2.0 */
/* Whether somebody has sent this process a signal that ends it, although a thread of the program takes such signals. */
#pragma once

#include <stdbool.h>

/* In the main thread, once. The program gets the signals as before. SIGCONT, of which srun only says that it came, is
   dropped. */
void end_signal_heed(void);

/* True if one has come since then. */
bool end_signal_came(void);

/* For exec(2): these signals end the process, and none is blocked. */
void end_signal_default(void);
