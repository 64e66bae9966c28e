/* path: what a program gives as a name of a file or folder that is used later. */
#ifndef DDP_BASE_PATH_H
#define DDP_BASE_PATH_H

#include "ddp.h"

/*
 * The same path from the root, malloc'd, so that a later chdir() of the program changes
 * nothing. Links are kept: they may point elsewhere by then. `what` names the thing in a message.
 */
ddp_status ddp_path_absolute(const char *what, const char *path, char **absolute);

/* Makes a folder and those above it; one that is there already is no error. */
ddp_status ddp_path_make_folder(const char *what, const char *folder);
/* The folder in which a file is to be made. */
ddp_status ddp_path_make_parent(const char *what, const char *path);

/*
 * Opens a file to write to it, and never waits: a pipe without a reader and a socket are
 * errors, and a pipe or device whose reader does not read gives EAGAIN. `flags` as those of
 * open(), to which O_CLOEXEC, O_NONBLOCK and O_NOCTTY are added.
 */
ddp_status ddp_path_open_to_write(const char *what, const char *path, int flags, int *fd);

/*
 * Opens /dev/null where the process has no descriptor 0, 1 or 2: what the library opens next
 * would get that number, and what the program prints would go there.
 */
void ddp_path_keep_standard_descriptors(void);

#endif
