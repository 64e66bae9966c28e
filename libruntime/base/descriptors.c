/* SPDX-License-Identifier: Apache-2.0 */
#include "base/descriptors.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"

static struct {
	pthread_mutex_t lock;
	int *fds;
	size_t count, room;
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void lock_kept(void)
{
	pthread_mutex_lock(&kept.lock);
}

static void unlock_kept(void)
{
	pthread_mutex_unlock(&kept.lock);
}

static void drop_kept(void)
{
	for (size_t i = 0; i < kept.count; i++)
		close(kept.fds[i]);
	kept.count = 0;
	pthread_mutex_unlock(&kept.lock);
}

static void watch_forks(void)
{
	pthread_atfork(lock_kept, unlock_kept, drop_kept);
}

ddp_status ddp_descriptor_keep(int *fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	lock_kept();
	if (kept.count == kept.room) {
		const size_t room = 2 * kept.room + 16;
		int *fds = realloc(kept.fds, room * sizeof(*fds));
		if (fds == NULL) {
			unlock_kept();
			close(*fd);
			*fd = -1;
			return ddp_fail(DDP_ERR_NOMEM, "no memory for the list of %zu sockets", room);
		}
		kept.fds = fds;
		kept.room = room;
	}
	kept.fds[kept.count++] = *fd;
	unlock_kept();
	return DDP_OK;
}

void ddp_descriptor_close(int fd)
{
	lock_kept();
	for (size_t i = kept.count; i-- > 0;) {
		if (kept.fds[i] == fd) {
			kept.fds[i] = kept.fds[--kept.count];
			close(fd);
			break;
		}
	}
	unlock_kept();
}
