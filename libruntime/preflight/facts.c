/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/facts.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "build_version.h"
#include "preflight/judge_links.h"
#include "preflight/judge_ranks.h"

enum { NUMA_NODES = 64, LINE = 512, CPUS_MAX = 8192 };

/* Reads the first line of `path` into `line` without its end. */
static bool read_line(const char *path, char *line, int bytes)
{
	FILE *file = fopen(path, "re");
	bool read = file != NULL && fgets(line, bytes, file) != NULL;

	if (file != NULL)
		fclose(file);
	if (!read)
		line[0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	return read;
}

/* Writes text that a terminal and JSON take. */
static void note(char word[PREFLIGHT_WORD], const char *text)
{
	size_t i = 0;

	for (; text[i] != '\0' && i < PREFLIGHT_WORD - 1; i++)
		word[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	word[i] = '\0';
}

static void note_line(char word[PREFLIGHT_WORD], const char *path)
{
	char line[LINE];

	if (read_line(path, line, sizeof(line)))
		note(word, line);
}

static int64_t limit_of(int resource)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) != 0)
		return 0;
	return limit.rlim_cur == RLIM_INFINITY ? PREFLIGHT_UNLIMITED : (int64_t)limit.rlim_cur;
}

static void note_processor(struct preflight_facts *facts)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[LINE];

	while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
		const char *colon = strchr(line, ':');
		line[strcspn(line, "\n")] = '\0';
		if (colon == NULL || (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0))
			continue;
		note(facts->processor, colon + 1 + strspn(colon + 1, " "));
		break;
	}
	if (file != NULL)
		fclose(file);
}

/* The version that a library has, if the process has loaded it. */
static void note_ucx(struct preflight_facts *facts)
{
	void *library = dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD);
	const char *(*version)(void) = NULL;

	if (library == NULL)
		return;
	*(void **)&version = dlsym(library, "ucp_get_version_string");
	if (version != NULL)
		note(facts->ucx, version());
	dlclose(library);
}

static void note_driver(struct preflight_facts *facts)
{
	note_line(facts->driver, "/sys/module/nvidia/version");
	if (facts->driver[0] != '\0')
		return;
	note_line(facts->driver, "/sys/module/amdgpu/version");
}

/* Only where there is a GPU, since the library is large. */
static void note_nccl(struct preflight_facts *facts)
{
	void *library = facts->driver[0] != '\0' ? dlopen("libnccl.so.2", RTLD_LAZY) : NULL;
	int (*get)(int *) = NULL;
	char text[32];
	int version = 0;

	if (library == NULL)
		return;
	*(void **)&get = dlsym(library, "ncclGetVersion");
	if (get != NULL && get(&version) == 0) {
		snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
		note(facts->nccl, text);
	}
}

static bool is_empty(const char *path)
{
	DIR *folder = opendir(path);
	const struct dirent *entry;
	bool empty = true;

	while (folder != NULL && empty && (entry = readdir(folder)) != NULL)
		empty = entry->d_name[0] == '.';
	if (folder != NULL)
		closedir(folder);
	return empty;
}

/* The NUMA node that sysfs gives for a device, such as "/sys/class/net/eth0/device"; -1: not known. */
static int64_t numa_of(const char *device)
{
	char path[LINE + 16], line[32];

	snprintf(path, sizeof(path), "%s/numa_node", device);
	return read_line(path, line, sizeof(line)) ? strtol(line, NULL, 10) : -1;
}

static bool is_of_numa(int cpu, int numa)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpu%d", numa, cpu);
	return access(path, F_OK) == 0;
}

static void note_cpus(struct preflight_facts *facts)
{
	cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
	size_t bytes = CPU_ALLOC_SIZE(CPUS_MAX);
	uint64_t sum = 1469598103934665603u;

	if (set == NULL)
		return;
	if (sched_getaffinity(0, bytes, set) == 0) {
		for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
			if (!CPU_ISSET_S((size_t)cpu, bytes, set))
				continue;
			facts->cpus++;
			sum = (sum ^ (uint64_t)cpu) * 1099511628211u;
			for (int numa = 0; numa < NUMA_NODES; numa++)
				if (is_of_numa(cpu, numa)) {
					facts->numa |= 1ull << numa;
					break;
				}
		}
		facts->cpu_sum = sum;
	}
	CPU_FREE(set);
}

static void note_shm(struct preflight_facts *facts)
{
	struct statvfs shm;

	if (statvfs("/dev/shm", &shm) != 0)
		return;
	facts->shm_bytes = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
	facts->shm_free_bytes = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
}

