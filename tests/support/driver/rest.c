/* SPDX-License-Identifier: Apache-2.0 */
/* What the headers of CUDA may not have yet, and what the GPU of the stand-in cannot do: UCX's modules
   are linked to all of it. Without CUDA's header, which has these calls' types. */
#include <stddef.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_SUPPORTED = 801, FOUND = 0, NO_SYMBOL = 1 };

SHOWN int cuCtxGetId(void *context, unsigned long long *id);
SHOWN int cuGetProcAddress_v2(const char *name, int (**function)(unsigned int flags), int version,
                              unsigned long long flags, int *found);
void *cuda_driver_current(void);

int cuCtxGetId(void *context, unsigned long long *id)
{
	*id = 1;
	return context != NULL || cuda_driver_current() != NULL ? SUCCESS : INVALID_CONTEXT;
}

static int set_flags(unsigned int flags)
{
	(void)flags;
	return SUCCESS;
}

int cuGetProcAddress_v2(const char *name, int (**function)(unsigned int flags), int version, unsigned long long flags,
                        int *found)
{
	(void)version;
	(void)flags;
	*function = strcmp(name, "cuCtxSetFlags") == 0 ? set_flags : NULL;
	*found = *function != NULL ? FOUND : NO_SYMBOL;
	return *function != NULL ? SUCCESS : NOT_FOUND;
}

#define NONE(name) \
	SHOWN int name(void); \
	int name(void) \
	{ \
		return NOT_SUPPORTED; \
	}

NONE(cuDeviceGetUuid)
NONE(cuIpcCloseMemHandle)
NONE(cuIpcGetMemHandle)
NONE(cuIpcOpenMemHandle_v2)
NONE(cuMemAddressFree)
NONE(cuMemAddressReserve)
NONE(cuMemAllocManaged)
NONE(cuMemCreate)
NONE(cuMemExportToShareableHandle)
NONE(cuMemGetAllocationGranularity)
NONE(cuMemImportFromShareableHandle)
NONE(cuMemMap)
NONE(cuMemPoolDestroy)
NONE(cuMemPoolExportPointer)
NONE(cuMemPoolExportToShareableHandle)
NONE(cuMemPoolImportFromShareableHandle)
NONE(cuMemPoolImportPointer)
NONE(cuMemPoolSetAccess)
NONE(cuMemRangeGetAttribute)
NONE(cuMemSetAccess)
NONE(cuMemUnmap)
NONE(cuPointerSetAttribute)
NONE(cuStreamAddCallback)
