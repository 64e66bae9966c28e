/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* The fake GPU: what it is for. A host that touches its memory dies, work that nothing orders is
   told, and goes wrong. */
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/device.h"
#include "device/kernel_queue.h"
#include "tests/device/fake_gpu.h"
#include "tests/device/include/cuda_runtime_api.h"
#include "tests/device/order.h"
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

TEST(work_with_what_is_not_allocated_is_refused)
{
	struct fixture f;
	unsigned char host[BYTES] = { 0 };
	void *freed;

	set_up(&f);
	OK(ddp_device_alloc(f.device, 100, &freed));
	OK(ddp_device_free(f.device, freed));
	FAILS(ddp_device_free(f.device, freed), DDP_ERR_INVALID, "no memory that the GPU gave");
	FAILS(ddp_device_fill(f.device, NULL, freed, 0, 1), DDP_ERR_INVALID, "not all allocated");
	FAILS(ddp_device_fill(f.device, NULL, f.memory[0] + 1, 0, BYTES), DDP_ERR_INVALID, "not all");
	FAILS(ddp_device_copy(f.device, NULL, f.memory[0] + 1, host, BYTES), DDP_ERR_INVALID, "not all");
	FAILS(ddp_device_copy(f.device, NULL, host, f.memory[0] - 1, 2), DDP_ERR_INVALID, "not all");
	OK(ddp_device_error(f.device));
	OK(ddp_device_copy(f.device, NULL, host, f.memory[0] + 1, BYTES - 1));
	OK(ddp_device_queue_sync(f.device, NULL));
	tear_down(&f);
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

/* ---- queues ---- */

TEST(queues_run_at_the_same_time)
{
	struct fixture f;
	struct gate gates[2];
	bool done = true;

	set_up(&f);
	for (int i = 0; i < 2; i++) {
		gate_init(&gates[i]);
		OK(ddp_device_launch(f.device, f.queues[i], pass_gate, &gates[i]));
	}
	OK(ddp_device_event_record(f.device, f.event, f.queues[0]));
	for (int i = 0; i < 2; i++)
		sem_wait(&gates[i].entered); /* both are in it */
	OK(ddp_device_queue_query(f.device, f.queues[1], &done));
	assert_false(done);
	OK(ddp_device_event_query(f.device, f.event, &done));
	assert_false(done);
	for (int i = 0; i < 2; i++)
		sem_post(&gates[i].opened);
	OK(ddp_device_event_sync(f.device, f.event));
	tear_down(&f);
}

struct caller {
	ddp_device *device, *other;
	void *memory;
	ddp_status statuses[4];
};

static void call_the_device(void *argument)
{
	struct caller *caller = argument;
	void *view;

	caller->statuses[0] = ddp_device_queue_sync(caller->device, NULL);
	caller->statuses[1] = ddp_device_alloc(caller->device, 1, &view);
	caller->statuses[2] = ddp_device_free(caller->device, caller->memory);
	caller->statuses[3] = ddp_device_queue_query(caller->other, NULL, &(bool){ false });
}

TEST(a_function_of_a_queue_must_not_call_the_device)
{
	struct fixture f;
	ddp_device *other;
	void *view;

	set_up(&f);
	test_fake_gpu()->count = 2;
	OK(ddp_device_open("cuda:1", &other));
	struct caller caller = { .device = f.device, .other = other, .memory = f.memory[0] };
	OK(ddp_device_launch(f.device, NULL, call_the_device, &caller));
	OK(ddp_device_queue_sync(f.device, NULL));
	for (int i = 0; i < 4; i++)
		assert_int_equal(caller.statuses[i], DDP_ERR_IO);
	assert_int_equal(test_fake_gpu()->view(f.memory[0], 1, false, &view), cudaErrorNotPermitted);
	FAILS(ddp_device_queue_sync(other, f.queues[0]), DDP_ERR_INVALID, "another GPU");
	FAILS(ddp_device_event_sync(other, f.event), DDP_ERR_INVALID, "another GPU");
	FAILS(ddp_device_event_record(other, f.event, NULL), DDP_ERR_INVALID, "another GPU");
	OK(ddp_device_close(other));
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

TEST(a_view_of_what_is_not_allocated_breaks_the_device)
{
	struct fixture f;

	set_up(&f);
	struct reading reading = { .f = &f, .bytes = BYTES + 1 };
	OK(ddp_device_launch(f.device, f.queues[0], look_at_memory, &reading));
	FAILS(ddp_device_queue_sync(f.device, f.queues[0]), DDP_ERR_IO, "not all allocated");
	/* What waits for work that is not done any more ends, too. */
	FAILS(ddp_device_event_record(f.device, f.event, f.queues[0]), DDP_ERR_IO, "broken");
	tear_down(&f);
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

/* Each way to order two queues' work is known as one. */
TEST(what_is_ordered_is_not_refused)
{
	struct fixture f;
	struct gate gate;
	bool done = false;

	gate_init(&gate);
	set_up(&f);
	unsigned char *memory = f.memory[0];
	/* Both read; other bytes. */
	OK(ddp_device_copy(f.device, f.queues[0], f.memory[1], memory, 100));
	OK(ddp_device_copy(f.device, f.queues[1], f.memory[1] + 100, memory, 100));
	/* The host waited. */
	OK(ddp_device_queue_sync(f.device, f.queues[0]));
	OK(ddp_device_queue_sync(f.device, f.queues[1]));
	OK(ddp_device_fill(f.device, f.queues[1], memory, 1, BYTES));
	/* The host asked until it was done. */
	while (!done)
		OK(ddp_device_queue_query(f.device, f.queues[1], &done));
	OK(ddp_device_fill(f.device, f.queues[0], memory, 2, BYTES));
	OK(ddp_device_event_record(f.device, f.event, f.queues[0]));
	do
		OK(ddp_device_event_query(f.device, f.event, &done));
	while (!done);
	OK(ddp_device_fill(f.device, f.queues[1], memory, 3, BYTES));
	/* By way of a third queue. */
	OK(ddp_device_event_record(f.device, f.event, f.queues[1]));
	OK(ddp_device_queue_wait(f.device, NULL, f.event));
	OK(ddp_device_event_record(f.device, f.event, NULL));
	OK(ddp_device_queue_wait(f.device, f.queues[0], f.event));
	OK(ddp_device_fill(f.device, f.queues[0], memory, 4, BYTES));
	/* A function tells the host of what is before it. */
	OK(ddp_device_launch(f.device, f.queues[0], pass_gate, &gate));
	sem_wait(&gate.entered);
	OK(ddp_device_fill(f.device, f.queues[1], memory, 5, BYTES));
	sem_post(&gate.opened);
	OK(ddp_device_queue_sync(f.device, f.queues[1]));
	tear_down(&f);
}

/* Addresses come again after some GiB only, so this asks what keeps order itself. */
TEST(what_was_freed_orders_nothing)
{
	static gpu_order order;
	gpu_access other, access = { .address = &order, .bytes = 100, .writes = true, .what = "copy" };

	const int first = fake_gpu_order_add(&order), second = fake_gpu_order_add(&order);
	access.stream = first;
	access.clock = fake_gpu_order_next(&order, first);
	assert_true(fake_gpu_order_note(&order, &access, &other));
	access.stream = second;
	access.clock = fake_gpu_order_next(&order, second);
	assert_false(fake_gpu_order_note(&order, &access, &other));
	assert_int_equal(other.stream, first);
	fake_gpu_order_forget(&order, (char *)&order + 100, 10); /* only beside it */
	assert_false(fake_gpu_order_note(&order, &access, &other));
	fake_gpu_order_forget(&order, &order, 100);
	assert_true(fake_gpu_order_note(&order, &access, &other));
	fake_gpu_order_close(&order);
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

/* ---- captures ---- */

static void nothing(void *argument)
{
}

enum { CAPTURE_CALLS = 14 };

/* Each way of asking more of a device than the kernels that a graph keeps. */
static ddp_status call_in_capture(struct fixture *f, int which, void *pinned)
{
	void *memory = NULL;
	bool done;

	switch (which) {
	case 0: return ddp_device_alloc(f->device, BYTES, &memory);
	case 1: return ddp_device_host_alloc(f->device, BYTES, &memory);
	case 2: return ddp_device_free(f->device, f->memory[1]);
	case 3: return ddp_device_host_free(f->device, pinned);
	case 4: return ddp_device_queue_query(f->device, f->queues[1], &done);
	case 5: return ddp_device_queue_sync(f->device, f->queues[1]);
	case 6: return ddp_device_queue_free(f->device, f->queues[1]);
	case 7: return ddp_device_event_query(f->device, f->event, &done);
	case 8: return ddp_device_event_sync(f->device, f->event);
	case 9: return ddp_device_copy(f->device, f->queues[0], f->memory[0], pinned, BYTES);
	case 10: return ddp_device_fill(f->device, f->queues[0], f->memory[0], 1, BYTES);
	case 11: return ddp_device_launch(f->device, f->queues[0], nothing, NULL);
	case 12: return ddp_device_queue_wait(f->device, f->queues[0], f->event);
	default: return ddp_device_event_record(f->device, f->event, f->queues[0]);
	}
}

static const char *what_is_wrong(int which)
{
	return which < 2 ? "memory is allocated" : which < 4 ? "memory is freed" : which < 9 ? "the host asks or waits"
	     : which < 12 ? "a stream is given work" : "a stream waits for an event, or records one";
}

/* The queue works on as if nothing had been captured. */
static void expect_zeros(struct fixture *f, dk_queue *kernels)
{
	float *got = malloc(BYTES);

	assert_non_null(got);
	OK(ddp_device_fill(f->device, f->queues[0], f->memory[0], 1, BYTES));
	dk_use(kernels);
	dk_zero((float *)(void *)f->memory[0], BYTES / 4);
	dk_use(NULL);
	OK(ddp_device_copy(f->device, f->queues[0], got, f->memory[0], BYTES));
	OK(ddp_device_queue_sync(f->device, f->queues[0]));
	for (int i = 0; i < BYTES / 4; i++)
		assert_true(got[i] == 0);
	free(got);
}

TEST(a_thread_that_captures_asks_nothing_else_of_the_device)
{
	struct fixture f;
	dk_queue *kernels;
	const char *why;
	void *pinned;

	set_up(&f);
	OK(ddp_device_host_alloc(f.device, BYTES, &pinned));
	OK(ddp_kernel_queue_open(f.device, f.queues[0], DK_F32, &kernels));
	for (int i = 0; i < CAPTURE_CALLS; i++) {
		dk_use(kernels);
		assert_true(dk_graph_begin());
		dk_zero((float *)(void *)f.memory[0], BYTES / 4);
		FAILS(call_in_capture(&f, i, pinned), DDP_ERR_IO, what_is_wrong(i));
		assert_null(dk_graph_end(&why));
		dk_use(NULL);
		assert_non_null(strstr(why, what_is_wrong(i)));
		expect_zeros(&f, kernels);
	}
	ddp_kernel_queue_close(kernels);
	OK(ddp_device_host_free(f.device, pinned));
	tear_down(&f);
}

int main(void)
{
	unsetenv("DDP_LOCAL_DEVICE");
	return test_run(NULL, NULL);
}
