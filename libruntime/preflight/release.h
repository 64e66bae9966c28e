/* SPDX-License-Identifier: Apache-2.0 */
/* preflight/release: which ddp-preflight each rank runs. What ranks measure they send to each other as it lies in
   memory, so a rank of another release, or of a machine with other words, is named before anything else is sent. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { PREFLIGHT_RELEASE_WORD = 64, PREFLIGHT_RELEASE_TEXT = 384 };

/* Ranks of all releases send this, so it never changes, and has no words but characters. */
struct preflight_release {
	char node[PREFLIGHT_RELEASE_WORD];
	char version[PREFLIGHT_RELEASE_WORD];
	char form[PREFLIGHT_RELEASE_WORD]; /* of what is sent; equal texts mean equal forms */
};

/* The version of this build, such as "0.3.0+202611290907.g1a2b3c4d". */
const char *preflight_version(void);

/* Fills in this program's. `node` is the node's name. */
void preflight_release_own(struct preflight_release *own, const char *node);

/* Whether all ranks run the same; otherwise `text` says which nodes run another one. Pure. */
bool preflight_releases_agree(const struct preflight_release *all, int ranks, char text[PREFLIGHT_RELEASE_TEXT]);
