/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/release.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "build_version.h"
#include "preflight/facts.h"
#include "preflight/judge_links.h"
#include "preflight/judge_ranks.h"

/* It grows when a structure that ranks send changes, or the order in which they send. */
enum { FORM = 2 };

const char *preflight_version(void)
{
	return BUILD_VERSION;
}

void preflight_release_own(struct preflight_release *own, const char *node)
{
	memset(own, 0, sizeof(*own));
	snprintf(own->node, sizeof(own->node), "%s", node);
	snprintf(own->version, sizeof(own->version), "%s", preflight_version());
	/* Sizes differ where words do, and where somebody has forgotten to raise the number. */
	snprintf(own->form, sizeof(own->form), "%d %d %zu %zu %zu %zu %zu", FORM, __BYTE_ORDER, sizeof(struct preflight_facts),
	         sizeof(struct preflight_figures), sizeof(struct preflight_link),
	         sizeof(struct preflight_ranks_again), sizeof(struct preflight_links_again));
}

static bool is_word(const char *a, const char *b)
{
	return strncmp(a, b, PREFLIGHT_RELEASE_WORD) == 0;
}

static bool is_same(const struct preflight_release *a, const struct preflight_release *b)
{
	return is_word(a->version, b->version) && is_word(a->form, b->form);
}

/* The first rank of those that run what most run. */
static int usual_of(const struct preflight_release *all, int ranks)
{
	int usual = 0, most = 0;

	for (int r = 0; r < ranks; r++) {
		int same = 0;
		for (int q = 0; q < ranks; q++)
			same += is_same(&all[q], &all[r]);
		/* No other release has more. Otherwise each rank would compare all ranks with all. */
		if (2 * same >= ranks)
			return r;
		if (same > most) {
			most = same;
			usual = r;
		}
	}
	return usual;
}

/* Whether no earlier rank of this one's node runs another release, too. */
static bool is_first_of_node(const struct preflight_release *all, int rank, int usual)
{
	for (int r = 0; r < rank; r++)
		if (!is_same(&all[r], &all[usual]) && is_word(all[r].node, all[rank].node))
			return false;
	return true;
}

bool preflight_releases_agree(const struct preflight_release *all, int ranks, char text[PREFLIGHT_RELEASE_TEXT])
{
	int usual = usual_of(all, ranks), odd = -1, nodes = 0;
	char others[48] = "";

	for (int r = 0; r < ranks; r++) {
		if (is_same(&all[r], &all[usual]))
			continue;
		odd = odd < 0 ? r : odd;
		nodes += is_first_of_node(all, r, usual);
	}
	if (odd < 0)
		return true;
	if (nodes > 1)
		snprintf(others, sizeof(others), " and %d other node%s", nodes - 1, nodes > 2 ? "s" : "");
	if (is_word(all[odd].version, all[usual].version))
		snprintf(text, PREFLIGHT_RELEASE_TEXT,
		         "%.63s%s run%s another build of ddp-preflight %.63s than other nodes: install one build on all nodes",
		         all[odd].node, others, nodes > 1 ? "" : "s", all[odd].version);
	else
		snprintf(text, PREFLIGHT_RELEASE_TEXT,
		         "%.63s%s run%s ddp-preflight %.63s, and other nodes run %.63s: install one release on all "
		         "nodes",
		         all[odd].node, others, nodes > 1 ? "" : "s", all[odd].version, all[usual].version);
	return false;
}