static void note_versions(struct preflight_facts *facts)
{
	struct utsname name;

	if (uname(&name) == 0)
		note(facts->kernel, name.release);
	note(facts->glibc, gnu_get_libc_version());
	note(facts->libddp, ddp_version());
	note_ucx(facts);
	note_driver(facts);
	note_nccl(facts);
}

void preflight_facts_limits(struct preflight_facts *facts)
{
	facts->memlock = limit_of(RLIMIT_MEMLOCK);
	facts->nofile = limit_of(RLIMIT_NOFILE);
}

void preflight_facts_read(struct preflight_facts *facts, const ddp_job *job, int threads)
{
	const char *name = getenv("SLURMD_NODENAME");

	*facts = (struct preflight_facts){ .rank = job->rank, .node = job->node_rank, .local_rank = job->local_rank,
		                           .threads = threads, .memlock = facts->memlock, .nofile = facts->nofile,
		                           .gpu_numa = -1, .gpu_ecc_errors = -1 };
	note(facts->node_name, name != NULL && name[0] != '\0' ? name : job->hostname);
	note_line(facts->machine, "/proc/sys/kernel/random/boot_id");
	if (facts->machine[0] == '\0')
		note(facts->machine, facts->node_name);
	note_processor(facts);
	note_versions(facts);
	facts->processors = sysconf(_SC_NPROCESSORS_ONLN);
	facts->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	note_shm(facts);
	facts->has_rdma = !is_empty("/sys/class/infiniband");
	note_cpus(facts);
}

/* ---- the GPU ---- */

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
	facts->gpu_numa = numa_of(path);
}

static void note_gpu(struct preflight_facts *facts, const struct nvml *nvml, nvmlDevice_t device)
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
		note_gpu(facts, &nvml, device);
	nvml_close(&nvml);
}

/* ---- which ddp-preflight each rank runs ---- */

/* It grows when a structure that ranks send changes, or the order in which they send. */
enum { FORM = 3 };

const char *preflight_version(void)
{
	return BUILD_VERSION;
}

void preflight_release_own(struct preflight_release *own, const char *node)
{
	memset(own, 0, sizeof(*own));
	snprintf(own->node, sizeof(own->node), "%s", node);
	snprintf(own->version, sizeof(own->version), "%s", preflight_version());
	/* Sizes differ where words do, and where somebody has forgotten to raise the number. */
	snprintf(own->form, sizeof(own->form), "%d %d %zu %zu %zu %zu %zu", FORM, __BYTE_ORDER, sizeof(struct preflight_facts),
	         sizeof(struct preflight_figures), sizeof(struct preflight_link),
	         sizeof(struct preflight_ranks_again), sizeof(struct preflight_links_again));
}

static bool is_word(const char *a, const char *b)
{
	return strncmp(a, b, PREFLIGHT_RELEASE_WORD) == 0;
}

static bool is_same(const struct preflight_release *a, const struct preflight_release *b)
{
	return is_word(a->version, b->version) && is_word(a->form, b->form);
}

/* Whether no earlier rank of this one's node runs another release, too. */
static bool is_first_of_node(const struct preflight_release *all, int rank)
{
	for (int r = 1; r < rank; r++)
		if (!is_same(&all[r], &all[0]) && is_word(all[r].node, all[rank].node))
			return false;
	return true;
}

bool preflight_releases_agree(const struct preflight_release *all, int ranks, char text[PREFLIGHT_RELEASE_TEXT])
{
	int odd = 0, nodes = 0;
	char others[48] = "";

	for (int r = ranks - 1; r > 0; r--) {
		if (is_same(&all[r], &all[0]))
			continue;
		odd = r;
		nodes += is_first_of_node(all, r);
	}
	if (odd == 0)
		return true;
	if (nodes > 1)
		snprintf(others, sizeof(others), " and %d other node%s", nodes - 1, nodes > 2 ? "s" : "");
	if (is_word(all[odd].version, all[0].version))
		snprintf(text, PREFLIGHT_RELEASE_TEXT,
		         "%.63s%s run%s another build of ddp-preflight %.63s than %.63s: install one build on all nodes",
		         all[odd].node, others, nodes > 1 ? "" : "s", all[odd].version, all[0].node);
	else
		snprintf(text, PREFLIGHT_RELEASE_TEXT,
		         "%.63s%s run%s ddp-preflight %.63s, and %.63s runs %.63s: install one release on all nodes",
		         all[odd].node, others, nodes > 1 ? "" : "s", all[odd].version, all[0].node, all[0].version);
	return false;
}
