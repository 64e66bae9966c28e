/* SPDX-License-Identifier: Apache-2.0 */
#include "state/metadata.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/c_locale.h"

static const char digest_key[] = "ddp.loader.digest";

static void add_text(ddp_metadata *metadata, const char *key, const char *value)
{
	metadata->pairs[metadata->count++] = (ddp_safetensors_pair){ key, value };
}

static void add_number(ddp_metadata *metadata, const char *key, int64_t value)
{
	char *text = metadata->numbers[metadata->count];

	snprintf(text, DDP_METADATA_NUMBER_MAX, "%" PRId64, value);
	add_text(metadata, key, text);
}

/* False: a checkpoint does not hold it. */
static bool hyper_key(int hyper, char *key)
{
	const char *name = ddp_hyper_key(hyper);

	if (name != NULL)
		snprintf(key, DDP_METADATA_KEY_MAX, "ddp.model.%s", name);
	return name != NULL;
}

/* As many digits as it takes to read the same number again. */
static void add_hypers(ddp_metadata *metadata, const double *hypers)
{
	ddp_saved_hyper list[DDP_HYPERS];
	const int count = ddp_hypers_list(hypers, list);

	for (int i = 0; i < count; i++) {
		char *key = metadata->keys[metadata->count], *text = metadata->numbers[metadata->count];
		snprintf(key, DDP_METADATA_KEY_MAX, "ddp.model.%s", list[i].key);
		ddp_format(text, DDP_METADATA_NUMBER_MAX, "%.17g", list[i].value);
		add_text(metadata, key, text);
	}
}

void ddp_metadata_write(const ddp_position *position, int world_size, ddp_metadata *metadata)
{
	metadata->count = 0;
	add_text(metadata, "format", "pt"); /* names and layout as PyTorch's users expect */
	add_text(metadata, "ddp.version", ddp_version());
	add_number(metadata, "ddp.step", position->step);
	add_number(metadata, "ddp.world_size", world_size);
	add_hypers(metadata, position->hypers);
	if (!position->has_loader)
		return;
	add_number(metadata, "ddp.loader.epoch", position->loader.epoch);
	add_number(metadata, "ddp.loader.samples", position->loader.samples);
	add_number(metadata, "ddp.loader.global_batch", position->loader.global_batch);
	add_number(metadata, "ddp.loader.size", position->loader.size);
	add_number(metadata, "ddp.loader.seed", (int64_t)position->loader.seed);
	add_number(metadata, "ddp.loader.sequential", position->loader.sequential);
	add_number(metadata, "ddp.loader.tail", position->loader.tail);
	if (position->loader.digest != 0)
		add_number(metadata, digest_key, (int64_t)position->loader.digest);
}

static ddp_status find_text(const ddp_safetensors *file, const char *key, const char **text)
{
	*text = ddp_safetensors_metadata(file, key);
	if (*text == NULL)
		return ddp_fail(DDP_ERR_FORMAT, "%s: metadata \"%s\" is missing: not a checkpoint of "
		                "this library?", file->path, key);
	return DDP_OK;
}

static ddp_status no_number(const ddp_safetensors *file, const char *key, const char *text)
{
	return ddp_fail(DDP_ERR_FORMAT, "%s: metadata \"%s\" is \"%.32s\", no number", file->path, key,
	                text);
}

static ddp_status get_number(const ddp_safetensors *file, const char *key, int64_t *value)
{
	const char *text;
	char *end;

	ddp_status status = find_text(file, key, &text);
	if (status != DDP_OK)
		return status;
	errno = 0;
	*value = strtoll(text, &end, 10);
	return end == text || *end != '\0' || errno != 0 ? no_number(file, key, text) : DDP_OK;
}

static ddp_status read_hypers(const ddp_safetensors *file, ddp_position *position)
{
	char key[DDP_METADATA_KEY_MAX];
	const char *text;

	position->has_hypers = hyper_key(ddp_hyper_of("optimizer"), key) &&
	                       ddp_safetensors_metadata(file, key) != NULL;
	for (int h = 0; h < DDP_HYPERS && position->has_hypers; h++) {
		position->hypers[h] = NAN;
		if (!hyper_key(h, key))
			continue;
		text = ddp_safetensors_metadata(file, key);
		if (text == NULL) /* it was saved by a release that did not have it */
			continue;
		if (!ddp_parse_number(text, &position->hypers[h]))
			return no_number(file, key, text);
		position->hypers[h] = ddp_hyper_saved(h, position->hypers[h]);
	}
	return DDP_OK;
}

static ddp_status read_loader(const ddp_safetensors *file, ddp_position *position)
{
	int64_t seed = 0, sequential = 0, tail = 0, digest = 0;
	ddp_loader_state *loader = &position->loader;
	const struct { const char *key; int64_t *value; } fields[] = {
		{ "ddp.loader.epoch", &loader->epoch },
		{ "ddp.loader.samples", &loader->samples },
		{ "ddp.loader.global_batch", &loader->global_batch },
		{ "ddp.loader.size", &loader->size },
		{ "ddp.loader.seed", &seed },
		{ "ddp.loader.sequential", &sequential },
		{ "ddp.loader.tail", &tail },
	};

	position->has_loader = ddp_safetensors_metadata(file, fields[0].key) != NULL;
	for (size_t i = 0; position->has_loader && i < sizeof(fields) / sizeof(fields[0]); i++) {
		ddp_status status = get_number(file, fields[i].key, fields[i].value);
		if (status != DDP_OK)
			return status;
	}
	/* Where it is not known, or of a release that did not save it, there is none. */
	if (position->has_loader && ddp_safetensors_metadata(file, digest_key) != NULL) {
		ddp_status status = get_number(file, digest_key, &digest);
		if (status != DDP_OK)
			return status;
	}
	loader->digest = (uint64_t)digest;
	loader->seed = (uint64_t)seed;
	loader->sequential = sequential != 0;
	loader->tail = (ddp_tail)tail;
	return DDP_OK;
}

ddp_status ddp_metadata_read(const ddp_safetensors *file, ddp_position *position)
{
	ddp_status status = get_number(file, "ddp.step", &position->step);

	if (status == DDP_OK && position->step < 0)
		status = ddp_fail(DDP_ERR_FORMAT, "%s: step %" PRId64 " is negative", file->path,
		                  position->step);
	if (status == DDP_OK)
		status = read_loader(file, position);
	return status == DDP_OK ? read_hypers(file, position) : status;
}
