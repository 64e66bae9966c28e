/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl/load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

#define LIBRARY "libnccl.so.2"

typedef struct symbol {
	const char *name;
	size_t at;     /* of its pointer in ddp_nccl */
	bool optional;
} symbol;

#define NEEDED(name, member) { name, offsetof(ddp_nccl, member), false }
#define OPTIONAL(name, member) { name, offsetof(ddp_nccl, member), true }

/* The version comes first: what an old library lacks is told by its age. */
static const symbol symbols[] = {
	NEEDED("ncclGetVersion", get_version),
	NEEDED("ncclGetErrorString", error_text),
	NEEDED("ncclGetLastError", last_error),
	NEEDED("ncclGetUniqueId", get_id),
	NEEDED("ncclCommInitRankConfig", init),
	NEEDED("ncclCommGetAsyncError", async_error),
	NEEDED("ncclCommFinalize", finalize),
	NEEDED("ncclCommDestroy", destroy),
	NEEDED("ncclCommAbort", abort),
	NEEDED("ncclGroupStart", group_start),
	NEEDED("ncclGroupEnd", group_end),
	NEEDED("ncclAllReduce", all_reduce),
	NEEDED("ncclReduce", reduce),
	NEEDED("ncclBroadcast", broadcast),
	NEEDED("ncclReduceScatter", reduce_scatter),
	NEEDED("ncclAllGather", all_gather),
	NEEDED("ncclSend", send),
	NEEDED("ncclRecv", recv),
	NEEDED("ncclRedOpCreatePreMulSum", make_scaled_sum),
	NEEDED("ncclRedOpDestroy", free_op),
	OPTIONAL("ncclCommInitRankScalable", init_by_ids),
	OPTIONAL("ncclMemAlloc", mem_alloc),
	OPTIONAL("ncclMemFree", mem_free),
	OPTIONAL("ncclCommRegister", add_buffer),
	OPTIONAL("ncclCommDeregister", remove_buffer),
};

const char *ddp_nccl_version_text(int version, char text[static 32])
{
	snprintf(text, 32, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
	return text;
}

static ddp_status check_version(const ddp_nccl *nccl, const char *path)
{
	char text[32], oldest[32];

	/* Up to 2.8 the number had other digits. */
	if (nccl->version >= DDP_NCCL_OLDEST)
		return DDP_OK;
	if (nccl->version < 10000)
		snprintf(text, sizeof(text), "%d.%d.%d", nccl->version / 1000, nccl->version % 1000 / 100,
		         nccl->version % 100);
	else
		ddp_nccl_version_text(nccl->version, text);
	return ddp_fail(DDP_ERR_UNSUPPORTED, "%s is NCCL %s, and libddp needs %s or later: name a newer one in "
	                "DDP_NCCL", path, text, ddp_nccl_version_text(DDP_NCCL_OLDEST, oldest));
}

static ddp_status find_symbols(void *handle, const char *path, ddp_nccl *nccl)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *found = dlsym(handle, symbols[i].name);
		if (found == NULL && !symbols[i].optional)
			return ddp_fail(DDP_ERR_UNSUPPORTED, "%s lacks %s, so it is no NCCL that libddp can use: name another "
			                "one in DDP_NCCL", path, symbols[i].name);
		*(void **)((char *)nccl + symbols[i].at) = found;
		if (i > 0)
			continue;
		const int result = nccl->get_version(&nccl->version);
		if (result != DDP_NCCL_SUCCESS)
			return ddp_fail(DDP_ERR_UNSUPPORTED, "%s: ncclGetVersion() failed (%d)", path, result);
		const ddp_status status = check_version(nccl, path);
		if (status != DDP_OK)
			return status;
	}
	return DDP_OK;
}

static const char *given_path(void)
{
	const char *given = secure_getenv("DDP_NCCL");

	return given != NULL && given[0] != '\0' ? given : NULL;
}

static ddp_status load(ddp_nccl *nccl)
{
	const char *path = given_path() != NULL ? given_path() : LIBRARY;
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (handle == NULL) {
		const char *reason = dlerror();
		return ddp_fail(DDP_ERR_UNSUPPORTED, "NCCL does not load: %s: install it, or name its library in DDP_NCCL",
		                reason != NULL ? reason : path);
	}
	const ddp_status status = find_symbols(handle, path, nccl);
	/* A library that was used stays loaded: its threads do not end. */
	if (status != DDP_OK)
		dlclose(handle);
	return status;
}

ddp_status ddp_nccl_load(const ddp_nccl **nccl)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static ddp_nccl loaded;
	static bool is_loaded;
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&lock);
	if (!is_loaded)
		status = load(&loaded);
	is_loaded = status == DDP_OK;
	pthread_mutex_unlock(&lock);
	*nccl = &loaded;
	return status;
}
