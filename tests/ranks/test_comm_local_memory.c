/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan; takes: 9 */
/* Memory that one rank allocates alone, and that the others of its node map when an operation names it. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/core/comm.h"
#include "comm/shm/borrow.h"
#include "comm/shm/memory.h"
#include "tests/support/comm_ranks.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

/* Sanitizers are slower, and need not as many elements. */
enum { RANKS = 4, COUNT = SANITIZER ? 40000 : 200000 };

static void run(int (*body)(ddp_comm *, void *))
{
	static const int two_nodes[] = { 0, 1, 1, 0 };

	for (int i = 0; i < 2; i++)
		RUN_WORLD(.ranks = RANKS, .node_of = i == 0 ? NULL : two_nodes, .timeout_ms = 20000, .body = body);
}

static float *allocate(ddp_comm *comm, size_t count)
{
	void *memory;

	CHECK_OK(ddp_mem_alloc_local(comm, count * sizeof(float), &memory));
	CHECK((uintptr_t)memory % (size_t)sysconf(_SC_PAGESIZE) == 0);
	for (size_t i = 0; i < count; i++)
		CHECK(((float *)memory)[i] == 0);
	return memory;
}

static void sum(ddp_comm *comm, const float *send, float *recv, int times)
{
	const int rank = ddp_comm_rank(comm);

	for (int k = 0; k < times; k++) {
		float *input = send != NULL ? (float *)(uintptr_t)send : recv;
		for (int i = 0; i < COUNT; i++)
			input[i] = (float)(i % 1000 + rank + k);
		CHECK_OK(ddp_all_reduce(comm, send, recv, COUNT, DDP_F32, DDP_SUM));
		for (int i = 0; i < COUNT; i++)
			CHECK(recv[i] == (float)(RANKS * (i % 1000 + k) + RANKS * (RANKS - 1) / 2));
	}
}

/* Each kind of memory on some ranks. */
static int mix_memory(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm);
	void *shared;

	CHECK_OK(ddp_mem_alloc(comm, COUNT * sizeof(float), &shared));
	for (int own = 0; own < 1 << RANKS; own += 3) {
		/* What a rank has of its own begins anywhere in it, and is another size on each. */
		float *mine = allocate(comm, 2 * COUNT + 5000 * (size_t)rank), *plain = malloc(COUNT * sizeof(float));
		CHECK(plain != NULL);
		float *place = (own >> rank & 1) != 0 ? mine + 17 * rank : own % 2 == 0 ? plain : shared;
		sum(comm, NULL, place, 3);
		sum(comm, mine + COUNT, place == mine ? mine : plain, 1);
		CHECK_OK(ddp_mem_free(comm, mine));
		free(plain);
	}
	CHECK_OK(ddp_mem_free(comm, shared));
	return 0;
}

TEST_RUNS(own_memory_is_reduced_beside_any_other, run(mix_memory));

/* Nothing is copied: results come into memory that others have mapped. */
static int look_at_mappings(ddp_comm *comm, void *argument)
{
	char line[512];
	int before = 0, after = 0;

	float *mine = allocate(comm, COUNT);
	for (int turn = 0; turn < 2; turn++) {
		FILE *maps = fopen("/proc/self/maps", "re");
		CHECK(maps != NULL);
		while (fgets(line, sizeof(line), maps) != NULL)
			*(turn == 0 ? &before : &after) += strstr(line, "memfd:ddp") != NULL;
		CHECK(fclose(maps) == 0);
		if (turn == 0)
			sum(comm, NULL, mine, 2);
	}
	CHECK(after == before + ddp_comm_local_size(comm) - 1);
	CHECK_OK(ddp_barrier(comm));
	CHECK_OK(ddp_mem_free(comm, mine));
	return 0;
}

TEST_RUNS(others_map_it_once, run(look_at_mappings));

/* As a framework's allocator does: descriptors and mappings do not become more. */
static int come_and_go(ddp_comm *comm, void *argument)
{
	const struct rlimit few = { 200, 200 };

	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	for (int i = 0; i < 300; i++) {
		float *mine = allocate(comm, COUNT);
		if (i % 10 == 0)
			sum(comm, NULL, mine, 1);
		CHECK_OK(ddp_mem_free(comm, mine));
		CHECK(ddp_mem_free(comm, mine) == DDP_ERR_INVALID);
	}
	return 0;
}

TEST_RUNS(it_comes_and_goes, run(come_and_go));

/* Groups and lanes have it, too. */
static int use_in_groups(ddp_comm *comm, void *argument)
{
	const int rank = ddp_comm_rank(comm);
	float *mine = allocate(comm, COUNT);
	ddp_comm *part;

	CHECK_OK(ddp_comm_split(comm, 0, -rank, &part));
	for (int lane = 0; lane < 3; lane++) {
		for (int i = 0; i < COUNT; i++)
			mine[i] = 1;
		CHECK_OK(ddp_run(part, &(ddp_operation){ .kind = DDP_ALL_REDUCE, .recv = mine, .count = COUNT, .type = DDP_F32,
		                                          .op = DDP_SUM, .lane = lane }));
		for (int i = 0; i < COUNT; i++)
			CHECK(mine[i] == RANKS);
	}
	CHECK_OK(ddp_comm_free(part));
	CHECK_OK(ddp_broadcast(comm, mine, COUNT, DDP_F32, 2));
	sum(comm, NULL, mine, 1);
	CHECK_OK(ddp_mem_free(comm, mine));
	return 0;
}

