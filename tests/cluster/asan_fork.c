/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that fork while they have threads, under the address sanitizer of
   gcc before 14 and clang before 17: their allocator has locks, which a child
   inherits as they are. A thread of slurmstepd that held one when it forked
   a task left that task waiting for ever. Preloaded before the sanitizer's own
   library, this lets nobody into the allocator while a process forks. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

void *__interceptor_malloc(size_t);
void *__interceptor_calloc(size_t, size_t);
void *__interceptor_realloc(void *, size_t);
int __interceptor_posix_memalign(void **, size_t, size_t);
void __interceptor_free(void *);

/* Not a mutex of pthreads, which the sanitizer replaces, too, and not before it
   has begun. A thread may enter again: another library's handler of a fork may
   allocate. The address of `here` stays a thread's in the child that it forks. */
static _Atomic(char *) owner;
static __thread char here __attribute__((tls_model("initial-exec")));
static int depth;

static void enter(void)
{
	char *nobody = NULL;

	if (owner != &here)
		for (; !atomic_compare_exchange_weak(&owner, &nobody, &here); nobody = NULL)
			sched_yield();
	depth++;
}

static void leave(void)
{
	if (--depth == 0)
		owner = NULL;
}

__attribute__((constructor)) static void begin(void)
{
	if (pthread_atfork(enter, leave, leave) != 0)
		abort();
}

void *malloc(size_t bytes)
{
	enter();
	void *memory = __interceptor_malloc(bytes);
	leave();
	return memory;
}

void *calloc(size_t count, size_t bytes)
{
	enter();
	void *memory = __interceptor_calloc(count, bytes);
	leave();
	return memory;
}

void *realloc(void *old, size_t bytes)
{
	enter();
	void *memory = __interceptor_realloc(old, bytes);
	leave();
	return memory;
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
	enter();
	int error = __interceptor_posix_memalign(memory, alignment, bytes);
	leave();
	return error;
}

void free(void *memory)
{
	int error = errno; /* which free() keeps */

	enter();
	__interceptor_free(memory);
	leave();
	errno = error;
}
