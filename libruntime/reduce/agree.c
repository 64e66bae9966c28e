#include "reduce/agree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Every fact is a number that a double holds exactly, and travels with its
   negative: one MIN then gives the least and the greatest over all ranks. */
enum fact {
	FACT_FAILED_RANK, /* infinity where nothing failed */
	FACT_COUNT,
	FACT_HASH,
	FACT_BUCKET,
	FACT_FIRST_BUCKET,
	FACT_OPTIMIZER,
	FACT_LEARNING_RATE,
	FACT_BETA1,
	FACT_BETA2,
	FACT_EPSILON,
	FACT_WEIGHT_DECAY,
	FACT_MOMENTUM,
	FACT_CLIP_NORM,
	FACT_UPDATE,
	FACT_NO_OVERLAP,
	FACT_NO_COMMUNICATION,
	FACTS
};

static const char *const fact_names[FACTS] = {
	[FACT_COUNT] = "the number of parameters",
	[FACT_HASH] = "the parameters",
	[FACT_BUCKET] = "the bucket size in elements (bucket_mb or DDP_BUCKET_MB)",
	[FACT_FIRST_BUCKET] = "the first bucket's size in elements (first_bucket_mb)",
	[FACT_OPTIMIZER] = "the optimizer",
	[FACT_LEARNING_RATE] = "learning_rate",
	[FACT_BETA1] = "beta1",
	[FACT_BETA2] = "beta2",
	[FACT_EPSILON] = "epsilon",
	[FACT_WEIGHT_DECAY] = "weight_decay",
	[FACT_MOMENTUM] = "momentum",
	[FACT_CLIP_NORM] = "clip_norm",
	[FACT_UPDATE] = "update",
	[FACT_NO_OVERLAP] = "no_overlap",
	[FACT_NO_COMMUNICATION] = "no_communication",
};

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
	const unsigned char *byte = data;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ byte[i]) * 0x100000001b3u;
	return hash;
}

static uint64_t hash_slot(uint64_t hash, const ddp_slot *slot)
{
	const unsigned char no_decay = slot->no_decay;

	hash = hash_bytes(hash, slot->name, strlen(slot->name) + 1);
	hash = hash_bytes(hash, &slot->ndim, sizeof(slot->ndim));
	hash = hash_bytes(hash, slot->shape, (size_t)slot->ndim * sizeof(*slot->shape));
	hash = hash_bytes(hash, &slot->sparse_rows, sizeof(slot->sparse_rows));
	return hash_bytes(hash, &no_decay, sizeof(no_decay));
}

static double hash_number(uint64_t hash)
{
	return (double)(hash >> 11); /* 53 bits are exact */
}

static const uint64_t HASH_START = 0xcbf29ce484222325u;

static void state_facts(const ddp_layout *layout, const ddp_model_settings *settings,
                        double *facts)
{
	uint64_t hash = HASH_START;

	for (int i = 0; i < layout->count; i++)
		hash = hash_slot(hash, &layout->slots[layout->slot_of[i]]);
	facts[FACT_FAILED_RANK] = INFINITY;
	facts[FACT_COUNT] = layout->count;
	facts[FACT_HASH] = hash_number(hash);
	facts[FACT_BUCKET] = (double)settings->bucket_elements;
	facts[FACT_FIRST_BUCKET] = (double)settings->first_bucket_elements;
	facts[FACT_OPTIMIZER] = settings->optim.kind;
	facts[FACT_LEARNING_RATE] = settings->learning_rate;
	facts[FACT_BETA1] = settings->optim.beta1;
	facts[FACT_BETA2] = settings->optim.beta2;
	facts[FACT_EPSILON] = settings->optim.epsilon;
	facts[FACT_WEIGHT_DECAY] = settings->optim.weight_decay;
	facts[FACT_MOMENTUM] = settings->optim.momentum;
	facts[FACT_CLIP_NORM] = settings->clip_norm;
	facts[FACT_UPDATE] = settings->update;
	facts[FACT_NO_OVERLAP] = settings->no_overlap;
	facts[FACT_NO_COMMUNICATION] = settings->no_communication;
}

/* values [count] becomes the least over all ranks, values[count ..] the
   negative of the greatest. */
static ddp_status reduce_range(ddp_comm *comm, double *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		values[count + i] = -values[i];
	return ddp_all_reduce(comm, NULL, values, 2 * count, DDP_F64, DDP_MIN);
}

/* The count agrees on all ranks, so all come here together. */
static ddp_status name_parameter(ddp_comm *comm, const ddp_layout *layout)
{
	size_t count = (size_t)layout->count;
	char shape[256];
	double *hashes = malloc(2 * count * sizeof(*hashes));

	if (hashes == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory to compare %zu parameters", count);
	for (size_t i = 0; i < count; i++)
		hashes[i] = hash_number(hash_slot(HASH_START, &layout->slots[layout->slot_of[i]]));
	ddp_status status = reduce_range(comm, hashes, count);
	size_t first = 0;
	while (first + 1 < count && hashes[first] == -hashes[count + first])
		first++;
	free(hashes);
	if (status != DDP_OK)
		return status;
	const ddp_slot *slot = &layout->slots[layout->slot_of[first]];
	ddp_shape_text(slot->ndim, slot->shape, shape, sizeof(shape));
	return ddp_fail(DDP_ERR_MISMATCH,
	                "ranks gave different models: parameter %zu is \"%s\" %s%s, %lld sparse rows, on "
	                "rank %d and another on others; all ranks must register the same list in the "
	                "same order", first, slot->name, shape, slot->no_decay ? " without decay" : "",
	                (long long)slot->sparse_rows, ddp_comm_rank(comm));
}

static ddp_status compare(ddp_comm *comm, const ddp_layout *layout, const double *mine,
                          const double *range)
{
	for (int f = FACT_COUNT; f < FACTS; f++) {
		double least = range[f], most = -range[FACTS + f];
		if (least == most)
			continue;
		if (f == FACT_HASH)
			return name_parameter(comm, layout);
		return ddp_fail(DDP_ERR_MISMATCH,
		                "ranks gave different models: %s is %.17g on rank %d, and %.17g to %.17g "
		                "over all; give all ranks the same",
		                fact_names[f], mine[f], ddp_comm_rank(comm), least, most);
	}
	return DDP_OK;
}

ddp_status ddp_model_agree(ddp_comm *comm, ddp_status mine, const ddp_layout *layout,
                           const ddp_model_settings *settings)
{
	double facts[FACTS] = { 0 }, range[2 * FACTS];
	char reason[512];

	if (mine != DDP_OK) {
		snprintf(reason, sizeof(reason), "%s", ddp_last_error());
		facts[FACT_FAILED_RANK] = ddp_comm_rank(comm);
	} else {
		state_facts(layout, settings, facts);
	}
	memcpy(range, facts, sizeof(facts));
	ddp_status status = reduce_range(comm, range, FACTS);
	if (mine != DDP_OK)
		return ddp_fail(mine, "%s", reason);
	if (status != DDP_OK)
		return ddp_fail_context(status, "while comparing the model with other ranks'");
	if (isfinite(range[FACT_FAILED_RANK]))
		return ddp_fail(DDP_ERR_MISMATCH, "rank %d could not make its model; its own error says why",
		                (int)range[FACT_FAILED_RANK]);
	return compare(comm, layout, facts, range);
}
