/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/node_table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/signals.h"

enum { START = DDP_SEGMENT_NONCE_BYTES };

void ddp_node_table_offer(ddp_node_table *table)
{
	table->offer = (ddp_segment_offer){ .fd = -1 };
	table->fd = ddp_segment_make_offer(START, &table->offer);
}

bool ddp_node_table_join(ddp_node_table *table, const ddp_segment_offer *leader)
{
	table->leads = table->fd >= 0 && memcmp(leader, &table->offer, sizeof(*leader)) == 0;
	if (table->leads)
		return true;
	ddp_node_table_close(table);
	table->fd = ddp_segment_take_offer(leader);
	return table->fd >= 0;
}

bool ddp_node_table_write(const ddp_node_table *table, const void *blobs, size_t bytes)
{
	struct stat now;

	/* Nobody can cut it. */
	if (fstat(table->fd, &now) != 0 ||
	    (now.st_size < (off_t)(START + bytes) && ddp_set_file_size(table->fd, (off_t)(START + bytes)) != 0))
		return false;
	for (size_t done = 0; done < bytes;) {
		const ssize_t written = pwrite(table->fd, (const char *)blobs + done, bytes - done, (off_t)(START + done));
		if (written == 0 || (written < 0 && errno != EINTR))
			return false;
		done += written > 0 ? (size_t)written : 0;
	}
	return true;
}

ddp_status ddp_node_table_read(const ddp_node_table *table, size_t bytes, unsigned char **blobs)
{
	unsigned char *read = malloc(bytes > 0 ? bytes : 1);
	size_t done = 0;

	if (read == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the blobs of all ranks, %zu bytes", bytes);
	while (done < bytes) {
		const ssize_t got = pread(table->fd, read + done, bytes - done, (off_t)(START + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			free(read);
			return ddp_fail(DDP_ERR_FORMAT, "the memory that this node's ranks share does not hold the blobs of all "
			                "ranks, %zu bytes", bytes);
		}
		done += (size_t)got;
	}
	*blobs = read;
	return DDP_OK;
}

void ddp_node_table_close(ddp_node_table *table)
{
	if (table->fd >= 0)
		close(table->fd);
	table->fd = -1;
}
