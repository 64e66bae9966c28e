/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/gpu.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* NVML's interface, as its documentation gives it. */
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;
enum { NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1, NVML_VOLATILE_ECC = 0, NVML_CLOCK_GRAPHICS = 0 };
/* Reasons that mean heat or power: the hardware slows down, by heat, or by an external brake; the software by heat. */
static const unsigned long long BAD_REASONS = 0x8 | 0x20 | 0x40 | 0x80;

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_index)(unsigned, nvmlDevice_t *);
	int (*by_uuid)(const char *, nvmlDevice_t *);
	int (*name)(nvmlDevice_t, char *, unsigned);
	int (*memory)(nvmlDevice_t, nvmlMemory_t *);
	int (*pci)(nvmlDevice_t, nvmlPciInfo_t *);
	int (*ecc)(nvmlDevice_t, int, int, unsigned long long *);
	int (*clock)(nvmlDevice_t, int, unsigned *);
	int (*reasons)(nvmlDevice_t, unsigned long long *);
};

static void *find(const struct nvml *nvml, const char *name)
{
	return dlsym(nvml->library, name);
}

static bool nvml_open(struct nvml *nvml)
{
	*nvml = (struct nvml){ .library = dlopen("libnvidia-ml.so.1", RTLD_NOW) };
	if (nvml->library == NULL)
		return false;
	*(void **)&nvml->init = find(nvml, "nvmlInit_v2");
	*(void **)&nvml->shutdown = find(nvml, "nvmlShutdown");
	*(void **)&nvml->by_index = find(nvml, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&nvml->by_uuid = find(nvml, "nvmlDeviceGetHandleByUUID");
	*(void **)&nvml->name = find(nvml, "nvmlDeviceGetName");
	*(void **)&nvml->memory = find(nvml, "nvmlDeviceGetMemoryInfo");
	*(void **)&nvml->pci = find(nvml, "nvmlDeviceGetPciInfo_v3");
	*(void **)&nvml->ecc = find(nvml, "nvmlDeviceGetTotalEccErrors");
	*(void **)&nvml->clock = find(nvml, "nvmlDeviceGetApplicationsClock");
	*(void **)&nvml->reasons = find(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons");
	if (nvml->init != NULL && nvml->shutdown != NULL && nvml->by_index != NULL && nvml->init() == 0)
		return true;
	dlclose(nvml->library);
	return false;
}

static void nvml_close(struct nvml *nvml)
{
	nvml->shutdown();
	dlclose(nvml->library);
}

/* The rank's entry of CUDA_VISIBLE_DEVICES, or its local index; false: it has none. */
static bool entry_of(const char *visible, int index, char *entry, size_t bytes)
{
	if (visible == NULL) {
		snprintf(entry, bytes, "%d", index);
		return true;
	}
	for (; index > 0 && visible[strcspn(visible, ",")] == ','; index--)
		visible += strcspn(visible, ",") + 1;
	snprintf(entry, bytes, "%.*s", (int)strcspn(visible, ","), visible);
	return index == 0 && entry[0] != '\0';
}

static int local_device(void)
{
	const char *device = getenv("DDP_LOCAL_DEVICE");

	return device != NULL ? atoi(device) : 0;
}

static bool handle_of(const struct nvml *nvml, nvmlDevice_t *device)
{
	char entry[96];

	if (!entry_of(getenv("CUDA_VISIBLE_DEVICES"), local_device(), entry, sizeof(entry)))
		return false;
	if (isdigit((unsigned char)entry[0]))
		return nvml->by_index((unsigned)atoi(entry), device) == 0;
	return nvml->by_uuid != NULL && nvml->by_uuid(entry, device) == 0;
}

const char *preflight_gpu_device(void)
{
	struct nvml nvml;
	nvmlDevice_t device;
	bool found;

	if (!nvml_open(&nvml))
		return NULL;
	found = handle_of(&nvml, &device);
	nvml_close(&nvml);
	return found ? "cuda" : NULL;
}

static void note_bus(struct preflight_facts *facts, const nvmlPciInfo_t *pci)
{
	char path[96];

	/* sysfs has four digits of the domain, in small letters. */
	snprintf(facts->gpu_bus, sizeof(facts->gpu_bus), "%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.32s", facts->gpu_bus);
	facts->gpu_numa = preflight_numa_of(path);
}

static void note(struct preflight_facts *facts, const struct nvml *nvml, nvmlDevice_t device)
{
	nvmlMemory_t memory;
	nvmlPciInfo_t pci;
	unsigned long long number;
	unsigned mhz;

	if (nvml->name != NULL && nvml->name(device, facts->gpu, sizeof(facts->gpu)) != 0)
		facts->gpu[0] = '\0';
	if (nvml->memory != NULL && nvml->memory(device, &memory) == 0)
		facts->gpu_memory_bytes = (int64_t)memory.total;
	if (nvml->pci != NULL && nvml->pci(device, &pci) == 0)
		note_bus(facts, &pci);
	if (nvml->ecc != NULL && nvml->ecc(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &number) == 0)
		facts->gpu_ecc_errors = (int64_t)number;
	if (nvml->clock != NULL && nvml->clock(device, NVML_CLOCK_GRAPHICS, &mhz) == 0)
		facts->gpu_clock_mhz = mhz;
	if (nvml->reasons != NULL && nvml->reasons(device, &number) == 0)
		facts->gpu_throttled = (int64_t)(number & BAD_REASONS);
}

void preflight_gpu_read(struct preflight_facts *facts)
{
	struct nvml nvml;
	nvmlDevice_t device;

	if (!nvml_open(&nvml))
		return;
	if (handle_of(&nvml, &device))
		note(facts, &nvml, device);
	nvml_close(&nvml);
}
