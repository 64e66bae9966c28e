/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cuda_emulation.h"

#include <map>
#include <stdio.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATION_ASAN 1
#endif
#endif
#ifdef EMULATION_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* Another stack: like ucontext.h, but without its calls of the kernel, which took most of
   the time. */
#ifdef __x86_64__
typedef struct machine_context {
	void *top; /* of the stack, where the registers lie that a function keeps */
} machine_context;

extern "C" void cuda_emulation_switch(void **from, void *to);
__asm__(".text\n"
        "cuda_emulation_switch:\n"
        "	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
        "	movq %rsp, (%rdi)\n"
        "	movq %rsi, %rsp\n"
        "	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
        "	ret\n");

static void switch_context(machine_context *from, const machine_context *to)
{
	cuda_emulation_switch(&from->top, to->top);
}

static void start_context(machine_context *context, char *stack, size_t bytes, void (*start)())
{
	enum { REGISTERS = 6, ABOVE = 2 }; /* the address to return to, which aligns the stack */
	void **top = reinterpret_cast<void **>(stack + bytes) - ABOVE;

	memset(top - REGISTERS, 0, (REGISTERS + ABOVE) * sizeof(*top));
	*top = reinterpret_cast<void *>(start);
	context->top = top - REGISTERS;
}
#else
#include <ucontext.h>

typedef ucontext_t machine_context;

static void switch_context(machine_context *from, const machine_context *to)
{
	swapcontext(from, to);
}

static void start_context(machine_context *context, char *stack, size_t bytes, void (*start)())
{
	getcontext(context);
	context->uc_stack.ss_sp = stack;
	context->uc_stack.ss_size = bytes;
	context->uc_link = NULL;
	makecontext(context, start, 0);
}
#endif

enum { LANES = 32, STACK_BYTES = 64 * 1024, MOST_THREADS = 1024 };

dim3 threadIdx, blockIdx, blockDim, gridDim;

/* What a thread waits for: all of its block, or of its warp. */
enum waiting { RUNS, BLOCK, BLOCK_OR, WARP_BARRIER, SHUFFLE, ENDED };

/* Into shared memory; `from` NULL: zeros. */
struct copy {
	uint32_t at;
	const void *from;
	size_t bytes;
};

struct fiber {
	machine_context context;
	char *stack;
	waiting state;
	unsigned index;
	int predicate;     /* given to BLOCK_OR; then its result */
	uint64_t value;    /* given to SHUFFLE */
	void *fake_stack;  /* the address sanitizer's */
	std::vector<copy> copies; /* that are on their way */
};

static std::vector<fiber> fibers;
static uint64_t warp_lanes[MOST_THREADS / LANES][LANES]; /* what lanes gave to the last SHUFFLE */
static machine_context scheduler;
static fiber *running;
static const std::function<void()> *work;
static char *shared_memory;
static uint64_t random_bits = 1;

int cuda_emulation_gpu;

void cuda_emulation_seed(uint64_t seed)
{
	random_bits = seed * 2 + 1;
}

static unsigned draw(unsigned below)
{
	random_bits = random_bits * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_bits >> 33) % below;
}

void cuda_emulation_undefined(const char *what)
{
	fprintf(stderr, "CUDA emulation: block %u,%u,%u, thread %u: %s\n", blockIdx.x, blockIdx.y,
	        blockIdx.z, threadIdx.x, what);
	abort();
}

/* The address sanitizer has to know on which stack it is. */
#ifdef EMULATION_ASAN
static void *scheduler_fake_stack;
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;

static void leave_scheduler(const fiber *to)
{
	__sanitizer_start_switch_fiber(&scheduler_fake_stack, to->stack, STACK_BYTES);
}

static void enter_scheduler()
{
	__sanitizer_finish_switch_fiber(scheduler_fake_stack, NULL, NULL);
}

static void leave_fiber(fiber *f)
{
	__sanitizer_start_switch_fiber(f->state == ENDED ? NULL : &f->fake_stack, scheduler_stack,
	                               scheduler_stack_bytes);
}

