/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payloads by which srun and the nodes deal generations. slurmstepd reads srun's as root.
 * fuzz-sources: spank/wire/deal.c spank/base/text.c
 */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "spank/wire/deal.h"

static void check_go(const struct deal_go *go, const uint8_t *end)
{
	for (uint32_t i = 0; i < go->local_count; i++)
		if (deal_rank(go, i) >= go->world_size)
			abort();
	if (go->generation == 0 || go->master >= go->node_count || strlen(go->key) != DEAL_KEY_DIGITS ||
	    (const uint8_t *)go->nodes + strlen(go->nodes) >= end)
		abort();
}

static void check_join(const struct deal_join *join, uint32_t *sum)
{
	for (uint32_t i = 0; i < join->task_count; i++)
		*sum += deal_task(join, i);
	for (const char *p = join->release; *p != '\0'; p++)
		if (!isprint((unsigned char)*p))
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct deal_go go;
	struct deal_join join;
	struct deal_clear clear;
	struct deal_done done;
	struct deal_lost lost;
	uint32_t number = 0;
	bool keep;
	int status;

	if (deal_unpack_go(data, size, &go))
		check_go(&go, data + size);
	if (deal_unpack_join(data, size, &join))
		check_join(&join, &number);
	deal_unpack_end(data, size, &number, &keep);
	deal_unpack_quit(data, size, &status);
	deal_unpack_clear(data, size, &clear);
	deal_unpack_done(data, size, &done);
	deal_unpack_lost(data, size, &lost);
	return 0;
}
