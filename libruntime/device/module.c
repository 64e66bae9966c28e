/* SPDX-License-Identifier: Apache-2.0 */
#include "device/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

/* A module is a file of the folder slurm-ddp beside libddp, or the one that a variable
   of the environment names, for the table that it exports. */
typedef struct module {
	const char *kind, *file, *variable, *symbol;
	const char *source; /* what to do where there is no such file */
} module;

/* All tables begin with this. */
typedef struct table_head {
	uint32_t version, bytes;
} table_head;

/* Into `path`, the file to load; false if it is not there. */
static bool find_file(const module *m, char *path, size_t bytes)
{
	const char *given = secure_getenv(m->variable);
	Dl_info own; /* of libddp, or of a program that holds it */

	if (given != NULL) {
		snprintf(path, bytes, "%s", given);
		return access(path, F_OK) == 0;
	}
	const bool known = dladdr((void *)ddp_device_cuda, &own) != 0 && own.dli_fname != NULL;
	const char *slash = known ? strrchr(own.dli_fname, '/') : NULL;
	snprintf(path, bytes, "%.*sslurm-ddp/%s",
	         slash != NULL ? (int)(slash + 1 - own.dli_fname) : 0, known ? own.dli_fname : "", m->file);
	return slash != NULL && access(path, F_OK) == 0; /* never the present folder's */
}

static ddp_status check_table(const module *m, const table_head *table, const table_head *want,
                              const char *path)
{
	if (table == NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device %s: %s is no module of libddp's, since it "
		                "lacks the symbol %s: install that of this libddp, or name it in %s", m->kind, path,
		                m->symbol, m->variable);
	if (table->version != want->version || table->bytes != want->bytes)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device %s: %s was made for interface %u of libddp "
		                "(%u bytes), and this libddp has %u (%u bytes): install both from one "
		                "release", m->kind, path, table->version, table->bytes, want->version, want->bytes);
	return DDP_OK;
}

static ddp_status load(const module *m, const table_head *want, const void **loaded)
{
	char path[PATH_MAX];

	if (!find_file(m, path, sizeof(path)))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device %s needs a module of libddp, and there is no %s: %s, or name "
		                "its module in %s", m->kind, path, m->source, m->variable);
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *reason = dlerror();
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device %s: its module does not load: %s: install that of this "
		                "libddp, or name it in %s", m->kind, reason != NULL ? reason : path, m->variable);
	}
	const void *table = dlsym(handle, m->symbol);
	ddp_status status = check_table(m, table, want, path);
	if (status == DDP_OK)
		*loaded = table; /* and it stays loaded: a GPU's library has threads without end */
	else
		dlclose(handle);
	return status;
}

/* Once in a process: *loaded is NULL before. */
static ddp_status load_once(const module *m, const table_head *want, const void **loaded)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&lock);
	if (*loaded == NULL)
		status = load(m, want, loaded);
	pthread_mutex_unlock(&lock);
	return status;
}

static ddp_status load_backend(const module *m, const void **loaded, const ddp_device_backend **backend)
{
	static const table_head want = { DDP_DEVICE_VERSION, sizeof(ddp_device_backend) };

	ddp_status status = load_once(m, &want, loaded);
	if (status == DDP_OK)
		*backend = *loaded;
	return status;
}

#define INSTALL "install a libddp that was configured --with-cuda"

ddp_status ddp_device_cuda(const ddp_device_backend **backend)
{
	static const module m = { "cuda", "libddp_cuda.so", "DDP_CUDA_MODULE", DDP_DEVICE_MODULE_SYMBOL, INSTALL };
	static const void *loaded;

	return load_backend(&m, &loaded, backend);
}

ddp_status ddp_device_cuda_kernels(const dk_table **table)
{
	static const module m = { "cuda", "libddp_kernels_cuda.so", "DDP_CUDA_KERNELS", "dk_cuda_table", INSTALL };
	static const table_head want = { DK_TABLE_VERSION, sizeof(dk_table) };
	static const void *loaded;

	ddp_status status = load_once(&m, &want, &loaded);
	if (status == DDP_OK)
		*table = loaded;
	return status;
}