TEST_RUNS(groups_and_lanes_use_it, run(use_in_groups));

static int lack(ddp_comm *comm, void *argument)
{
	struct rlimit usual, none;
	void *memory;

	CHECK(ddp_mem_alloc_local(NULL, 1, &memory) == DDP_ERR_INVALID);
	CHECK(ddp_mem_alloc_local(comm, 1, NULL) == DDP_ERR_INVALID);
	CHECK_FAILS(ddp_mem_alloc_local(comm, SIZE_MAX, &memory), DDP_ERR_INVALID,
	            "ddp_mem_alloc_local(): 18446744073709551615 bytes");
	CHECK_OK(ddp_mem_alloc_local(comm, 0, &memory));
	CHECK_OK(ddp_mem_free(comm, memory));
	CHECK(ddp_mem_alloc_local(comm, SIZE_MAX / 4, &memory) != DDP_OK);
	CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
	none = (struct rlimit){ 3, usual.rlim_max };
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	CHECK_FAILS(ddp_mem_alloc_local(comm, 1, &memory), DDP_ERR_NOMEM, "(raise ulimit -n)");
	/* UCX may still open interfaces, and ends the process if it cannot. */
	CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
	CHECK_OK(ddp_barrier(comm));
	return 0;
}

/* One that cannot map what others have ends the communicator on all of them, in words. */
static int cannot_map(ddp_comm *comm, void *argument)
{
	struct rlimit usual, none;
	float *mine = allocate(comm, COUNT);

	CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
	none = (struct rlimit){ 3, usual.rlim_max };
	/* On another node than rank 1, a rank may hear of the error before it leaves the barrier. */
	if (ddp_barrier(comm) == DDP_OK) {
		if (ddp_comm_rank(comm) == 1)
			CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
		CHECK(ddp_all_reduce(comm, NULL, mine, COUNT, DDP_F32, DDP_SUM) != DDP_OK);
	}
	/* The sanitizers open files at the end of a process. */
	CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
	CHECK_SAYS("rank 1 on n");
	CHECK_SAYS("cannot open the memory of ddp_mem_alloc_local() or allocate_tensor() of rank ");
	return 0;
}

TEST(a_lack_is_told)
{
	run(lack);
	run(cannot_map);
}

/* This process's descriptor of memory of so many bytes that the library has made. */
static int descriptor_of(off_t bytes)
{
	for (int fd = 3; fd < 1024; fd++) {
		char path[32], name[64];
		struct stat about;
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		const ssize_t length = readlink(path, name, sizeof(name));
		if (length > 10 && strncmp(name, "/memfd:ddp", 10) == 0 && fstat(fd, &about) == 0 && about.st_size == bytes)
			return fd;
	}
	test_check_failed(__FILE__, __LINE__, "there is no such descriptor");
	return -1;
}

/* A rank that would cut it would end others by SIGBUS. */
static int cut(ddp_comm *comm, void *argument)
{
	const long page = sysconf(_SC_PAGESIZE);
	float *mine = allocate(comm, COUNT);
	const int fd = descriptor_of((off_t)(((long)(COUNT * sizeof(float)) + page - 1) / page * page + page));

	CHECK(ftruncate(fd, 0) == -1 && errno == EPERM);
	sum(comm, NULL, mine, 1);
	CHECK_OK(ddp_mem_free(comm, mine));
	return 0;
}

/* Others do not map what could be cut. */
static int replace(ddp_comm *comm, void *argument)
{
	const long page = sysconf(_SC_PAGESIZE);
	float *mine = allocate(comm, COUNT);
	const off_t bytes = (off_t)(((long)(COUNT * sizeof(float)) + page - 1) / page * page + page);
	const int fd = descriptor_of(bytes);
	char first[4096];

	if (ddp_comm_rank(comm) == 1) {
		const int other = memfd_create("other", MFD_CLOEXEC);
		CHECK(other >= 0 && ftruncate(other, bytes) == 0);
		CHECK(pread(fd, first, sizeof(first), 0) == sizeof(first) && pwrite(other, first, sizeof(first), 0) == sizeof(first));
		CHECK(dup2(other, fd) == fd);
	}
	CHECK_FAILS(ddp_all_reduce(comm, NULL, mine, COUNT, DDP_F32, DDP_SUM), DDP_ERR_STATE, "rank 1 on n");
	CHECK_SAYS("has freed memory of ddp_mem_alloc_local()");
	return 0;
}

TEST(nobody_can_cut_it)
{
	const test_world world = { .ranks = RANKS, .timeout_ms = 20000, .body = replace };

	run(cut);
	assert_int_equal(test_world_run(&world), 0);
}

