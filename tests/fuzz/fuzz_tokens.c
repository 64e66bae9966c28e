/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token-file opener: any file in any format either is refused or gives
 * samples that can all be read.
 * fuzz-sources: libruntime/data/tokens.c libruntime/data/file.c libruntime/base/error.c libruntime/base/c_locale.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ddp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Four bytes of arguments, then the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char path[64];
	int32_t sample[256 + 1];
	ddp_dataset dataset;

	if (bytes < 4)
		return 0;
	int fd = memfd_create("tokens", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data + 4, bytes - 4) != (ssize_t)(bytes - 4))
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ddp_status status = ddp_tokens_open(path, (ddp_token_format)(data[0] % 4), data[1],
	                                    data[2] / 256.0, data[3] / 255.0, &dataset);
	for (int64_t i = 0; status == DDP_OK && i < dataset.size; i++)
		if (dataset.read(dataset.self, i, sample) != DDP_OK)
			abort();
	if (status == DDP_OK)
		ddp_dataset_close(&dataset);
	close(fd);
	return 0;
}
