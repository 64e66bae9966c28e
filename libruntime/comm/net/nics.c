/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/nics.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/c_locale.h"

enum { NICS_MAX = 64 /* bits of a set */, NUMA_MAX = 64, NAME_MAX_BYTES = 64, NEAREST = 10 };

typedef struct nic {
	char name[NAME_MAX_BYTES]; /* DEVICE:PORT */
	char subnet[20];           /* the first half of its address */
	double gbits;
	bool infiniband;
	int numa;                  /* memory node; -1: not known */
} nic;

typedef struct nics {
	nic list[NICS_MAX];
	int count;
} nics;

/* The first line of a file; false if there is none. */
__attribute__((format(printf, 3, 4)))
static bool read_line(char *line, int bytes, const char *format, ...)
{
	char path[512];
	va_list arguments;

	va_start(arguments, format);
	const int length = vsnprintf(path, sizeof(path), format, arguments);
	va_end(arguments);
	FILE *file = length > 0 && (size_t)length < sizeof(path) ? fopen(path, "re") : NULL;
	if (file == NULL)
		return false;
	const bool found = fgets(line, bytes, file) != NULL;
	fclose(file);
	line[found ? strcspn(line, "\n") : 0] = '\0';
	return found;
}

/* ---- memory nodes ------------------------------------------------------------------------ */

/* Is a core of a list such as "0-3,8" allowed? */
static bool is_allowed(const char *list, const cpu_set_t *allowed, size_t bytes)
{
	while (isdigit((unsigned char)*list)) {
		char *end;
		const unsigned long first = strtoul(list, &end, 10);
		const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
		for (unsigned long core = first; core <= last && core < 8 * bytes; core++) {
			if (CPU_ISSET_S(core, bytes, allowed))
				return true;
		}
		list = *end == ',' ? end + 1 : end;
	}
	return false;
}

/* Measures from the nearest memory node of the allowed cores to each memory node. A node that does not exist, or
   of which nothing is known, counts as the nearest. */
static void measure(const char *sys, const cpu_set_t *allowed, size_t bytes, int distances[NUMA_MAX])
{
	int columns[NUMA_MAX], count = 0;
	char line[1024];

	for (int node = 0; node < NUMA_MAX; node++) {
		distances[node] = NEAREST;
		if (read_line(line, sizeof(line), "%s/devices/system/node/node%d/distance", sys, node))
			columns[count++] = node;
	}
	for (int k = 0; k < count; k++)
		distances[columns[k]] = INT32_MAX;
	for (int k = 0; k < count; k++) {
		if (!read_line(line, sizeof(line), "%s/devices/system/node/node%d/cpulist", sys, columns[k]) ||
		    !is_allowed(line, allowed, bytes) ||
		    !read_line(line, sizeof(line), "%s/devices/system/node/node%d/distance", sys, columns[k]))
			continue;
		char *at = line;
		for (int to = 0; to < count; to++) {
			const int distance = (int)strtol(at, &at, 10);
			if (distance > 0 && distance < distances[columns[to]])
				distances[columns[to]] = distance;
		}
	}
}

/* ---- ports ------------------------------------------------------------------------------- */

/* If it is active. */
static void add_port(const char *sys, const char *device, const char *port, nics *all)
{
	char line[256];
	nic *n = &all->list[all->count];

	if (all->count == NICS_MAX ||
	    !read_line(line, sizeof(line), "%s/class/infiniband/%s/ports/%s/state", sys, device, port) ||
	    strncmp(line, "4:", 2) != 0)
		return;
	const int length = snprintf(n->name, sizeof(n->name), "%s:%s", device, port);
	if (length < 0 || (size_t)length >= sizeof(n->name))
		return;
	n->infiniband =
		read_line(line, sizeof(line), "%s/class/infiniband/%s/ports/%s/link_layer", sys, device, port) &&
		strcmp(line, "InfiniBand") == 0;
	n->gbits = read_line(line, sizeof(line), "%s/class/infiniband/%s/ports/%s/rate", sys, device, port)
		? ddp_read_number(line, NULL) : 0;
	if (!read_line(line, sizeof(line), "%s/class/infiniband/%s/ports/%s/gids/0", sys, device, port))
		line[0] = '\0';
	snprintf(n->subnet, sizeof(n->subnet), "%.19s", line);
	n->numa = read_line(line, sizeof(line), "%s/class/infiniband/%s/device/numa_node", sys, device)
		? atoi(line) : -1;
	all->count++;
}

/* Permissions do not tell: a cgroup forbids the opening. */
static bool can_open(const char *dev, const char *verbs)
{
	char path[512];

	if (snprintf(path, sizeof(path), "%s/%s", dev, verbs) >= (int)sizeof(path))
		return false;
	const int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		ddp_log(DDP_LOG_DEBUG, "cannot open %s: %s", path, ddp_reason(errno));
	else
		close(fd);
	return fd >= 0;
}

