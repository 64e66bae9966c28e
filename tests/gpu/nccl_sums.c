/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_sums RANK RANKS FOLDER: one rank of a program that uses NCCL only, on the GPU that
   it sees first. NCCL is what DDP_NCCL names, else libnccl.so.2. It sums, sends around a
   ring, and checks each type that NCCL sums, in lengths that take its three protocols. The
   ranks meet in FOLDER. */
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/nccl/load.h"

enum { LONGEST = 1 << 20 };

static int rank, ranks;
static const ddp_nccl *nccl;

#define CUDA(call) \
	do { \
		cudaError_t error = (call); \
		if (error != cudaSuccess) \
			fail(#call, cudaGetErrorString(error)); \
	} while (0)

#define NCCL(call) \
	do { \
		const int result = (call); \
		if (result != DDP_NCCL_SUCCESS) \
			fail(#call, nccl->error_text(result)); \
	} while (0)

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, why);
	exit(1);
}

/* ---- types ---------------------------------------------------------------------------------- */

/* Small whole numbers are exact in all of them; a sum is at most 16 for 4 ranks. */
static int value(int of, size_t i)
{
	return (int)((i * 3 + (size_t)of) % 4) + 1;
}

static uint16_t to_half(int v)
{
	int exponent = 0;

	while (v >> (exponent + 1) != 0)
		exponent++;
	return v == 0 ? 0 : (uint16_t)((exponent + 15) << 10 | ((v << 10 >> exponent) & 1023));
}

static uint16_t to_bfloat(int v)
{
	float f = (float)v;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* Those that libddp has no use for. */
enum { INT8 = 0, UINT32 = 3, UINT64 = 5 };

typedef struct kind {
	const char *name;
	int type;
	size_t bytes;
} kind;

static const kind kinds[] = {
	{ "int8", INT8, 1 }, { "uint8", DDP_NCCL_UINT8, 1 }, { "int32", DDP_NCCL_INT32, 4 }, { "uint32", UINT32, 4 },
	{ "int64", DDP_NCCL_INT64, 8 }, { "uint64", UINT64, 8 }, { "float16", DDP_NCCL_FLOAT16, 2 },
	{ "float32", DDP_NCCL_FLOAT32, 4 }, { "float64", DDP_NCCL_FLOAT64, 8 }, { "bfloat16", DDP_NCCL_BFLOAT16, 2 },
};

static void store(const kind *k, void *to, size_t i, int v)
{
	const float f = (float)v;
	const double d = v;
	const int64_t whole = v;
	const uint16_t half = k->type == DDP_NCCL_FLOAT16 ? to_half(v) : to_bfloat(v);
	const void *from = k->type == DDP_NCCL_FLOAT32 ? (const void *)&f : k->type == DDP_NCCL_FLOAT64 ? (const void *)&d :
	                   k->bytes == 2 ? (const void *)&half : (const void *)&whole; /* little-endian */

	memcpy((char *)to + i * k->bytes, from, k->bytes);
}

/* ---- what is checked ---------------------------------------------------------------------------- */

static void check(const char *what, const kind *k, const void *got, const void *wanted, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (memcmp((const char *)got + i * k->bytes, (const char *)wanted + i * k->bytes, k->bytes) == 0)
			continue;
		fprintf(stderr, "rank %d: %s of %zu %s: element %zu is wrong\n", rank, what, count, k->name, i);
		exit(1);
	}
}

static void check_kind(ddp_nccl_handle *comm, cudaStream_t stream, const kind *k, size_t count)
{
	static char host[LONGEST * 8], wanted[LONGEST * 8];
	const size_t bytes = count * k->bytes;
	void *in, *out;

	CUDA(cudaMalloc(&in, bytes));
	CUDA(cudaMalloc(&out, bytes));
	for (size_t i = 0; i < count; i++) {
		int sum = 0;
		for (int r = 0; r < ranks; r++)
			sum += value(r, i);
		store(k, host, i, value(rank, i));
		store(k, wanted, i, sum);
	}
	CUDA(cudaMemcpy(in, host, bytes, cudaMemcpyHostToDevice));
	NCCL(nccl->all_reduce(in, out, count, k->type, DDP_NCCL_SUM, comm, stream));
	CUDA(cudaStreamSynchronize(stream));
	CUDA(cudaMemcpy(host, out, bytes, cudaMemcpyDeviceToHost));
	check("sum", k, host, wanted, count);

	NCCL(nccl->group_start());
	NCCL(nccl->send(in, count, k->type, (rank + 1) % ranks, comm, stream));
	NCCL(nccl->recv(out, count, k->type, (rank + ranks - 1) % ranks, comm, stream));
	NCCL(nccl->group_end());
	CUDA(cudaStreamSynchronize(stream));
	for (size_t i = 0; i < count; i++)
		store(k, wanted, i, value((rank + ranks - 1) % ranks, i));
	CUDA(cudaMemcpy(host, out, bytes, cudaMemcpyDeviceToHost));
	check("message", k, host, wanted, count);
	CUDA(cudaFree(in));
	CUDA(cudaFree(out));
}

/* ---- rendezvous ----------------------------------------------------------------------------------- */

static ddp_nccl_id meet(const char *folder)
{
	char path[4096], hidden[4096];
	ddp_nccl_id id;

	snprintf(path, sizeof(path), "%s/id", folder);
	snprintf(hidden, sizeof(hidden), "%s/id.new", folder);
	if (rank == 0) {
		NCCL(nccl->get_id(&id));
		FILE *file = fopen(hidden, "w");
		if (file == NULL || fwrite(&id, sizeof(id), 1, file) != 1 || fclose(file) != 0 || rename(hidden, path) != 0)
			fail(path, "cannot be written");
		return id;
	}
	FILE *file;
	while ((file = fopen(path, "r")) == NULL)
		usleep(1000);
	if (fread(&id, sizeof(id), 1, file) != 1)
		fail(path, "cannot be read");
	fclose(file);
	return id;
}

int main(int argc, char **argv)
{
	static const size_t counts[] = { 1, 1000, 65537, LONGEST };
	ddp_nccl_handle *comm;
	cudaStream_t stream;

	if (argc != 4) {
		fprintf(stderr, "usage: nccl_sums RANK RANKS FOLDER\n");
		return 2;
	}
	rank = atoi(argv[1]);
	ranks = atoi(argv[2]);
	if (ddp_nccl_load(&nccl) != DDP_OK)
		fail("ddp_nccl_load()", ddp_last_error());
	const ddp_nccl_id id = meet(argv[3]);
	CUDA(cudaSetDevice(0));
	CUDA(cudaStreamCreate(&stream));
	NCCL(nccl->init(&comm, ranks, id, rank, NULL));
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
			check_kind(comm, stream, &kinds[k], counts[c]);
	}
	NCCL(nccl->destroy(comm));
	printf("rank %d: all sums are right\n", rank);
	return 0;
}
