/* SPDX-License-Identifier: Apache-2.0 */
/* Contenders "plain" and "memcpy": what a node's memory gives without any
   library.

     plain   forked ranks in one shared mapping: barrier, each rank reduces
             its slice from all ranks and stores it to all, barrier
     memcpy  each rank copies its own private buffer to another, all at once:
             every byte read once and written once, as an all-reduce must */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rank.h"

enum {
	MAX_RANKS = 64,
	CHUNK = 2048,         /* floats whose sum stays in the first-level cache */
	SPINS_CROWDED = 50,   /* before giving up the core: more ranks than cores, */
	SPINS_ALONE = 100000  /* or a core for each rank */
};

/* One writer each, on a line of its own. */
struct flag {
	alignas(64) _Atomic uint64_t arrived;
};

struct plain_engine {
	struct rank_engine base;
	struct flag *flags;      /* [size] */
	uint64_t passed;         /* barriers */
	int spins;
	char *regions;           /* size * region_bytes, shared by all ranks */
	size_t region_bytes;
	float *target;           /* memcpy: [count] */
};

static bool barrier(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;
	uint64_t round = ++self->passed;

	atomic_store_explicit(&self->flags[engine->rank].arrived, round, memory_order_release);
	for (int peer = 0; peer < engine->size; peer++) {
		int spins = 0;

		while (atomic_load_explicit(&self->flags[peer].arrived, memory_order_acquire) < round) {
			if (++spins > self->spins)
				sched_yield();
		}
	}
	return true;
}

static float *region(const struct plain_engine *self, int rank)
{
	return (float *)(void *)(self->regions + (size_t)rank * self->region_bytes);
}

static bool plain_open(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;

	if (engine->count * sizeof(float) > self->region_bytes)
		return rank_fail(engine, "%zu floats are more than MAX_BYTES", engine->count);
	engine->data = region(self, engine->rank);
	return true;
}

static bool plain_close(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;

	/* Gives the pages back; other contenders need them. */
	if (madvise(engine->data, self->region_bytes, MADV_REMOVE))
		return rank_fail(engine, "madvise: %s", strerror(errno));
	return true;
}

static void reduce_chunk(const struct plain_engine *self, size_t first, size_t count)
{
	float sum[CHUNK];

	memcpy(sum, region(self, 0) + first, count * sizeof(float));
	for (int peer = 1; peer < self->base.size; peer++) {
		const float *data = region(self, peer) + first;

		#pragma omp simd
		for (size_t i = 0; i < count; i++)
			sum[i] += data[i];
	}
	for (int peer = 0; peer < self->base.size; peer++)
		memcpy(region(self, peer) + first, sum, count * sizeof(float));
}

static bool plain_operate(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;
	/* Whole cache lines each, so that no two ranks write to the same one. */
	size_t lines = (engine->count + 15) / 16;
	size_t first = lines * (size_t)engine->rank / (size_t)engine->size * 16;
	size_t end = lines * ((size_t)engine->rank + 1) / (size_t)engine->size * 16;

	if (end > engine->count)
		end = engine->count;
	barrier(engine);
	for (; first < end; first += CHUNK)
		reduce_chunk(self, first, end - first < CHUNK ? end - first : CHUNK);
	return barrier(engine);
}

static bool memcpy_open(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;
	size_t bytes = engine->count * sizeof(float);
	void *source, *target;

	if (posix_memalign(&source, 4096, bytes))
		return rank_fail(engine, "no memory for %zu bytes", bytes);
	if (posix_memalign(&target, 4096, bytes)) {
		free(source);
		return rank_fail(engine, "no memory for %zu bytes", bytes);
	}
	memset(target, 0, bytes);
	engine->data = source;
	self->target = target;
	return true;
}

static bool memcpy_close(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;

	free(engine->data);
	free(self->target);
	engine->data = NULL;
	self->target = NULL;
	return true;
}

static bool memcpy_operate(struct rank_engine *engine)
{
	struct plain_engine *self = (struct plain_engine *)engine;

	memcpy(self->target, engine->data, engine->count * sizeof(float));
	/* Keeps the compiler from dropping copies that nobody reads. */
	__asm__ volatile("" : : "r"(self->target) : "memory");
	return true;
}

static int start_ranks(struct plain_engine *self)
{
	pid_t parent = getpid();
	int code = 0, status;

	for (int rank = 0; rank < self->base.size; rank++) {
		pid_t pid = fork();

		if (pid < 0)
			return rank_report_error(rank, strerror(errno));
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			self->base.rank = rank;
			_exit(rank_serve(&self->base, rank_command_fd(rank)));
		}
	}
	while (wait(&status) > 0) {
		if (status)
			code = 1;
	}
	return code;
}

int main(int argc, char **argv)
{
	struct plain_engine self = { .base = { .barrier = barrier } };
	bool copies = argc == 4 && strcmp(argv[1], "memcpy") == 0;
	size_t flag_bytes;

	if (argc != 4 || (!copies && strcmp(argv[1], "plain") != 0)) {
		fprintf(stderr, "usage: %s plain|memcpy RANKS MAX_BYTES\n", argv[0]);
		return 2;
	}
	self.base.size = (int)rank_number("RANKS", argv[2], 1, MAX_RANKS);
	self.region_bytes = (size_t)rank_number("MAX_BYTES", argv[3], 4, 1L << 36);
	self.region_bytes = (self.region_bytes + 4095) & ~(size_t)4095;
	self.spins = self.base.size > sysconf(_SC_NPROCESSORS_ONLN) ? SPINS_CROWDED : SPINS_ALONE;
	self.base.reduces = !copies;
	self.base.open = copies ? memcpy_open : plain_open;
	self.base.operate = copies ? memcpy_operate : plain_operate;
	self.base.close = copies ? memcpy_close : plain_close;

	flag_bytes = (size_t)self.base.size * sizeof *self.flags;
	self.flags = mmap(NULL, flag_bytes, PROT_READ | PROT_WRITE,
	                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	self.regions = mmap(NULL, (size_t)self.base.size * self.region_bytes,
	                    PROT_READ | PROT_WRITE,
	                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (self.flags == MAP_FAILED || self.regions == MAP_FAILED)
		return rank_report_error(0, "no shared memory");
	return start_ranks(&self);
}