/* The folder "device" does not tell that, because Soft-RoCE and siw lack it. Their verbs tell whose they are. */
static bool is_usable(const char *sys, const char *dev, const char *device)
{
	char path[512], owner[NAME_MAX_BYTES];
	const struct dirent *entry;
	bool usable = false;

	if (snprintf(path, sizeof(path), "%s/class/infiniband_verbs", sys) >= (int)sizeof(path))
		return false;
	DIR *verbs = opendir(path);
	while (verbs != NULL && !usable && (entry = readdir(verbs)) != NULL)
		usable = entry->d_name[0] != '.' && read_line(owner, sizeof(owner), "%s/%s/ibdev", path, entry->d_name) &&
			strcmp(owner, device) == 0 && can_open(dev, entry->d_name);
	if (verbs != NULL)
		closedir(verbs);
	return usable;
}

static void list_ports(const char *sys, const char *device, nics *all)
{
	char path[512];
	const struct dirent *entry;

	if (snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports", sys, device) >= (int)sizeof(path))
		return;
	DIR *ports = opendir(path);
	while (ports != NULL && (entry = readdir(ports)) != NULL) {
		if (isdigit((unsigned char)entry->d_name[0]))
			add_port(sys, device, entry->d_name, all);
	}
	if (ports != NULL)
		closedir(ports);
}

static int by_name(const void *a, const void *b)
{
	return strverscmp(((const nic *)a)->name, ((const nic *)b)->name);
}

static DIR *open_devices(const char *sys)
{
	char path[512];

	return snprintf(path, sizeof(path), "%s/class/infiniband", sys) < (int)sizeof(path) ? opendir(path) : NULL;
}

bool ddp_nics_any(const char *sys, const char *dev)
{
	DIR *devices = open_devices(sys);
	const struct dirent *entry;
	bool found = false;

	while (devices != NULL && !found && (entry = readdir(devices)) != NULL)
		found = entry->d_name[0] != '.' && is_usable(sys, dev, entry->d_name);
	if (devices != NULL)
		closedir(devices);
	return found;
}

static void list_nics(const char *sys, const char *dev, nics *all)
{
	DIR *devices = open_devices(sys);
	const struct dirent *entry;

	all->count = 0;
	while (devices != NULL && (entry = readdir(devices)) != NULL) {
		if (entry->d_name[0] != '.' && is_usable(sys, dev, entry->d_name))
			list_ports(sys, entry->d_name, all);
	}
	if (devices != NULL)
		closedir(devices);
	qsort(all->list, (size_t)all->count, sizeof(all->list[0]), by_name);
}

/* ---- the choice ---------------------------------------------------------------------------- */

/* Keeps the ports of the highest rate. */
static void keep_fastest(nics *all)
{
	double most = 0;
	int kept = 0;

	for (int i = 0; i < all->count; i++)
		most = all->list[i].gbits > most ? all->list[i].gbits : most;
	for (int i = 0; i < all->count; i++) {
		if (all->list[i].gbits == most)
			all->list[kept++] = all->list[i];
	}
	all->count = kept;
}

static bool same_infiniband(const nics *all)
{
	for (int i = 0; i < all->count; i++) {
		if (!all->list[i].infiniband || all->list[i].subnet[0] == '\0' ||
		    strcmp(all->list[i].subnet, all->list[0].subnet) != 0)
			return false;
	}
	return true;
}

/* Returns the ports that are nearest to the cores of a rank, as a set of bits. */
static uint64_t find_near(const char *sys, const nics *all, const cpu_set_t *allowed, size_t bytes)
{
	int distances[NUMA_MAX], least = INT32_MAX;
	uint64_t near = 0;

	measure(sys, allowed, bytes, distances);
	for (int i = 0; i < all->count; i++) {
		const int numa = all->list[i].numa;
		const int distance = numa >= 0 && numa < NUMA_MAX ? distances[numa] : NEAREST;
		if (distance > least)
			continue;
		if (distance < least)
			near = 0;
		least = distance;
		near |= (uint64_t)1 << i;
	}
	return near;
}

/* The k-th of a set, from 0. */
static int member(uint64_t set, int k)
{
	while (k-- > 0)
		set &= set - 1;
	return __builtin_ctzll(set);
}

bool ddp_nics_choose(const char *sys, const char *dev, const cpu_set_t *allowed, size_t allowed_bytes, int local,
                     int locals, char *names, size_t bytes)
{
	const size_t sets = allowed_bytes / sizeof(*allowed);
	int before = 0, sharers = 1;
	size_t length = 0;
	nics all;

	list_nics(sys, dev, &all);
	keep_fastest(&all);
	if (all.count < 2 || !same_infiniband(&all))
		return false;
	const uint64_t near = find_near(sys, &all, allowed + (size_t)local * sets, allowed_bytes);
	const int count = __builtin_popcountll(near);
	for (int i = 0; i < locals; i++) {
		if (i == local || find_near(sys, &all, allowed + (size_t)i * sets, allowed_bytes) != near)
			continue;
		sharers++;
		before += i < local;
	}
	const int share = count > sharers ? count / sharers : 1;
	if (share == all.count)
		return false;
	for (int k = 0; k < share; k++) {
		const char *name = all.list[member(near, (before * share + k) % count)].name;
		const int more = snprintf(names + length, bytes - length, "%s%s", k > 0 ? "," : "", name);
		if (more < 0 || (size_t)more >= bytes - length)
			return false;
		length += (size_t)more;
	}
	return true;
}
