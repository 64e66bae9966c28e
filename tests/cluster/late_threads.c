/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded, this starts the threads of a program in the reverse order: srun
   launches the components of a heterogeneous step in a thread each, and tells a
   plugin of the one whose thread comes first. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 20, STEP_US = 50000 };

struct start {
	void *(*run)(void *);
	void *argument;
	int number;
};

static void *run_late(void *argument)
{
	struct start start = *(struct start *)argument;

	free(argument);
	if (start.number < THREADS)
		usleep((unsigned int)(THREADS - start.number) * STEP_US);
	return start.run(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	static atomic_int count;
	__typeof__(pthread_create) *create;
	struct start *start = malloc(sizeof(*start));

	*(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
	if (start == NULL || create == NULL)
		abort();
	*start = (struct start){ .run = run, .argument = argument, .number = atomic_fetch_add(&count, 1) };
	return create(thread, attributes, run_late, start);
}
