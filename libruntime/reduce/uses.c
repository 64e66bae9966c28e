/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/model_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { EXACT_BITS = 53 }; /* of a double */

ddp_status ddp_uses_make(ddp_unused mode, const ddp_layout *layout, int ranks, ddp_uses *uses)
{
	const int count = layout->count;
	ddp_uses made = { .mode = mode, .layout = layout, .count = count, .ranks = ranks, .changed = -1 };

	made.used = calloc((size_t)count, sizeof(*made.used));
	made.absent = calloc((size_t)count, sizeof(*made.absent));
	made.unused = calloc((size_t)count, sizeof(*made.unused));
	made.missed = calloc((size_t)count, sizeof(*made.missed));
	*uses = made;
	if (made.used == NULL || made.absent == NULL || made.unused == NULL || made.missed == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to track the use of %d parameters", count);
	return DDP_OK;
}

void ddp_uses_free(ddp_uses *uses)
{
	free(uses->used);
	free(uses->absent);
	free(uses->unused);
	free(uses->missed);
	*uses = (ddp_uses){ 0 };
}

void ddp_uses_reset(ddp_uses *uses)
{
	memset(uses->used, 0, (size_t)uses->count * sizeof(*uses->used));
	uses->changed = -1;
}

/* A number of ranks takes this many bits. */
static int digit_bits(const ddp_uses *uses)
{
	int bits = 1;

	while (uses->ranks >> bits != 0)
		bits++;
	return bits;
}

static int digits_per_word(const ddp_uses *uses)
{
	return EXACT_BITS / digit_bits(uses);
}

int ddp_uses_words_max(const ddp_uses *uses)
{
	const int digits = digits_per_word(uses);

	return ddp_uses_counts(uses) ? (uses->count + digits - 1) / digits : 0;
}

static bool is_trained(const ddp_uses *uses, int param)
{
	return uses->layout->slot_of[param] < uses->layout->trained;
}

static void look_for_a_change(ddp_uses *uses)
{
	for (int p = 0; p < uses->count && uses->changed < 0; p++) {
		if (is_trained(uses, p) && uses->used[p] == uses->absent[p])
			uses->changed = p;
	}
}

int ddp_uses_state(ddp_uses *uses, bool joined, double *words)
{
	const int digits = digits_per_word(uses), bits = digit_bits(uses);
	const int count = uses->learned ? 0 : ddp_uses_words_max(uses);

	if (uses->learned && !joined)
		look_for_a_change(uses);
	for (int w = 0; w < count; w++)
		words[w] = 0;
	for (int p = 0; p < uses->count && count > 0 && !joined; p++)
		words[p / digits] += uses->used[p] ? ldexp(1, bits * (p % digits)) : 0;
	return count;
}

void ddp_uses_agree(ddp_uses *uses, const double *words, bool whole)
{
	const int digits = digits_per_word(uses), bits = digit_bits(uses);

	if (!ddp_uses_counts(uses) || uses->learned)
		return;
	for (int p = 0; p < uses->count; p++) {
		uint64_t ranks = (uint64_t)words[p / digits] >> bits * (p % digits) & (((uint64_t)1 << bits) - 1);
		uses->unused[p] = is_trained(uses, p) && ranks == 0;
	}
	if (uses->mode != DDP_UNUSED_STATIC || !whole)
		return;
	for (int p = 0; p < uses->count; p++)
		uses->absent[p] = !uses->used[p];
	uses->learned = true;
}

void ddp_uses_end_step(ddp_uses *uses)
{
	for (int p = 0; p < uses->count; p++)
		uses->missed[p] += ddp_uses_counts(uses) && uses->unused[p] ? 1 : 0;
}
