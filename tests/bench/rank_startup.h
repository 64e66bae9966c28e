/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of startup and wireup print, so that all contenders measure the same way. */
#pragma once

#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

/* The clock is the machine's, the same in every process on it. */
static inline unsigned long long startup_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

/* The process' share of memory, KiB; pages that several processes use count in parts. 0: the system does not tell. */
static inline long startup_memory_kib(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	long kib = 0;

	while (file != NULL && fgets(line, sizeof(line), file) != NULL)
		if (sscanf(line, "Pss: %ld kB", &kib) == 1)
			break;
	if (file != NULL)
		fclose(file);
	return kib;
}

/* Milliseconds of processor time that the process took. */
static inline double startup_cpu_ms(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

/* What a rank had before it was wired up. */
struct startup_begin {
	unsigned long long ns;
	long kib;
	double cpu_ms;
};

static inline struct startup_begin startup_begin(void)
{
	const long kib = startup_memory_kib();

	return (struct startup_begin){ .ns = startup_now_ns(), .kib = kib, .cpu_ms = startup_cpu_ms() };
}

static inline void startup_tell(int rank, unsigned long long done_ns, float sum, struct startup_begin begin)
{
	const double cpu_ms = startup_cpu_ms() - begin.cpu_ms;

	printf("@ %d done %llu %g %llu %ld %.3f\n", rank, done_ns, (double)sum, begin.ns, startup_memory_kib() - begin.kib, cpu_ms);
	fflush(stdout);
}
