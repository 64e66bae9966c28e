/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/driver/driver.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma GCC visibility push(default)
cuda_driver_switches cuda_driver;
#pragma GCC visibility pop

enum { GPU = 0, ALLOCATIONS_MAX = 256, CONTEXTS_MAX = 16, PAGE = 4096, ASKED_IN_VAIN = 2 };
static const size_t gpu_bytes = (size_t)8 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Counts the call, and says how it ends if the test wants it to fail. Without the lock. */
static CUresult called(const char *name)
{
	CUresult result = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
	if (++cuda_driver.calls == cuda_driver.failing ||
	    (cuda_driver.failing_all != NULL && strcmp(name, cuda_driver.failing_all) == 0)) {
		cuda_driver.failed = name;
		result = CUDA_ERROR_LAUNCH_FAILED;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

#define BEGIN() \
	do { \
		const CUresult begin_result = called(__func__); \
		if (begin_result != CUDA_SUCCESS) \
			return begin_result; \
	} while (0)

/* ---- the GPU and its context ------------------------------------------------------------------- */

struct CUctx_st { int retained; };
static struct CUctx_st primary;

static _Thread_local __attribute__((tls_model("initial-exec"))) struct {
	CUcontext stack[CONTEXTS_MAX];
	int depth;
} of_thread;

CUcontext cuda_driver_current(void)
{
	return of_thread.depth > 0 ? of_thread.stack[of_thread.depth - 1] : NULL;
}

#pragma GCC visibility push(default)

CUresult cuInit(unsigned int flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	*text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_LAUNCH_FAILED ? "the test wants it to fail" :
	        "the stand-in for the driver does not do that";
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	BEGIN();
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int index)
{
	BEGIN();
	*device = index;
	return index == GPU ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	BEGIN();
	snprintf(name, (size_t)bytes, "stand-in %d", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	(void)device;
	BEGIN();
	*bytes = gpu_bytes;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	(void)device;
	BEGIN();
	/* Where it is on the bus, and none of what UCX asks for besides. */
	*value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? 0x41 :
	         attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
	(void)device;
	BEGIN();
	*flags = 0;
	*active = primary.retained > 0;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	(void)device;
	BEGIN();
	pthread_mutex_lock(&lock);
	primary.retained++;
	pthread_mutex_unlock(&lock);
	*context = &primary;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	(void)device;
	pthread_mutex_lock(&lock);
	primary.retained--;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = cuda_driver_current();
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	BEGIN();
	*device = GPU;
	return cuda_driver_current() != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	BEGIN();
	if (of_thread.depth == CONTEXTS_MAX)
		return CUDA_ERROR_INVALID_CONTEXT;
	of_thread.stack[of_thread.depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	if (of_thread.depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	of_thread.depth--;
	if (context != NULL)
		*context = of_thread.stack[of_thread.depth];
	return CUDA_SUCCESS;
}

#pragma GCC visibility pop

/* ---- memory -------------------------------------------------------------------------------------- */

typedef struct allocation {
	char *base, *view; /* as the program and as the driver has it; NULL: free */
	size_t bytes;      /* that were asked for */
	bool virtual_memory;
} allocation;

static allocation allocations[ALLOCATIONS_MAX];

static allocation *find(const void *address)
{
	for (int i = 0; i < ALLOCATIONS_MAX; i++) {
		allocation *a = &allocations[i];
		if (a->base != NULL && (const char *)address >= a->base && (const char *)address < a->base + a->bytes)
			return a;
	}
	return NULL;
}

static allocation *find_device(CUdeviceptr address)
{
	return find((const void *)(uintptr_t)address);
}

static size_t mapped(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static bool map(allocation *a, size_t bytes)
{
	const int fd = memfd_create("gpu", MFD_CLOEXEC);

	if (fd < 0)
		return false;
	if (ftruncate(fd, (off_t)mapped(bytes)) == 0) {
		a->base = mmap(NULL, mapped(bytes), PROT_NONE, MAP_SHARED, fd, 0);
		a->view = mmap(NULL, mapped(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	close(fd);
	if (a->base == NULL || a->base == MAP_FAILED || a->view == MAP_FAILED) {
		a->base = NULL;
		return false;
	}
	a->bytes = bytes;
	a->virtual_memory = cuda_driver.virtual_memory;
	memset(a->view, 0xa5, bytes); /* no test shall live of zeros */
	return true;
}

/* Where the driver reaches so many bytes of the program's. NULL: they exceed their allocation. */
static void *reach(CUdeviceptr address, size_t bytes)
{
	const allocation *a = find_device(address);
	const size_t at = a != NULL ? (size_t)((char *)(uintptr_t)address - a->base) : 0;

	if (a == NULL)
		return (void *)(uintptr_t)address;
	return bytes <= a->bytes - at ? a->view + at : NULL;
}

/* ---- streams and events --------------------------------------------------------------------------- */

typedef struct copy {
	struct copy *next;
	void *to;
	const void *from;
	size_t bytes;
} copy;

struct CUstream_st {
	CUstream next;
	copy *first, **last;
	uint64_t begun, ended; /* copies */
};

struct CUevent_st {
	CUstream stream;       /* NULL: recorded on none */
	uint64_t after;        /* so many copies of it */
	int asked;
};

static CUstream streams;

static void run(CUstream stream, uint64_t until)
{
	while (stream->ended < until) {
		copy *c = stream->first;
		stream->first = c->next;
		if (stream->first == NULL)
			stream->last = &stream->first;
		memmove(c->to, c->from, c->bytes);
		free(c);
		stream->ended++;
		cuda_driver.copies++;
	}
}

static CUresult enqueue(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	copy *c = malloc(sizeof(*c));

	pthread_mutex_lock(&lock);
	*c = (copy){ .to = reach(to, bytes), .from = reach(from, bytes), .bytes = bytes };
	if (c->to == NULL || c->from == NULL) {
		pthread_mutex_unlock(&lock);
		free(c);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*stream->last = c;
	stream->last = &c->next;
	stream->begun++;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* A copy that is on no stream. */
static CUresult move(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	pthread_mutex_lock(&lock);
	void *at = reach(to, bytes);
	const void *of = reach(from, bytes);
	if (at != NULL && of != NULL)
		memmove(at, of, bytes);
	pthread_mutex_unlock(&lock);
	return at != NULL && of != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#pragma GCC visibility push(default)

CUresult cuStreamCreate(CUstream *made, unsigned int flags)
{
	(void)flags;
	BEGIN();
	CUstream s = calloc(1, sizeof(*s));
	s->last = &s->first;
	pthread_mutex_lock(&lock);
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	*made = s;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	run(stream, stream->begun);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
	CUstream *link = &streams;

	pthread_mutex_lock(&lock);
	run(stream, stream->begun);
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	pthread_mutex_unlock(&lock);
	free(stream);
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	(void)flags;
	BEGIN();
	*event = calloc(1, sizeof(**event));
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	*event = (struct CUevent_st){ .stream = stream, .after = stream->begun };
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
	BEGIN();
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	const bool ended = event->stream == NULL || event->stream->ended >= event->after;
	if (!ended && event->asked++ < ASKED_IN_VAIN) {
		cuda_driver.early++;
		result = CUDA_ERROR_NOT_READY;
	} else if (!ended) {
		run(event->stream, event->after);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuEventDestroy(CUevent event)
{
	free(event);
	return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	BEGIN();
	return enqueue(stream, to, from, bytes);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	BEGIN();
	return enqueue(stream, to, from, bytes);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	BEGIN();
	return move(to, (CUdeviceptr)(uintptr_t)from, bytes);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
	BEGIN();
	return move((CUdeviceptr)(uintptr_t)to, from, bytes);
}

/* ---- what the program knows of memory ----------------------------------------------------------------- */

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	int i = 0;
	while (i < ALLOCATIONS_MAX && allocations[i].base != NULL)
		i++;
	const bool made = cuda_driver_current() != NULL && bytes > 0 && i < ALLOCATIONS_MAX && map(&allocations[i], bytes);
	if (made)
		*address = (CUdeviceptr)(uintptr_t)allocations[i].base;
	pthread_mutex_unlock(&lock);
	return made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Waits for all that is under way, as CUDA does. */
CUresult cuMemFree(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	allocation *a = find_device(address);
	for (CUstream s = streams; s != NULL; s = s->next)
		run(s, s->begun);
	if (a != NULL) {
		munmap(a->base, mapped(a->bytes));
		munmap(a->view, mapped(a->bytes));
		a->base = NULL;
	}
	pthread_mutex_unlock(&lock);
	return a != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	const allocation *a = find_device(address);
	if (a != NULL) {
		*base = (CUdeviceptr)(uintptr_t)a->base;
		*bytes = a->bytes;
	}
	pthread_mutex_unlock(&lock);
	return a != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult tell(void *value, CUpointer_attribute attribute, const allocation *a)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(CUmemorytype *)value = a != NULL ? CU_MEMORYTYPE_DEVICE : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_CONTEXT: /* no context has virtual memory */
		*(CUcontext *)value = a != NULL && !a->virtual_memory ? &primary : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)value = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = a != NULL ? GPU : -2;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	const allocation *a = find_device(address);
	const CUresult result = a != NULL ? tell(value, attribute, a) : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_unlock(&lock);
	return result;
}

/* Of memory that is not CUDA's it tells nothing, without an error. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values, CUdeviceptr address)
{
	CUresult result = CUDA_SUCCESS;

	BEGIN();
	pthread_mutex_lock(&lock);
	const allocation *a = find_device(address);
	for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++)
		result = tell(values[i], attributes[i], a);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemHostRegister(void *data, size_t bytes, unsigned int flags)
{
	(void)data;
	(void)bytes;
	(void)flags;
	BEGIN();
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *data)
{
	(void)data;
	return CUDA_SUCCESS;
}

/* Only virtual memory has a handle. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	BEGIN();
	pthread_mutex_lock(&lock);
	const allocation *a = find(address);
	const bool has_one = a != NULL && a->virtual_memory;
	pthread_mutex_unlock(&lock);
	*handle = 1;
	return has_one ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
	(void)handle;
	BEGIN();
	*properties = (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                                     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = GPU } };
	return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	(void)handle;
	return CUDA_SUCCESS;
}
#pragma GCC visibility pop
