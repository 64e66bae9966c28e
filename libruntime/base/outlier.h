/* SPDX-License-Identifier: Apache-2.0 */
/* base/outlier: who is wrong where ranks differ: the first rank without what most ranks have.
   If no more than half have the same, as with two ranks, rank 0 counts as right. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { DDP_OUTLIER_TEXT = 64 };

typedef struct ddp_outlier {
	int ranks;
	int usual, usual_count; /* the first rank with what most have, and how many have it */
	int odd, odd_count;     /* the first rank with something else, and how many have that; or -1 */
} ddp_outlier;

/* Compares `ranks` ranks whose values are known here. same() says whether two ranks have the same
   value. */
ddp_outlier ddp_outlier_find(int ranks, bool (*same)(const void *values, int a, int b), const void *values);

/* "rank 5" and "the 5 others", say. */
void ddp_outlier_names(const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT], char usual[DDP_OUTLIER_TEXT]);
/* The same, where the ranks o->odd and o->usual have these names, in texts of `bytes` bytes each. */
void ddp_outlier_say(const ddp_outlier *o, const char *odd_rank, const char *usual_rank, char *odd, char *usual,
                     size_t bytes);
