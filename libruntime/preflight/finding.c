/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/finding.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void preflight_find(struct preflight_findings *findings, const struct preflight_finding *finding, const char *format,
                    ...)
{
	struct preflight_finding *item = &findings->item[findings->count];
	va_list arguments;

	findings->odd += finding->odd;
	if (findings->count == PREFLIGHT_FINDINGS)
		return;
	*item = *finding;
	va_start(arguments, format);
	vsnprintf(item->text, sizeof(item->text), format, arguments);
	va_end(arguments);
	findings->count++;
}

static bool is_open_link(const struct preflight_finding *f, const bool *excluded, int nodes)
{
	return f->odd && f->peer >= 0 && f->peer < nodes && f->node >= 0 && f->node < nodes && !excluded[f->node] &&
	       !excluded[f->peer];
}

/* How many links that are odd, and have no excluded end, the node has. */
static int open_links(const struct preflight_findings *findings, const bool *excluded, int nodes, int node)
{
	int count = 0;

	for (int i = 0; i < findings->count; i++) {
		const struct preflight_finding *f = &findings->item[i];
		count += is_open_link(f, excluded, nodes) && (f->node == node || f->peer == node);
	}
	return count;
}

void preflight_exclude(const struct preflight_findings *findings, bool *excluded, int nodes)
{
	memset(excluded, 0, (size_t)nodes * sizeof(*excluded));
	for (int i = 0; i < findings->count; i++) {
		const struct preflight_finding *f = &findings->item[i];
		if (f->odd && f->peer < 0 && f->node >= 0 && f->node < nodes)
			excluded[f->node] = true;
	}
	for (;;) {
		int worst = -1, most = 0;
		/* The later node loses between ends with equally many: rank 0 and its files are on the first. */
		for (int node = nodes - 1; node >= 0; node--) {
			int count = open_links(findings, excluded, nodes, node);
			if (count > most) {
				most = count;
				worst = node;
			}
		}
		if (worst < 0)
			return;
		excluded[worst] = true;
	}
}
