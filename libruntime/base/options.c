/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <string.h>

#include "base/error.h"

/* No release has larger options; a size that was never set is seldom below this. */
enum { BYTES_MAX = 4096 };

ddp_status ddp_options_copy(const char *type, const void *given, void *options, size_t bytes)
{
	size_t size;

	if (given == NULL)
		return DDP_OK;
	memcpy(&size, given, sizeof(size));
	if (size < sizeof(size) || size > BYTES_MAX || size % sizeof(size) != 0)
		return ddp_fail(DDP_ERR_INVALID, "the size of a %s is %zu; it begins as its initialiser, which says its size", type, size);
	for (size_t i = bytes; i < size; i++) {
		if (((const char *)given)[i] != 0)
			return ddp_fail(DDP_ERR_INVALID, "a %s of %zu bytes sets an option that libddp %s does not know: "
			                "its own has %zu", type, size, PACKAGE_VERSION, bytes);
	}
	memcpy((char *)options + sizeof(size), (const char *)given + sizeof(size),
	       (size < bytes ? size : bytes) - sizeof(size));
	return DDP_OK;
}

ddp_status ddp_reserved_words_check(const char *what, const uint64_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (words[i] != 0)
			return ddp_fail(DDP_ERR_INVALID, "%s sets reserved[%zu], which means nothing to libddp %s: it must be 0",
			                what, i, PACKAGE_VERSION);
	}
	return DDP_OK;
}