static void enter_fiber(fiber *f)
{
	__sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_stack, &scheduler_stack_bytes);
}
#else
static void leave_scheduler(const fiber *) {}
static void enter_scheduler() {}
static void leave_fiber(fiber *) {}
static void enter_fiber(fiber *) {}
#endif

static void to_fiber(fiber *f)
{
	running = f;
	threadIdx.x = f->index;
	leave_scheduler(f);
	switch_context(&scheduler, &f->context);
	enter_scheduler();
}

static void to_scheduler(waiting state)
{
	fiber *f = running;

	f->state = state;
	leave_fiber(f);
	switch_context(&f->context, &scheduler);
	enter_fiber(f);
}

static void fiber_main()
{
	running->fake_stack = NULL;
	enter_fiber(running);
	(*work)();
	to_scheduler(ENDED);
}

/* Whether all threads first .. last - 1 wait at the same; `ended` may have ended. */
static bool all_wait(unsigned first, unsigned last, waiting state, bool may_have_ended)
{
	for (unsigned i = first; i < last; i++)
		if (fibers[i].state != state && !(may_have_ended && fibers[i].state == ENDED))
			return false;
	return true;
}

/* Lets a warp go on whose lanes have all come to the same. */
static bool release_warp(unsigned first, unsigned last)
{
	if (all_wait(first, last, WARP_BARRIER, false)) {
		for (unsigned i = first; i < last; i++)
			fibers[i].state = RUNS;
		return true;
	}
	if (!all_wait(first, last, SHUFFLE, false))
		return false;
	uint64_t *lanes = warp_lanes[first / LANES];
	for (unsigned i = first; i < last; i++) {
		lanes[i - first] = fibers[i].value;
		fibers[i].state = RUNS;
	}
	return true;
}

static bool release_block(unsigned threads)
{
	int any = 0;

	if (all_wait(0, threads, ENDED, true))
		return false;
	if (all_wait(0, threads, BLOCK_OR, true)) {
		for (unsigned i = 0; i < threads; i++)
			any |= fibers[i].state != ENDED && fibers[i].predicate;
		for (unsigned i = 0; i < threads; i++)
			fibers[i].predicate = any;
	} else if (!all_wait(0, threads, BLOCK, true)) {
		return false;
	}
	for (unsigned i = 0; i < threads; i++)
		if (fibers[i].state != ENDED)
			fibers[i].state = RUNS;
	return true;
}

/* Runs each warp as far as it comes by itself, in an order that is drawn. */
static void run_warps(unsigned threads)
{
	const unsigned warps = (threads + LANES - 1) / LANES, first_warp = draw(warps);

	for (unsigned w = 0; w < warps; w++) {
		const unsigned first = (w + first_warp) % warps * LANES;
		const unsigned last = first + LANES < threads ? first + LANES : threads;
		do {
			const unsigned start = draw(last - first), backwards = draw(2);
			for (unsigned i = 0; i < last - first; i++) {
				const unsigned at = (start + (backwards ? last - first - i : i)) % (last - first);
				if (fibers[first + at].state == RUNS)
					to_fiber(&fibers[first + at]);
			}
		} while (release_warp(first, last));
	}
}

static void run_block(unsigned threads)
{
	for (unsigned i = 0; i < threads; i++) {
		fiber *f = &fibers[i];
		f->state = RUNS;
		f->index = i;
		start_context(&f->context, f->stack, STACK_BYTES, fiber_main);
	}
	do {
		run_warps(threads);
	} while (release_block(threads));
	for (unsigned i = 0; i < threads; i++) {
		threadIdx.x = i;
		if (fibers[i].state != ENDED)
			cuda_emulation_undefined("waits for threads that have ended, or that wait for something else");
		if (!fibers[i].copies.empty())
			cuda_emulation_undefined("has ended before its copies arrived");
	}
}

