/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's runtime over the emulation: memory, streams, and graphs of what they do. */
#include "tests/support/cuda_emulation.h"

#include <map>
#include <vector>

/* Where each begins, and its size. */
static std::map<const char *, size_t> gpu_memory;

void *cuda_emulation_allocate(size_t bytes)
{
	char *memory = static_cast<char *>(malloc(bytes));

	if (memory != NULL)
		gpu_memory[memory] = bytes;
	return memory;
}

void cuda_emulation_free(void *memory)
{
	gpu_memory.erase(static_cast<char *>(memory));
	free(memory);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address)
{
	const char *at = static_cast<const char *>(address);
	std::map<const char *, size_t>::const_iterator behind = gpu_memory.upper_bound(at);

	attributes->type = cudaMemoryTypeUnregistered;
	if (behind != gpu_memory.begin() && at < (--behind)->first + behind->second)
		attributes->type = cudaMemoryTypeDevice;
	return cudaSuccess;
}

/* ---- captures --------------------------------------------------------------------------- */

typedef std::vector<std::function<void()>> captured;

struct CUstream_st {
	captured kept;
	bool spoilt;
};

struct CUgraph_st {
	captured works;
};

struct CUgraphExec_st {
	captured works;
};

static cudaStream_t capturing; /* NULL: none */
static bool under_way; /* the host has not waited for the last work of the program's stream */
int cuda_emulation_fails;

static bool fails_now()
{
	return cuda_emulation_fails > 0 && --cuda_emulation_fails == 0;
}

void cuda_emulation_work(cudaStream_t stream, const std::function<void()> &function)
{
	if (stream == NULL) {
		under_way = true;
		function();
		return;
	}
	if (stream != capturing)
		cuda_emulation_undefined("work on a stream for captures, which nothing orders with the program's");
	stream->kept.push_back(function);
}

/* What the host has not waited for. */
static std::vector<std::function<void()>> copies_to_host;

void cuda_emulation_copy_to_host(void *to, const void *from, size_t bytes)
{
	const std::vector<char> now(static_cast<const char *>(from), static_cast<const char *>(from) + bytes);

	memset(to, 0xff, bytes);
	copies_to_host.push_back([=] { memcpy(to, now.data(), bytes); });
}

void cuda_emulation_wait()
{
	under_way = false;
	for (const std::function<void()> &copy : copies_to_host)
		copy();
	copies_to_host.clear();
}

void cuda_emulation_give_back(const char *what)
{
	if (under_way)
		cuda_emulation_undefined(what);
}

bool cuda_emulation_spoils_capture()
{
	if (capturing != NULL)
		capturing->spoilt = true;
	return capturing != NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
	if (fails_now())
		return cudaErrorMemoryAllocation;
	*stream = new CUstream_st();
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	delete stream;
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
	if (fails_now())
		return cudaErrorMemoryAllocation;
	if (stream == NULL || capturing != NULL)
		return cudaErrorStreamCaptureUnsupported;
	capturing = stream;
	return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	const bool spoilt = stream->spoilt;
	captured works;

	if (stream != capturing)
		cuda_emulation_undefined("the end of a capture that has not begun");
	capturing = NULL;
	stream->spoilt = false;
	works.swap(stream->kept);
	if (fails_now())
		return cudaErrorMemoryAllocation;
	if (spoilt)
		return cudaErrorStreamCaptureInvalidated;
	*graph = new CUgraph_st{works};
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long)
{
	if (fails_now())
		return cudaErrorMemoryAllocation;
	*made = new CUgraphExec_st{graph->works};
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	delete graph;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream)
{
	if (fails_now())
		return cudaErrorMemoryAllocation;
	for (const std::function<void()> &function : made->works)
		cuda_emulation_work(stream, function);
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made)
{
	cuda_emulation_give_back("a graph is destroyed that may be under way");
	delete made;
	return cudaSuccess;
}
