/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors header parser, fed with any bytes.
 * fuzz-sources: libruntime/state/safetensors.c libruntime/base/crc32c.c libruntime/base/error.c libruntime/base/c_locale.c
 * fuzz-libs: -ljansson
 */
#include <stdlib.h>
#include <string.h>

#include "state/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The first two bytes say how much data follows the header. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	ddp_safetensors file;

	if (bytes < 2)
		return 0;
	int64_t data_bytes = data[0] | data[1] << 8;
	if (ddp_safetensors_parse("fuzz", (const char *)data + 2, bytes - 2, data_bytes, &file) != DDP_OK) {
		if (strstr(ddp_last_error(), "fuzz: ") != ddp_last_error())
			abort();
		return 0;
	}
	/* What was accepted keeps the promises that readers build on. */
	int64_t at = 0;
	for (int i = 0; i < file.count; i++) {
		if (file.tensors[i].begin != at || file.tensors[i].end < at || file.tensors[i].end > data_bytes)
			abort();
		at = file.tensors[i].end;
		if (ddp_safetensors_find(&file, file.tensors[i].name) != &file.tensors[i])
			abort();
	}
	if (at != data_bytes)
		abort();
	ddp_safetensors_close(&file);
	return 0;
}
