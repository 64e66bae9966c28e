/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes of a step have a plugin of another release than srun's, as while a site's nodes are upgraded. Pure;
   nothing is allocated. */
#ifndef SPANK_RELEASES_H
#define SPANK_RELEASES_H

#include <stdbool.h>
#include <stdint.h>

#include "spank/base/sink.h"
#include "spank/identity/nodelist.h"

enum { RELEASES_NAMED = 8, RELEASE_BYTES = 32 };

struct releases {
	struct {
		char node[HOST_NAME_MAX_BYTES], release[RELEASE_BYTES];
	} named[RELEASES_NAMED]; /* the first ones */
	uint32_t count; /* of those that are named */
	bool more;      /* there are others */
};

/* A node has told its release, in an authenticated message, so both texts are only printed with care. `bytes`: of the
   release, which may lack an end. A node's second message changes nothing. */
void releases_note(struct releases *releases, const char *own, const char *node, const char *release, size_t bytes);

/* Adds the sentence about these nodes. False: all have srun's own release. */
bool releases_describe(const struct releases *releases, const char *own, struct sink *sink);

#endif
