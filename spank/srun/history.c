/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/history.h"

#include <sys/wait.h>

void history_start(struct history *history)
{
	*history = (struct history){ .last_rank = UINT32_MAX, .last_node = UINT32_MAX };
}

struct cause cause_of_loss(uint32_t node, const char *text)
{
	struct cause cause = { .known = true, .lost = true, .survived = true, .wait_status = W_EXITCODE(1, 0),
		               .rank = UINT32_MAX, .node = node };
	struct sink sink = sink_on(cause.text, sizeof(cause.text));

	sink_add(&sink, "%s", text);
	return cause;
}

void cause_add(struct cause *cause, const struct cause *further)
{
	struct sink sink;

	if (!cause->known || (cause->hearsay && !further->hearsay)) {
		*cause = *further;
		return;
	}
	if (further->hearsay)
		return;
	cause->lost |= further->lost;
	sink = sink_behind(cause->text, sizeof(cause->text));
	sink_add(&sink, "; %s", further->text);
}

void history_note(struct history *history, const struct cause *cause, uint64_t step, uint64_t first)
{
	bool shown = step > 0 || history->best_step > 0;

	if (step > history->best_step || first > history->best_first)
		history->fruitless = 0;
	else if (shown && !cause->lost)
		history->fruitless++;
	if (step > history->best_step)
		history->best_step = step;
	if (first > history->best_first)
		history->best_first = first;
	history->last_rank = cause->hearsay ? UINT32_MAX : cause->rank;
	history->last_step = step;
}

void history_add_repetition(const struct history *history, const struct cause *cause, uint64_t step,
                            struct sink *sink)
{
	if (cause->hearsay || cause->rank == UINT32_MAX || cause->rank != history->last_rank)
		return;
	if (step > 0 && step == history->last_step)
		sink_add(sink, "; it is the same rank in the same step %llu as last time", (unsigned long long)step);
	else
		sink_add(sink, "; it is the same rank as last time");
}

bool history_same_node(struct history *history, const struct cause *cause)
{
	uint32_t node = cause->hearsay || cause->lost ? UINT32_MAX : cause->node;
	bool same = node != UINT32_MAX && node == history->last_node;

	history->last_node = same ? UINT32_MAX : node;
	return same;
}
