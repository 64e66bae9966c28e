/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The history of ddp-preflight, a file to which several users may write: lines of JSON.
 * fuzz-sources: libruntime/preflight/history.c libruntime/preflight/statistics.c libruntime/preflight/finding.c
 * fuzz-libs: -ljansson
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/history.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const names[] = { "n1", "n2" };
	static struct preflight_findings findings;
	const struct preflight_values values[2] = { { { 1, 1, 1, 1 } }, { { 1e9, 1e9, 1e9, 1e9 } } };
	struct preflight_history history;
	bool doubted[2];

	if (!preflight_history_open(&history, names, 2))
		return 0;
	for (size_t at = 0; at < size;) {
		const uint8_t *end = memchr(data + at, '\n', size - at);
		size_t bytes = end != NULL ? (size_t)(end - data) - at : size - at;
		for (int i = 0; i < PREFLIGHT_HISTORY_LEAST; i++)
			(void)preflight_history_take(&history, (const char *)data + at, bytes);
		at += bytes + 1;
	}
	findings.count = findings.odd = 0;
	(void)preflight_history_doubt(&history, values, doubted);
	preflight_history_judge(&findings, &history, values);
	for (int i = 0; i < findings.count; i++)
		if (!(findings.item[i].usual > 0 && findings.item[i].usual < 1e30))
			abort();
	preflight_history_close(&history);
	return 0;
}
