/* Structures of options, which begin with their size. */
#ifndef DDP_BASE_OPTIONS_H
#define DDP_BASE_OPTIONS_H

#include "ddp.h"

/*
 * Copies options of the given type (its name), of which this library knows `bytes`. What
 * a program was compiled without is 0, and so is all if `given` is NULL. DDP_ERR_INVALID:
 * the size is none that such a structure can have, or the program sets what this library
 * does not know.
 */
ddp_status ddp_options_copy(const char *type, const void *given, void *options, size_t bytes);

#endif
