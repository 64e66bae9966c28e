/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/first_failure.h"

static uint64_t wait_ns(const struct step *step)
{
	return step->policy.ask_ms * 1000000ull;
}

/* Until when srun may still hear of a failure that was before the one that is held; 0: it cannot. */
static uint64_t untold_until(const struct first_failure *first, const struct step *step, const struct links *links,
                             struct presence *presence, const struct requests *requests)
{
	if (first->asked_ns == 0)
		return 0;
	if (links_any_untold(links) || requests_hold_any(requests))
		return first->asked_ns + wait_ns(step);
	return presence_untold_until(presence, first->asked_ns, wait_ns(step));
}

void first_failure_begin_again(struct first_failure *first, struct links *links)
{
	first->asked_ns = 0;
	links_ask_no_more(links);
}

void first_failure_update(struct first_failure *first, struct step *step, struct links *links,
                          struct presence *presence, const struct requests *requests, uint64_t now_ns)
{
	uint64_t until_ns;

	if (!step_holds(step)) {
		first_failure_begin_again(first, links);
	} else if (first->asked_ns == 0 && step->policy.ask_ms > 0) {
		first->asked_ns = now_ns;
		links_ask(links);
	}
	step->doubt_ns = links_doubt_until(links, now_ns);
	until_ns = untold_until(first, step, links, presence, requests);
	if (until_ns > step->doubt_ns)
		step->doubt_ns = until_ns;
}

bool first_failure_needs_held(const struct first_failure *first, const struct step *step, uint64_t now_ns)
{
	return first->asked_ns != 0 && now_ns >= first->asked_ns + wait_ns(step) && step_due(step) <= now_ns;
}
