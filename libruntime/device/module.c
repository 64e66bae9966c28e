#include "device/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

/* Into `path`, the file to load; false if it is not there. */
static bool find_file(char *path, size_t bytes)
{
	const char *given = secure_getenv("DDP_CUDA_MODULE");
	Dl_info own; /* of libddp, or of a program that holds it */

	if (given != NULL) {
		snprintf(path, bytes, "%s", given);
		return access(path, F_OK) == 0;
	}
	const bool known = dladdr((void *)ddp_device_cuda, &own) != 0 && own.dli_fname != NULL;
	const char *slash = known ? strrchr(own.dli_fname, '/') : NULL;
	snprintf(path, bytes, "%.*sslurm-ddp/libddp_cuda.so",
	         slash != NULL ? (int)(slash + 1 - own.dli_fname) : 0, known ? own.dli_fname : "");
	return slash != NULL && access(path, F_OK) == 0; /* never the present folder's */
}

static ddp_status check_table(const ddp_device_backend *table, const char *path)
{
	if (table == NULL)
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda: %s is no module of libddp's, since it "
		                "lacks the symbol %s", path, DDP_DEVICE_MODULE_SYMBOL);
	if (table->version != DDP_DEVICE_VERSION || table->bytes != sizeof(*table))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda: %s was made for interface %u of libddp "
		                "(%u bytes), and this libddp has %d (%zu bytes): install both from one "
		                "release", path, table->version, table->bytes, DDP_DEVICE_VERSION,
		                sizeof(*table));
	return DDP_OK;
}

static ddp_status load(const ddp_device_backend **backend)
{
	char path[PATH_MAX];

	if (!find_file(path, sizeof(path)))
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda needs a module of libddp, and there is no "
		                "%s: install a libddp that was configured --with-cuda, or name its module "
		                "in DDP_CUDA_MODULE", path);
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *reason = dlerror();
		return ddp_fail(DDP_ERR_UNSUPPORTED, "device cuda: its module does not load: %s",
		                reason != NULL ? reason : path);
	}
	const ddp_device_backend *table = dlsym(handle, DDP_DEVICE_MODULE_SYMBOL);
	ddp_status status = check_table(table, path);
	if (status == DDP_OK)
		*backend = table; /* and it stays loaded: a GPU's library has threads without end */
	else
		dlclose(handle);
	return status;
}

ddp_status ddp_device_cuda(const ddp_device_backend **backend)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const ddp_device_backend *loaded;
	ddp_status status = DDP_OK;

	pthread_mutex_lock(&lock);
	if (loaded == NULL)
		status = load(&loaded);
	*backend = loaded;
	pthread_mutex_unlock(&lock);
	return status;
}