static void run_grid(dim3 blocks, int threads, size_t shared, const std::function<void()> &kernel)
{
	static std::vector<char> stacks(static_cast<size_t>(MOST_THREADS) * STACK_BYTES);

	if (threads < 1 || threads > MOST_THREADS)
		cuda_emulation_undefined("no such number of threads");
	if (cuda_emulation_gpu != CUDA_EMULATION_GPU)
		cuda_emulation_undefined("the thread's GPU is not the queue's");
	fibers.resize(MOST_THREADS);
	for (int i = 0; i < MOST_THREADS; i++)
		fibers[i].stack = stacks.data() + static_cast<size_t>(i) * STACK_BYTES;
	work = &kernel;
	gridDim = blocks;
	blockDim = dim3(threads);
	const uint64_t grid = static_cast<uint64_t>(blocks.x) * blocks.y * blocks.z;
	for (uint64_t b = 0; b < grid; b++) {
		blockIdx = dim3(static_cast<unsigned>(b % blocks.x), static_cast<unsigned>(b / blocks.x % blocks.y),
		                static_cast<unsigned>(b / blocks.x / blocks.y));
		shared_memory = static_cast<char *>(malloc(shared));
		if (shared_memory == NULL && shared > 0)
			cuda_emulation_undefined("no memory");
		memset(shared_memory, 0xff, shared);
		run_block(static_cast<unsigned>(threads));
		free(shared_memory);
	}
}

/* What each GPU launches, of those that kernels are compiled for: compute capability 8.0 and more. */
enum {
	MOST_ACROSS = 65535,        /* of a grid, in y and z; in x there are 2^31 - 1 */
	SHARED_ALWAYS = 48 * 1024,  /* for each kernel, in bytes */
	SHARED_MOST = 99 * 1024     /* for those that ask: 8.6, 8.9 and 12 have no more */
};

static cudaError_t launch_error;
static std::map<const void *, int> shared_allowed; /* by kernel */

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int bytes)
{
	if (bytes > SHARED_MOST)
		return cudaErrorInvalidValue;
	shared_allowed[kernel] = bytes;
	return cudaSuccess;
}

static bool may_launch(const void *kernel, dim3 blocks, size_t shared)
{
	const std::map<const void *, int>::const_iterator asked = shared_allowed.find(kernel);
	const size_t allowed = asked != shared_allowed.end() && asked->second > SHARED_ALWAYS ? asked->second : SHARED_ALWAYS;

	return blocks.x > 0 && blocks.y > 0 && blocks.z > 0 && blocks.x <= INT32_MAX && blocks.y <= MOST_ACROSS &&
	       blocks.z <= MOST_ACROSS && shared <= allowed;
}

void emulate(const void *kernel, cudaStream_t stream, dim3 blocks, int threads, size_t shared,
             const std::function<void()> &function)
{
	if (may_launch(kernel, blocks, shared))
		cuda_emulation_work(stream, [=] { run_grid(blocks, threads, shared, function); });
	else
		launch_error = cudaErrorInvalidConfiguration;
}

cudaError_t cudaGetLastError()
{
	const cudaError_t error = launch_error;

	launch_error = cudaSuccess;
	return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaSuccess: return "no error";
	case cudaErrorInvalidValue: return "invalid argument";
	case cudaErrorMemoryAllocation: return "out of memory";
	case cudaErrorInvalidConfiguration: return "invalid configuration argument";
	case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
	default: return "operation failed due to a previous error during capture";
	}
}

void *launch_memory()
{
	return shared_memory;
}

void __syncthreads()
{
	to_scheduler(BLOCK);
}

int __syncthreads_or(int predicate)
{
	running->predicate = predicate;
	to_scheduler(BLOCK_OR);
	return running->predicate;
}

void __syncwarp()
{
	to_scheduler(WARP_BARRIER);
}

uint64_t cuda_emulation_shuffle(uint64_t mine, int from)
{
	running->value = mine;
	to_scheduler(SHUFFLE);
	return warp_lanes[running->index / LANES][from];
}

