/* SPDX-License-Identifier: Apache-2.0 */
/* path: what a program gives as a name of a file or folder that is used later. */
#pragma once

#include "ddp.h"

/* The same path from the root, malloc'd, so that a later chdir() of the program changes
   nothing. Links are kept: they may point elsewhere by then. `what` names the thing in a message. */
ddp_status ddp_path_absolute(const char *what, const char *path, char **absolute);

/* Opens /dev/null where the process has no descriptor 0, 1 or 2: what the library opens next
   would get that number, and what the program prints would go there. */
void ddp_path_keep_standard_descriptors(void);
