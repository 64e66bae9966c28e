/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of ddp.h: options, which begin with their size, and others, which end with reserved words. */
#pragma once

#include <stddef.h>

#include "ddp.h"

/* Copies options of the given type (its name), of which this library knows `bytes`, over
   the defaults, which `options` has. What a program was compiled without keeps its default,
   and so does all if `given` is NULL. DDP_ERR_INVALID:
   the size is none that such a structure can have, or the program sets what this library
   does not know. */
ddp_status ddp_options_copy(const char *type, const void *given, void *options, size_t bytes);

/* A pointer of options that are not copied yet: NULL if the program was compiled without it, or
   gave no options. */
#define ddp_options_pointer(given, field) \
	((given) != NULL && (given)->size >= offsetof(__typeof__(*(given)), field) + sizeof((given)->field) ? \
	 (given)->field : NULL)

/* DDP_ERR_INVALID unless all reserved words are 0 of `what`, a structure of ddp.h that the
   program has filled in. */
#define ddp_reserved_check(what, given) \
	ddp_reserved_words_check(what, (given)->reserved, sizeof((given)->reserved) / sizeof((given)->reserved[0]))
ddp_status ddp_reserved_words_check(const char *what, const uint64_t *words, size_t count);
