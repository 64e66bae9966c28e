/* SPDX-License-Identifier: Apache-2.0 */
/* srun prints its sentences to the user from a thread of their own. So a pager or a terminal that takes no
   output delays neither the step's end nor the nodes' reports. libc only. */
#pragma once

/* Has `say` called with a copy of the text, after those of earlier calls. Does not wait for
   it. Where so many wait that there is no room, the oldest goes. */
void printer_print(void (*say)(const char *text), const char *text);

/* Waits until all has been said, as long as that takes: as any program waits with its
   last line for who reads it. */
void printer_finish(void);