unsigned __ballot_sync(unsigned, bool predicate)
{
	unsigned mask = 0;

	cuda_emulation_shuffle(predicate, 0);
	for (int lane = 0; lane < LANES; lane++)
		mask |= warp_lanes[running->index / LANES][lane] != 0 ? 1u << lane : 0;
	return mask;
}

/* What all lanes gave. */
static void share(uint64_t mine, uint64_t lanes[LANES])
{
	cuda_emulation_shuffle(mine, 0);
	memcpy(lanes, warp_lanes[running->index / LANES], sizeof(warp_lanes[0]));
}

static float of_bf16(uint64_t pair, int index)
{
	return __uint_as_float((uint32_t)(pair >> 16 * index) << 16);
}

/* Lane 4 r + p holds, of a, rows r and r + 8 at columns 2 p, 2 p + 1, and 8 columns further;
   of b, these rows at column r; of c, rows r and r + 8 at columns 2 p, 2 p + 1. */
void multiply_add(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
	uint64_t upper_a[LANES], lower_a[LANES], lanes_b[LANES];
	const int row = (int)(running->index % LANES) / 4, pair = (int)(running->index % 4) * 2;

	share(a[0] | (uint64_t)a[2] << 32, upper_a);
	share(a[1] | (uint64_t)a[3] << 32, lower_a);
	share(b[0] | (uint64_t)b[1] << 32, lanes_b);
	for (int i = 0; i < 4; i++) {
		const uint64_t *rows = i < 2 ? upper_a : lower_a;
		d[i] = c[i];
		for (int k = 0; k < 16; k++)
			d[i] += of_bf16(rows[row * 4 + k % 8 / 2], k / 8 * 2 + k % 2) *
			        of_bf16(lanes_b[(pair + i % 2) * 4 + k % 8 / 2], k / 8 * 2 + k % 2);
	}
}

/* Of each matrix, the pairs of row lane / 4, or of the column. */
static void load(uint32_t m[4], uint32_t at, bool transposed)
{
	uint64_t rows[LANES];
	const int group = (int)(running->index % LANES) / 4, pair = (int)(running->index % 4) * 2;

	if (at % 16 != 0)
		cuda_emulation_undefined("a row that is not aligned to 16 bytes");
	share(at, rows);
	for (int i = 0; i < 4; i++) {
		uint16_t two[2];
		unsigned banks = 0;
		for (int k = 0; k < 8; k++)
			banks |= 1u << rows[i * 8 + k] / 16 % 8;
		if (banks != 0xff)
			cuda_emulation_undefined("eight rows of a matrix do not lie in all banks, so that their load takes longer");
		for (int k = 0; k < 2; k++) {
			const uint64_t row = rows[i * 8 + (transposed ? pair + k : group)];
			two[k] = reinterpret_cast<const uint16_t *>(shared_memory + row)[transposed ? group : pair + k];
		}
		m[i] = two[0] | (uint32_t)two[1] << 16;
	}
}

void load_matrices(uint32_t m[4], uint32_t at)
{
	load(m, at, false);
}

void load_matrices_transposed(uint32_t m[4], uint32_t at)
{
	load(m, at, true);
}

static void begin_copy(uint32_t at, const void *from, size_t bytes, bool there)
{
	if (at % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0)
		cuda_emulation_undefined("a copy that is not aligned to its size");
	memset(shared_memory + at, 0xff, bytes);
	running->copies.push_back({at, there ? from : NULL, bytes});
}

void copy_piece(uint32_t at, const void *from, bool there)
{
	begin_copy(at, from, 16, there);
}

void copy_word(uint32_t at, const void *from, bool there)
{
	begin_copy(at, from, 4, there);
}

void copies_arrived()
{
	for (const copy &c : running->copies)
		if (c.from != NULL)
			memcpy(shared_memory + c.at, c.from, c.bytes);
		else
			memset(shared_memory + c.at, 0, c.bytes);
	running->copies.clear();
}

float power_of_2(float x)
{
	return x < -126 ? 0 : exp2f(x);
}
