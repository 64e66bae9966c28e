/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/agree.h"

#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "comm/agree.h"

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
	const unsigned char *byte = data;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ byte[i]) * 0x100000001b3u;
	return hash;
}

/* Hashes how a step treats the parameter. */
static uint64_t hash_treatment(uint64_t hash, const ddp_slot *slot)
{
	const unsigned char bytes[] = {
		(unsigned char)slot->kind, slot->no_decay, slot->grouped, slot->group.adamw,
	};

	hash = hash_bytes(hash, slot->name, strlen(slot->name) + 1);
	hash = hash_bytes(hash, &slot->group.learning_rate_factor, sizeof(double));
	hash = hash_bytes(hash, &slot->group.weight_decay, sizeof(double));
	return hash_bytes(hash, bytes, sizeof(bytes));
}

static uint64_t hash_slot(uint64_t hash, const ddp_slot *slot)
{
	const unsigned char rows_only = slot->rows_only;

	hash = hash_bytes(hash, &slot->ndim, sizeof(slot->ndim));
	hash = hash_bytes(hash, slot->shape, (size_t)slot->ndim * sizeof(*slot->shape));
	hash = hash_bytes(hash, &slot->sparse_rows, sizeof(slot->sparse_rows));
	hash = hash_bytes(hash, &rows_only, sizeof(rows_only));
	return hash_treatment(hash, slot);
}

static double hash_number(uint64_t hash)
{
	return (double)(hash >> 11); /* 53 bits are exact */
}

static const uint64_t HASH_START = 0xcbf29ce484222325u;

double ddp_layout_treatment(const ddp_layout *layout)
{
	uint64_t all = 0;

	for (int i = 0; i < layout->count; i++)
		all ^= hash_treatment(HASH_START, &layout->slots[i]);
	return hash_number(all);
}

enum { FACT_COUNT, FACT_HASH, FACT_NO_OVERLAP, FACT_NO_COMMUNICATION, FACT_ROUNDING, FACT_FLUSHING, FACT_OPTIONS,
       FACTS_MAX = FACT_OPTIONS + DDP_MODEL_OPTIONS_MAX };
_Static_assert((int)FACTS_MAX <= (int)DDP_FACTS_MAX, "ddp_facts_agree() keeps no more");

/* All ranks have the same number of facts. */
static int fact_count(void)
{
	int count = FACT_OPTIONS;

	for (int i = 0; i < ddp_model_option_count; i++)
		count += !ddp_model_option_table[i].is_local;
	return count;
}

/* Compilers' fast math sets it for the whole program. */
static bool flushes_to_zero(void)
{
#if defined(__x86_64__)
	return (__builtin_ia32_stmxcsr() & 0x8040) != 0; /* of results, or of operands */
#elif defined(__aarch64__)
	uint64_t control;

	__asm__ volatile("mrs %0, fpcr" : "=r"(control));
	return (control & 1 << 24) != 0;
#else
	return false;
#endif
}

static void state_facts(const ddp_layout *layout, const ddp_model_settings *settings, ddp_fact *facts)
{
	ddp_fact *next = facts + FACT_OPTIONS;
	uint64_t hash = HASH_START;

	for (int i = 0; i < layout->count; i++)
		hash = hash_slot(hash, &layout->slots[layout->slot_of[i]]);
	facts[FACT_COUNT] = (ddp_fact){ "the number of parameters", layout->count };
	facts[FACT_HASH] = (ddp_fact){ "the parameters", hash_number(hash) };
	facts[FACT_NO_OVERLAP] = (ddp_fact){ "whether DDP_MEASURE is no-overlap", settings->no_overlap };
	facts[FACT_NO_COMMUNICATION] = (ddp_fact){ "whether DDP_MEASURE is no-communication", settings->no_communication };
	facts[FACT_ROUNDING] = (ddp_fact){ "the processor's rounding mode (fegetround())", fegetround() };
	facts[FACT_FLUSHING] = (ddp_fact){ "whether the processor flushes tiny numbers to zero", flushes_to_zero() };
	for (int i = 0; i < ddp_model_option_count; i++) {
		const ddp_option *option = &ddp_model_option_table[i];
		if (!option->is_local)
			*next++ = (ddp_fact){ option->told != NULL ? option->told : option->name,
			                      ddp_option_value(option, &settings->options) };
	}
}

static double hash_of(const ddp_layout *layout, int param)
{
	return hash_number(hash_slot(HASH_START, &layout->slots[layout->slot_of[param]]));
}

/* The first parameter that is another on some rank. Some at a time: a rank that had to ask for
   memory, and got none, would leave the others waiting. */