/* Rank 0 frees what rank 1 has looked up for an operation, as if rank 0 had failed; then rank 1 looks up the next. */
static int free_early(ddp_comm *comm, void *argument)
{
	static ddp_memory_ref refs[RANKS];
	float *mine = allocate(comm, COUNT);
	const int rank = ddp_comm_rank(comm);
	atomic_int *stage = argument; /* 1: rank 1 has looked up, 2: rank 0 has freed */
	void *first = NULL;

	mine[0] = (float)rank;
	const ddp_memory_ref own = ddp_memory_find(comm, mine, sizeof(float));
	CHECK_OK(ddp_all_gather(comm, &own, refs, sizeof(own), DDP_U8));
	if (rank == 1) {
		ddp_borrow_begin(comm);
		first = ddp_borrow(comm, 0, &refs[0]);
		CHECK(first != NULL);
		atomic_store(stage, 1);
	}
	/* Without a barrier, since an operation of rank 1 would release what rank 0 has freed. */
	while (atomic_load(stage) < (rank == 0 ? 1 : 2))
		usleep(1000);
	if (rank == 0) {
		CHECK_OK(ddp_mem_free(comm, mine));
		atomic_store(stage, 2);
	}
	if (rank == 1) {
		const float *second = ddp_borrow(comm, 2, &refs[2]);
		CHECK(second != NULL && *second == 2);
		CHECK(ddp_borrow(comm, 0, &refs[0]) == first);
		ddp_borrow_begin(comm);
		CHECK(ddp_borrow(comm, 0, &refs[0]) == NULL);
		CHECK(ddp_borrow(comm, 2, &refs[2]) == second);
	}
	CHECK_OK(ddp_barrier(comm));
	if (rank != 0)
		CHECK_OK(ddp_mem_free(comm, mine));
	return 0;
}

TEST_RUNS(a_failed_owner_takes_nothing_away,
          RUN_WORLD(.ranks = RANKS, .timeout_ms = 20000, .body = free_early,
                    .argument = test_share(sizeof(atomic_int))));

typedef struct freeing {
	ddp_comm *comm;
	void *memory;
} freeing;

static void *free_it(void *argument)
{
	const freeing *f = argument;

	CHECK_OK(ddp_mem_free(f->comm, f->memory));
	return NULL;
}

/* One thread frees what no operation uses any more, while another runs operations on other memory. */
static int free_beside_operations(ddp_comm *comm, void *argument)
{
	float *plain = malloc(COUNT * sizeof(float));

	CHECK(plain != NULL);
	for (int i = 0; i < 30; i++) {
		const freeing f = { comm, allocate(comm, COUNT) };
		pthread_t thread;
		sum(comm, NULL, f.memory, 1);
		CHECK(pthread_create(&thread, NULL, free_it, (void *)(uintptr_t)&f) == 0);
		sum(comm, NULL, plain, 2);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	free(plain);
	return 0;
}

TEST_RUNS(any_thread_frees_it, run(free_beside_operations));

/* A rank's sum, in memory that it reads after the other rank and itself have closed their contexts. */
static int outlive(int rank, const char *meeting)
{
	const ddp_job job = { .rank = rank, .world_size = RANKS };
	ddp_options options = DDP_OPTIONS;
	ddp_context *context;
	void *memory, *other;

	options.job = &job;
	options.wireup = meeting;
	options.timeout_ms = 20000;
	CHECK_OK(ddp_init(&options, &context));
	ddp_comm *comm = ddp_world(context);
	float *mine = allocate(comm, COUNT);
	CHECK_OK(ddp_mem_alloc(comm, 8, &memory));
	CHECK_FAILS(ddp_mem_keep(comm, memory), DDP_ERR_INVALID, "was not given by ddp_mem_alloc_local()");
	CHECK_OK(ddp_mem_alloc_local(comm, 8, &other));
	CHECK_OK(ddp_mem_keep(comm, other));
	CHECK_OK(ddp_mem_free(comm, other));
	CHECK_OK(ddp_mem_keep(comm, mine));
	CHECK(ddp_mem_free(NULL, mine) == DDP_ERR_INVALID);
	sum(comm, NULL, mine, 1);
	const float last = mine[COUNT - 1];
	CHECK_OK(ddp_finalize(context));
	CHECK(mine[COUNT - 1] == last && last > 0);
	mine[0] = 5;
	CHECK_OK(ddp_mem_free(NULL, mine));
	CHECK_FAILS(ddp_mem_free(NULL, mine), DDP_ERR_INVALID, "was not kept by ddp_mem_keep()");
	return 0;
}

TEST(kept_memory_outlives_its_context)
{
	char meeting[64];
	pid_t ranks[RANKS];
	int status;

	snprintf(meeting, sizeof(meeting), "file:///tmp/ddp-test-kept.%d", (int)getpid());
	for (int r = 0; r < RANKS; r++) {
		ranks[r] = fork();
		assert_true(ranks[r] >= 0);
		if (ranks[r] == 0)
			exit(outlive(r, meeting));
	}
	for (int r = 0; r < RANKS; r++) {
		assert_int_equal(waitpid(ranks[r], &status, 0), ranks[r]);
		assert_int_equal(status, 0);
	}
}
