/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tasks and srun hand to a slurmstepd that runs as root: a task's page of
 * progress, put into a sentence, and the word on where srun listens.
 * fuzz-sources: spank/wire/report.c spank/wire/progress_page.c spank/wire/judge.c spank/base/text.c spank/wire/relay.c spank/wire/channel.c
 */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/base/release.h"
#include "spank/wire/judge.h"
#include "spank/wire/progress_page.h"
#include "spank/wire/relay.h"
#include "spank/wire/report.h"

/* The build makes the plugin's own. */
const char *release_own(void)
{
	return "0";
}

static void tell(const uint8_t *data, size_t size)
{
	struct failure failure = { .rank = 3, .world_size = 4, .node = "n1", .now_ns = 9000000000u };
	uint16_t bytes = 0;

	/* The status, the room for the sentence, and the page. */
	if (size > sizeof(int) + sizeof(bytes)) {
		memcpy(&failure.wait_status, data, sizeof(int));
		memcpy(&bytes, data + sizeof(int), sizeof(bytes));
		data += sizeof(int) + sizeof(bytes);
		size -= sizeof(int) + sizeof(bytes);
	}
	memcpy(&failure.progress, data, size < sizeof(failure.progress) ? size : sizeof(failure.progress));
	failure.progress.magic = DDP_PROGRESS_MAGIC;
	bytes = (uint16_t)(bytes % 2048 + 1);
	char *text = malloc(bytes);
	if (text == NULL)
		return;
	report_failure(&failure, text, bytes);
	if (memchr(text, '\0', bytes) == NULL)
		abort();
	for (const char *p = text; *p != '\0'; p++)
		if (!isprint((unsigned char)*p))
			abort();
	judge_task_end(failure.wait_status);
	blame_is_of_peer(&failure.progress, failure.rank);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	if (text == NULL)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	struct relay relay = relay_parse(text);
	if (relay.port != 0 && strlen(text) < 2 * SIPHASH_KEY_BYTES + 2)
		abort();
	free(text);
	tell(data, size);
	return 0;
}
