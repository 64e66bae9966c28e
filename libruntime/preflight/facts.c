/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/facts.h"

#include <dirent.h>
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { NUMA_NODES = 64, LINE = 512, CPUS_MAX = 8192 };

bool preflight_read_line(const char *path, char *line, int bytes)
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

	if (preflight_read_line(path, line, sizeof(line)))
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

int64_t preflight_numa_of(const char *device)
{
	char path[LINE + 16], line[32];

	snprintf(path, sizeof(path), "%s/numa_node", device);
	return preflight_read_line(path, line, sizeof(line)) ? strtol(line, NULL, 10) : -1;
}

/* The first device of a class that tells has it; bridges and such have none. */
static int64_t numa_of_class(const char *class)
{
	DIR *folder = opendir(class);
	const struct dirent *entry;
	int64_t numa = -1;
	char path[LINE];

	while (folder != NULL && numa < 0 && (entry = readdir(folder)) != NULL) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%.100s/%.300s/device", class, entry->d_name);
		numa = preflight_numa_of(path);
	}
	if (folder != NULL)
		closedir(folder);
	return numa;
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
		                           .gpu_numa = -1, .gpu_ecc_errors = -1, .nic_numa = -1 };
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
	facts->nic_numa = facts->has_rdma ? numa_of_class("/sys/class/infiniband") : numa_of_class("/sys/class/net");
	note_cpus(facts);
}
