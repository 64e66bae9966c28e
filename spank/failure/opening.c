/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/failure/opening.h"

#include <ctype.h>
#include <string.h>

#include "spank/base/bytes.h"

enum { FORM = 1, AT_FORM = 0, AT_NODE_ID = 4, AT_RANK = 8, AT_TASKS = 12, AT_READ = 16, AT_NODE = 24,
       AT_RELEASE = AT_NODE + HOST_NAME_MAX_BYTES, AT_PROTOCOL = AT_RELEASE + OPENING_RELEASE_BYTES };

void opening_pack(const struct link_opening *opening, unsigned char bytes[OPENING_BYTES])
{
	memset(bytes, 0, OPENING_BYTES);
	bytes_put32(bytes + AT_FORM, FORM);
	bytes_put32(bytes + AT_NODE_ID, opening->node_id);
	bytes_put32(bytes + AT_RANK, opening->rank);
	bytes_put32(bytes + AT_TASKS, opening->tasks);
	bytes_put64(bytes + AT_READ, opening->read);
	memcpy(bytes + AT_NODE, opening->node, strnlen(opening->node, HOST_NAME_MAX_BYTES - 1));
	memcpy(bytes + AT_RELEASE, opening->release, strnlen(opening->release, OPENING_RELEASE_BYTES - 1));
	bytes_put32(bytes + AT_PROTOCOL, opening->protocol);
}

bool opening_unpack(const unsigned char bytes[OPENING_BYTES], struct link_opening *opening)
{
	const char *node = (const char *)bytes + AT_NODE;
	size_t length = strnlen(node, HOST_NAME_MAX_BYTES);

	if (bytes_get32(bytes + AT_FORM) != FORM || length == 0 || length == HOST_NAME_MAX_BYTES)
		return false;
	for (size_t i = 0; i < length; i++)
		if (!isgraph((unsigned char)node[i]))
			return false;
	*opening = (struct link_opening){ .node_id = bytes_get32(bytes + AT_NODE_ID),
		                          .rank = bytes_get32(bytes + AT_RANK),
		                          .tasks = bytes_get32(bytes + AT_TASKS),
		                          .read = bytes_get64(bytes + AT_READ),
		                          .protocol = bytes_get32(bytes + AT_PROTOCOL) };
	memcpy(opening->node, node, length);
	memcpy(opening->release, bytes + AT_RELEASE, strnlen((const char *)bytes + AT_RELEASE, OPENING_RELEASE_BYTES - 1));
	return true;
}
