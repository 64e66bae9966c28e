/* SPDX-License-Identifier: Apache-2.0 */
/* walk: the way to a file or folder that is written to, one component after the other. Each link
   and the file itself are looked at before they are used, so that another user who may write to a
   folder on the way cannot turn a write to another file. ddp.h (Files and folders) has the rule. */
#pragma once

#include "ddp.h"

/* Opens a file to write to it, and never waits: a pipe without a reader and a socket are errors, and
   a pipe or device whose reader does not read gives EAGAIN. `flags` as those of open(), to which
   O_CLOEXEC, O_NONBLOCK and O_NOCTTY are added. `what` names the thing in a message. */
ddp_status ddp_walk_open(const char *what, const char *path, int flags, int *fd);

/* The same for a file that nobody else may read: it is made so (0600). A link in its place is refused, and so is a
   file that is another user's, that others may read or write, or that has another name. */
ddp_status ddp_walk_open_private(const char *what, const char *path, int flags, int *fd);

/* Makes the folder and those above it, where they are not there. */
ddp_status ddp_walk_make(const char *what, const char *path);
/* The same without the folder itself: makes those above a file. */
ddp_status ddp_walk_make_parents(const char *what, const char *path);
