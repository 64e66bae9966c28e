/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* The fake GPU: what it is for. A host that touches its memory dies, and work that nothing orders is told. `make
   check-waits` shows the latter with each wait of the library. */
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/include/cuda_runtime_api.h"
#include "tests/support/device_checks.h"
#include "tests/support/test.h"

enum { BYTES = 40000 };

/* A device with two queues, an event, and two pieces of memory. */
struct fixture {
	ddp_device *device;
	ddp_device_queue *queues[2];
	ddp_device_event *event;
	unsigned char *memory[2];
};

static void set_up(struct fixture *f)
{
	OK(ddp_device_open("cuda", &f->device));
	for (int i = 0; i < 2; i++) {
		OK(ddp_device_queue_create(f->device, DDP_DEVICE_NORMAL, &f->queues[i]));
		OK(ddp_device_alloc(f->device, BYTES, (void **)&f->memory[i]));
	}
	OK(ddp_device_event_create(f->device, &f->event));
}

static void tear_down(struct fixture *f)
{
	for (int i = 0; i < 2; i++) {
		OK(ddp_device_queue_free(f->device, f->queues[i]));
		OK(ddp_device_free(f->device, f->memory[i]));
	}
	OK(ddp_device_event_free(f->device, f->event));
	OK(ddp_device_close(f->device));
}

/* A queue's function that ends when the test says so. */
struct gate {
	sem_t entered, opened;
};

static void gate_init(struct gate *gate)
{
	sem_init(&gate->entered, 0, 0);
	sem_init(&gate->opened, 0, 0);
}

static void pass_gate(void *argument)
{
	struct gate *gate = argument;

	sem_post(&gate->entered);
	while (sem_wait(&gate->opened) != 0)
		;
}

/* ---- what the host must not do ---- */