static ddp_status find_parameter(ddp_comm *comm, const ddp_layout *layout, int *param)
{
	enum { AT_A_TIME = 256 };
	double hashes[2 * AT_A_TIME];

	for (int begin = 0; begin < layout->count; begin += AT_A_TIME) {
		const int left = layout->count - begin, count = left < AT_A_TIME ? left : AT_A_TIME;
		for (int i = 0; i < count; i++)
			hashes[i] = hash_of(layout, begin + i);
		ddp_status status = ddp_facts_range(comm, hashes, (size_t)count);
		if (status != DDP_OK)
			return status;
		for (*param = begin; *param < begin + count; ++*param) {
			if (hashes[*param - begin] != -hashes[count + *param - begin])
				return DDP_OK;
		}
	}
	return ddp_fail(DDP_ERR_INTERNAL, "ranks' parameters are the same one by one, but not together");
}

enum { PARAM_TEXT = 320 };

static const char *kind_text(ddp_tensor_kind kind)
{
	switch (kind) {
	case DDP_PARAM_FROZEN: return ", frozen";
	case DDP_BUFFER_BROADCAST: return ", a broadcast buffer";
	case DDP_BUFFER_MEAN: return ", an averaged buffer";
	case DDP_BUFFER_LOCAL: return ", a local buffer";
	default: return "";
	}
}

/* Writes everything about a parameter that may differ between two ranks. */
static void describe(const ddp_slot *slot, char text[PARAM_TEXT])
{
	char shape[160], group[80] = "";

	memset(text, 0, PARAM_TEXT);
	ddp_shape_text(slot->ndim, slot->shape, shape, sizeof(shape));
	if (slot->grouped)
		ddp_format(group, sizeof(group), ", in a group (factor %g, decay %g%s)", slot->group.learning_rate_factor,
		           slot->group.weight_decay, slot->group.adamw ? ", adamw" : "");
	int used = snprintf(text, PARAM_TEXT, "\"%.100s\" %s%s%s%s", slot->name, shape, kind_text(slot->kind),
	                    slot->no_decay ? ", without decay" : "", group);
	if (slot->sparse_rows > 0 && used < PARAM_TEXT)
		snprintf(text + used, PARAM_TEXT - (size_t)used, ", %lld sparse rows%s", (long long)slot->sparse_rows,
		         slot->rows_only ? " only" : "");
}

/* Each of the two has told what it has. */
static ddp_status tell(ddp_comm *comm, const ddp_slot *slot, const ddp_outlier *outlier, char odd[PARAM_TEXT],
                       char usual[PARAM_TEXT])
{
	describe(slot, odd);
	describe(slot, usual);
	ddp_status status = ddp_broadcast(comm, odd, PARAM_TEXT, DDP_U8, outlier->odd);
	return status == DDP_OK ? ddp_broadcast(comm, usual, PARAM_TEXT, DDP_U8, outlier->usual) : status;
}

/* The count agrees on all ranks, so all come here together. */
static ddp_status name_parameter(ddp_comm *comm, const ddp_layout *layout)
{
	char odd[PARAM_TEXT], usual[PARAM_TEXT], odd_ranks[DDP_OUTLIER_TEXT], usual_ranks[DDP_OUTLIER_TEXT];
	ddp_outlier outlier;
	double hashes[2];
	int param = 0;

	ddp_status status = find_parameter(comm, layout, &param);
	if (status == DDP_OK)
		status = ddp_comm_outlier(comm, hash_of(layout, param), &outlier, &hashes[0], &hashes[1]);
	if (status == DDP_OK)
		status = tell(comm, &layout->slots[layout->slot_of[param]], &outlier, odd, usual);
	if (status != DDP_OK)
		return status;
	ddp_comm_outlier_names(comm, &outlier, odd_ranks, usual_ranks);
	ddp_fail(DDP_ERR_MISMATCH, "ranks gave different models: parameter %d is %s on %s, and %s on %s; all ranks must "
	         "register the same list in the same order, with the same kinds and groups", param, odd, odd_ranks,
	         usual, usual_ranks);
	return ddp_error_told(DDP_ERR_MISMATCH, ddp_comm_rank(comm) != 0);
}

ddp_status ddp_model_agree(ddp_comm *comm, ddp_status mine, const ddp_layout *layout,
                           const ddp_model_settings *settings)
{
	ddp_fact facts[FACTS_MAX];
	int differs;

	if (mine == DDP_OK)
		state_facts(layout, settings, facts);
	ddp_status status = ddp_facts_agree(comm, mine, "model", facts, fact_count(), &differs);
	return differs == FACT_HASH ? name_parameter(comm, layout) : status;
}