static int signal_of(void (*misdeed)(unsigned char *memory))
{
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		struct fixture f;
		signal(SIGSEGV, SIG_DFL); /* not the sanitizers' */
		set_up(&f);
		misdeed(f.memory[0]);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void read_it(unsigned char *memory) { (void)*(volatile unsigned char *)memory; }
static void write_it(unsigned char *memory) { *(volatile unsigned char *)memory = 1; }
static void use_its_end(unsigned char *memory) { ((volatile unsigned char *)memory)[BYTES - 1] = 1; }
static void do_nothing(unsigned char *memory) { (void)memory; }

TEST(a_host_that_touches_the_memory_dies)
{
	assert_int_equal(signal_of(do_nothing), 0);
	assert_int_equal(signal_of(read_it), SIGSEGV);
	assert_int_equal(signal_of(write_it), SIGSEGV);
	assert_int_equal(signal_of(use_its_end), SIGSEGV);
}

TEST(memory_in_use_is_not_freed)
{
	struct fixture f;
	struct gate gate;
	void *pinned;

	gate_init(&gate);
	set_up(&f);
	OK(ddp_device_host_alloc(f.device, BYTES, &pinned));
	OK(ddp_device_launch(f.device, f.queues[0], pass_gate, &gate));
	OK(ddp_device_copy(f.device, f.queues[0], pinned, f.memory[0], BYTES));
	FAILS(ddp_device_free(f.device, f.memory[0]), DDP_ERR_INVALID, "has work that uses it");
	FAILS(ddp_device_host_free(f.device, pinned), DDP_ERR_INVALID, "has work that uses it");
	sem_post(&gate.opened);
	OK(ddp_device_queue_sync(f.device, f.queues[0]));
	OK(ddp_device_host_free(f.device, pinned));
	tear_down(&f);
}

/* ---- order ---- */

/* memory[0] goes to memory[1] on queue 0, and from there to the host on queue 1. */
static ddp_status pass_on(struct fixture *f, const unsigned char *sent, unsigned char *got,
                          bool with_event)
{
	OK(ddp_device_copy(f->device, f->queues[0], f->memory[0], sent, BYTES));
	OK(ddp_device_copy(f->device, f->queues[0], f->memory[1], f->memory[0], BYTES));
	OK(ddp_device_event_record(f->device, f->event, f->queues[0]));
	if (with_event)
		OK(ddp_device_queue_wait(f->device, f->queues[1], f->event));
	return ddp_device_copy(f->device, f->queues[1], got, f->memory[1], BYTES);
}

TEST(a_missing_wait_is_told_at_once)
{
	struct fixture f;
	unsigned char sent[BYTES] = { 1 }, got[BYTES];

	set_up(&f);
	OK(pass_on(&f, sent, got, true));
	OK(ddp_device_queue_sync(f.device, f.queues[1]));
	FAILS(pass_on(&f, sent, got, false), DDP_ERR_IO, "no event puts one before the other");
	/* It is broken, and can be cleaned up. */
	FAILS(ddp_device_error(f.device), DDP_ERR_IO, "stream 2's copy reads 40000 bytes");
	FAILS(ddp_device_queue_sync(f.device, f.queues[0]), DDP_ERR_IO, "stream 1's copy writes");
	FAILS(ddp_device_event_sync(f.device, f.event), DDP_ERR_IO, "broken");
	FAILS(ddp_device_fill(f.device, NULL, f.memory[0], 0, 1), DDP_ERR_IO, "broken");
	tear_down(&f);
}

struct reading {
	struct fixture *f;
	bool writes;
	size_t bytes;
	int status;
	struct gate *gate;
};

static void look_at_memory(void *argument)
{
	struct reading *reading = argument;
	void *view;

	reading->status = test_fake_gpu()->view(reading->f->memory[0], reading->bytes, reading->writes, &view);
	if (reading->gate != NULL)
		pass_gate(reading->gate);
}

TEST(functions_are_checked_where_they_ask_for_a_view)
{
	for (int second = 0; second < 2; second++) {
		struct fixture f;
		struct gate gate;
		gate_init(&gate);
		set_up(&f);
		struct reading readings[2] = {
			{ .f = &f, .bytes = BYTES, .gate = &gate },
			{ .f = &f, .writes = second == 1, .bytes = 1 },
		};
		for (int i = 0; i < 2; i++)
			OK(ddp_device_launch(f.device, f.queues[i], look_at_memory, &readings[i]));
		sem_wait(&gate.entered);
		sem_post(&gate.opened);
		for (int i = 0; i < 2; i++)
			ddp_device_queue_free(f.device, f.queues[i]);
		f.queues[0] = f.queues[1] = NULL;
		if (second == 0) {
			OK(ddp_device_error(f.device));
		} else {
			/* Whichever came second. */
			FAILS(ddp_device_error(f.device), DDP_ERR_IO, "'s function");
			assert_true(readings[0].status != cudaSuccess || readings[1].status != cudaSuccess);
		}
		tear_down(&f);
	}
}

TEST(the_hosts_side_is_checked_too)
{
	struct fixture f;
	unsigned char host[BYTES] = { 0 };

	set_up(&f);
	OK(ddp_device_copy(f.device, f.queues[0], host, f.memory[0], BYTES));
	FAILS(ddp_device_copy(f.device, f.queues[1], f.memory[1], host + 1000, 10), DDP_ERR_IO,
	      "no event puts");
	tear_down(&f);
}

/* An event that is recorded again does not let go of who waits for the record before. */
TEST(who_waits_for_an_earlier_record_still_waits)
{
	struct fixture f;
	struct gate gate;
	unsigned char sent[BYTES], got[BYTES];

	gate_init(&gate);
	set_up(&f);
	memset(sent, 9, BYTES);
	OK(ddp_device_launch(f.device, f.queues[0], pass_gate, &gate));
	OK(ddp_device_copy(f.device, f.queues[0], f.memory[0], sent, BYTES));
	OK(ddp_device_event_record(f.device, f.event, f.queues[0]));
	OK(ddp_device_queue_wait(f.device, f.queues[1], f.event));
	OK(ddp_device_copy(f.device, f.queues[1], got, f.memory[0], BYTES));
	OK(ddp_device_event_record(f.device, f.event, NULL));
	OK(ddp_device_event_sync(f.device, f.event)); /* of the default queue, which had nothing to do */
	sem_post(&gate.opened);
	OK(ddp_device_queue_sync(f.device, f.queues[1]));
	assert_memory_equal(sent, got, BYTES);
	tear_down(&f);
}

int main(void)
{
	unsetenv("DDP_LOCAL_DEVICE");
	return test_run(NULL, NULL);
}
