/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* device: what holds for each kind of device, the host and a GPU, which is the fake one, or a real
   one (make check-gpu); and what is said where a kind is missing. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "device/kernel_queue.h"
#include "device/module.h"
#include "tests/device/fake_gpu.h"
#include "tests/support/device_checks.h"
#include "tests/support/test.h"

enum { MANY = 70001, TRIALS = 20 };

static ddp_device *open_device(void **state)
{
	ddp_device *device = NULL;

	OK(ddp_device_open(*state, &device));
	return device;
}

/* ---- memory ---- */

static void device_says_what_it_is(void **state)
{
	ddp_device *device = open_device(state);
	const ddp_device_info *info = ddp_device_describe(device);

	assert_string_equal(info->kind, *state);
	assert_int_equal(info->index, 0);
	assert_true(info->name[0] != '\0');
	assert_true(info->memory_bytes > 1 << 20);
	assert_int_equal(info->is_host_memory, strcmp(*state, "cpu") == 0);
	OK(ddp_device_error(device));
	OK(ddp_device_close(device));
	OK(ddp_device_close(NULL));
}

static void memory_is_aligned_and_known_by_its_address(void **state)
{
	ddp_device *device = open_device(state);
	const bool own = !ddp_device_describe(device)->is_host_memory;
	static const size_t sizes[] = { 1, 255, 256, 257, 4096, 100000, 5 << 20 };
	enum { SIZES = sizeof(sizes) / sizeof(*sizes) };
	unsigned char *memory[SIZES];
	void *pinned;
	int local = 0;

	for (int i = 0; i < SIZES; i++) {
		OK(ddp_device_alloc(device, sizes[i], (void **)&memory[i]));
		assert_int_equal((uintptr_t)memory[i] % DDP_DEVICE_ALIGNMENT, 0);
		assert_int_equal(ddp_device_owns(device, memory[i]), own);
		assert_int_equal(ddp_device_owns(device, memory[i] + sizes[i] - 1), own);
		assert_ptr_equal(ddp_device_of(memory[i]), own ? device : NULL);
	}
	OK(ddp_device_host_alloc(device, 12345, &pinned));
	memset(pinned, 1, 12345);
	assert_false(ddp_device_owns(device, pinned));
	assert_false(ddp_device_owns(device, &local));
	assert_false(ddp_device_owns(device, NULL));
	assert_null(ddp_device_of(&local));
	OK(ddp_device_host_free(device, pinned));
	for (int i = 0; i < SIZES; i++)
		OK(ddp_device_free(device, memory[i]));
	OK(ddp_device_free(device, NULL));
	OK(ddp_device_host_free(device, NULL));
	OK(ddp_device_close(device));
}

static void memory_that_is_not_there_is_an_error_of_the_call_alone(void **state)
{
	ddp_device *device = open_device(state);
	void *memory = NULL;

	assert_int_equal(ddp_device_alloc(device, SIZE_MAX / 4, &memory), DDP_ERR_NOMEM);
	assert_null(memory);
	OK(ddp_device_error(device));
	OK(ddp_device_alloc(device, 1000, &memory));
	OK(ddp_device_free(device, memory));
	OK(ddp_device_close(device));
}

/* ---- work ---- */

static void fill_pattern(unsigned char *bytes, size_t count, unsigned seed)
{
	for (size_t i = 0; i < count; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

static void bytes_go_there_and_back(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_queue *queue;
	unsigned char *there, *further, *pinned, *sent = malloc(MANY), *got = malloc(MANY);

	OK(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &queue));
	OK(ddp_device_alloc(device, MANY, (void **)&there));
	OK(ddp_device_alloc(device, MANY, (void **)&further));
	OK(ddp_device_host_alloc(device, MANY, (void **)&pinned));
	fill_pattern(sent, MANY, 3);
	OK(ddp_device_copy(device, queue, there, sent, MANY));
	OK(ddp_device_copy(device, queue, further, there, MANY));
	OK(ddp_device_fill(device, queue, further + 11, 0x5a, 1000));
	OK(ddp_device_copy(device, queue, pinned, further, MANY));
	OK(ddp_device_copy(device, queue, got, pinned, MANY));
	OK(ddp_device_copy(device, queue, got, there, 1)); /* a copy has two halves */
	OK(ddp_device_copy(device, queue, got, there, 0));
	OK(ddp_device_queue_sync(device, queue));
	memset(sent + 11, 0x5a, 1000);
	assert_memory_equal(sent, pinned, MANY);
	assert_memory_equal(sent, got, MANY);
	OK(ddp_device_host_free(device, pinned));
	OK(ddp_device_free(device, further));
	OK(ddp_device_free(device, there));
	OK(ddp_device_queue_free(device, queue));
	OK(ddp_device_close(device));
	free(got);
	free(sent);
}

struct counter {
	int *next, *place;
};

static void take_number(void *argument)
{
	struct counter *counter = argument;

	*counter->place = (*counter->next)++;
}

static void a_queue_keeps_its_order(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_queue *queue;
	struct counter counters[50];
	int next = 0, places[50];

	OK(ddp_device_queue_create(device, DDP_DEVICE_HIGH, &queue));
	for (int i = 0; i < 50; i++) {
		counters[i] = (struct counter){ &next, &places[i] };
		OK(ddp_device_launch(device, queue, take_number, &counters[i]));
	}
	OK(ddp_device_queue_sync(device, queue));
	for (int i = 0; i < 50; i++)
		assert_int_equal(places[i], i);
	bool done = false;
	OK(ddp_device_queue_query(device, queue, &done));
	assert_true(done);
	OK(ddp_device_queue_free(device, queue));
	OK(ddp_device_close(device));
}

/* Three queues in a circle, each passing on what the one before it gave: TRIALS rounds
   without the host's waiting. */
static void events_order_queues(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_queue *queues[3];
	ddp_device_event *events[3];
	unsigned char *memory[3], *sent = malloc(MANY), *got = calloc(TRIALS, MANY);

	for (int i = 0; i < 3; i++) {
		OK(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &queues[i]));
		OK(ddp_device_event_create(device, &events[i]));
		OK(ddp_device_alloc(device, MANY, (void **)&memory[i]));
	}
	fill_pattern(sent, MANY, 5);
	OK(ddp_device_copy(device, queues[0], memory[0], sent, MANY));
	OK(ddp_device_event_record(device, events[0], queues[0]));
	for (int trial = 0; trial < TRIALS; trial++) {
		for (int i = 1; i <= 3; i++) {
			ddp_device_queue *queue = queues[i % 3];
			OK(ddp_device_queue_wait(device, queue, events[i - 1]));
			if (i < 3)
				OK(ddp_device_copy(device, queue, memory[i], memory[i - 1], MANY));
			else
				OK(ddp_device_copy(device, queue, got + trial * MANY, memory[2], MANY));
			if (i == 3) {
				OK(ddp_device_fill(device, queue, memory[2], 0, MANY));
				OK(ddp_device_fill(device, queue, memory[1], 0, MANY));
			}
			OK(ddp_device_event_record(device, events[i % 3], queue));
		}
	}
	OK(ddp_device_event_sync(device, events[0]));
	for (int trial = 0; trial < TRIALS; trial++)
		assert_memory_equal(sent, got + trial * MANY, MANY);
	for (int i = 0; i < 3; i++) {
		OK(ddp_device_queue_free(device, queues[i]));
		OK(ddp_device_event_free(device, events[i]));
		OK(ddp_device_free(device, memory[i]));
	}
	OK(ddp_device_close(device));
	free(got);
	free(sent);
}

static void doze(void *argument)
{
	usleep(20000);
}

static void timed_events_tell_how_long_work_took(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_event *events[2];
	double seconds = -1;

	for (int i = 0; i < 2; i++)
		OK(ddp_device_event_create_timed(device, &events[i]));
	OK(ddp_device_event_record(device, events[0], NULL));
	OK(ddp_device_launch(device, NULL, doze, NULL));
	OK(ddp_device_event_record(device, events[1], NULL));
	OK(ddp_device_event_sync(device, events[1]));
	OK(ddp_device_event_seconds(device, events[0], events[1], &seconds));
	assert_true(seconds >= 0.0199 && seconds < 60);
	OK(ddp_device_event_seconds(device, events[1], events[0], &seconds));
	assert_true(seconds <= -0.0199);
	for (int i = 0; i < 2; i++)
		OK(ddp_device_event_free(device, events[i]));
	OK(ddp_device_close(device));
}

static void an_event_stands_for_its_last_record(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_event *event;
	bool done = false;
	int next = 0, places[2] = { -1, -1 };
	struct counter counters[2] = { { &next, &places[0] }, { &next, &places[1] } };

	OK(ddp_device_event_create(device, &event));
	OK(ddp_device_event_query(device, event, &done));
	assert_true(done); /* it was never recorded */
	OK(ddp_device_event_sync(device, event));
	OK(ddp_device_queue_wait(device, NULL, event));
	for (int i = 0; i < 2; i++) {
		OK(ddp_device_launch(device, NULL, take_number, &counters[i]));
		OK(ddp_device_event_record(device, event, NULL));
	}
	OK(ddp_device_queue_wait(device, NULL, event)); /* a queue's own event */
	OK(ddp_device_event_sync(device, event));
	assert_int_equal(places[1], 1);
	OK(ddp_device_event_query(device, event, &done));
	assert_true(done);
	OK(ddp_device_queue_sync(device, NULL));
	OK(ddp_device_event_free(device, event));
	OK(ddp_device_event_free(device, NULL));
	OK(ddp_device_queue_free(device, NULL));
	OK(ddp_device_close(device));
}

struct worker {
	ddp_device *device;
	int number, wrong;
};

static void *work_alone(void *argument)
{
	struct worker *worker = argument;
	ddp_device_queue *queue;
	ddp_device_event *event;
	unsigned char *there, sent[999], got[999];

	for (int i = 0; i < TRIALS; i++) {
		memset(sent, worker->number + i, sizeof(sent));
		worker->wrong +=
			ddp_device_queue_create(worker->device, DDP_DEVICE_NORMAL, &queue) != DDP_OK ||
			ddp_device_event_create(worker->device, &event) != DDP_OK ||
			ddp_device_alloc(worker->device, sizeof(sent), (void **)&there) != DDP_OK ||
			ddp_device_copy(worker->device, queue, there, sent, sizeof(sent)) != DDP_OK ||
			ddp_device_copy(worker->device, queue, got, there, sizeof(got)) != DDP_OK ||
			ddp_device_event_record(worker->device, event, queue) != DDP_OK ||
			ddp_device_event_sync(worker->device, event) != DDP_OK ||
			memcmp(sent, got, sizeof(sent)) != 0 ||
			ddp_device_free(worker->device, there) != DDP_OK ||
			ddp_device_event_free(worker->device, event) != DDP_OK ||
			ddp_device_queue_free(worker->device, queue) != DDP_OK;
	}
	return NULL;
}

static void threads_share_a_device(void **state)
{
	ddp_device *device = open_device(state);
	struct worker workers[3];
	pthread_t threads[3];

	for (int i = 0; i < 3; i++) {
		workers[i] = (struct worker){ .device = device, .number = 50 * i };
		assert_int_equal(pthread_create(&threads[i], NULL, work_alone, &workers[i]), 0);
	}
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].wrong, 0);
	}
	OK(ddp_device_close(device));
}

/* ---- errors ---- */

static void wrong_arguments_are_named(void **state)
{
	ddp_device *device = open_device(state);
	unsigned char *memory, host[100];

	OK(ddp_device_alloc(device, 100, (void **)&memory));
	FAILS(ddp_device_alloc(device, 0, (void **)&memory), DDP_ERR_INVALID, "0 bytes");
	FAILS(ddp_device_host_alloc(device, 0, (void **)&memory), DDP_ERR_INVALID, "0 bytes");
	FAILS(ddp_device_copy(device, NULL, memory, NULL, 1), DDP_ERR_INVALID, "no address");
	FAILS(ddp_device_copy(device, NULL, memory + 10, memory, 11), DDP_ERR_INVALID, "overlap");
	FAILS(ddp_device_fill(device, NULL, NULL, 0, 1), DDP_ERR_INVALID, "no address");
	FAILS(ddp_device_launch(device, NULL, NULL, NULL), DDP_ERR_INVALID, "no function");
	FAILS(ddp_device_queue_wait(device, NULL, NULL), DDP_ERR_INVALID, "no event");
	FAILS(ddp_device_event_record(device, NULL, NULL), DDP_ERR_INVALID, "no event");
	FAILS(ddp_device_event_sync(device, NULL), DDP_ERR_INVALID, "no event");
	if (strcmp(*state, "cpu") != 0) {
		memset(host, 0, sizeof(host));
		assert_int_equal(ddp_device_fill(device, NULL, host, 1, sizeof(host)), DDP_ERR_INVALID);
		assert_int_equal(host[0], 0);
		assert_int_equal(ddp_device_free(device, memory + 10), DDP_ERR_INVALID);
	}
	OK(ddp_device_queue_sync(device, NULL));
	OK(ddp_device_free(device, memory));
	OK(ddp_device_close(device));
}

static void a_device_is_closed_when_nothing_of_it_is_left(void **state)
{
	ddp_device *device = open_device(state);
	ddp_device_queue *queue;
	ddp_device_event *event;
	void *memory, *pinned;

	OK(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &queue));
	OK(ddp_device_event_create(device, &event));
	OK(ddp_device_alloc(device, 10, &memory));
	OK(ddp_device_host_alloc(device, 10, &pinned));
	FAILS(ddp_device_close(device), DDP_ERR_STATE,
	      "1 pieces of memory and 1 of the host's, 1 queues and 1 events were not freed");
	OK(ddp_device_free(device, memory));
	OK(ddp_device_host_free(device, pinned));
	OK(ddp_device_event_free(device, event));
	FAILS(ddp_device_close(device), DDP_ERR_STATE, "1 queues and 0 events");
	OK(ddp_device_queue_free(device, queue));
	OK(ddp_device_close(device));
}

static void unknown_devices_are_refused_by_name(void **state)
{
	ddp_device *device = NULL;

	FAILS(ddp_device_open("tpu", &device), DDP_ERR_INVALID, "'tpu'; the kinds are cpu and cuda");
	FAILS(ddp_device_open("test", &device), DDP_ERR_INVALID, "'test'; the kinds are cpu and cuda");
	FAILS(ddp_device_open("a name that is longer than kinds are", &device), DDP_ERR_INVALID,
	      "longer than kinds are");
	FAILS(ddp_device_open("cpu:1", &device), DDP_ERR_INVALID, "cpu:1");
	FAILS(ddp_device_open("cuda:", &device), DDP_ERR_INVALID, "index");
	FAILS(ddp_device_open("cuda:-1", &device), DDP_ERR_INVALID, "index");
	FAILS(ddp_device_open("cuda:1x", &device), DDP_ERR_INVALID, "index");
	FAILS(ddp_device_open(NULL, &device), DDP_ERR_INVALID, "name");
	setenv("DDP_LOCAL_DEVICE", "first", 1);
	FAILS(ddp_device_open("cuda", &device), DDP_ERR_JOB, "DDP_LOCAL_DEVICE is 'first'");
	assert_null(device);
	unsetenv("DDP_LOCAL_DEVICE");
}

static void an_index_is_named_or_the_jobs(void **state)
{
	ddp_device *device = NULL;

	test_fake_gpu()->count = 6;
	setenv("DDP_LOCAL_DEVICE", "3", 1);
	OK(ddp_device_open("cpu", &device));
	OK(ddp_device_close(device));
	OK(ddp_device_open("cuda", &device));
	assert_int_equal(ddp_device_describe(device)->index, 3);
	OK(ddp_device_close(device));
	OK(ddp_device_open("cuda:5", &device));
	assert_int_equal(ddp_device_describe(device)->index, 5);
	OK(ddp_device_close(device));
	FAILS(ddp_device_open("cuda:6", &device), DDP_ERR_INVALID, "this process sees 6 GPUs");
	unsetenv("DDP_LOCAL_DEVICE");
	test_fake_gpu()->count = 1;
}

static void a_module_that_cannot_serve_is_named_with_the_reason(void **state)
{
	static const struct {
		const char *module, *text;
	} cases[] = {
		{ "/nowhere/libddp_cuda.so", "there is no /nowhere/libddp_cuda.so" },
		{ "/etc/passwd", "does not load" },
		{ "tests/support/.libs/module_of_another_version.so", "install both from one release" },
	};
	char *before = strdup(getenv("DDP_CUDA_MODULE")), *kernels_before = strdup(getenv("DDP_CUDA_KERNELS"));
	const dk_table *kernels;
	ddp_device *device = NULL;
	Dl_info cmocka;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		setenv("DDP_CUDA_MODULE", cases[i].module, 1);
		FAILS(ddp_device_open("cuda", &device), DDP_ERR_UNSUPPORTED, cases[i].text);
		setenv("DDP_CUDA_KERNELS", cases[i].module, 1);
		FAILS(ddp_device_cuda_kernels(&kernels), DDP_ERR_UNSUPPORTED, cases[i].text);
	}
	unsetenv("DDP_CUDA_KERNELS"); /* nor is that beside a test */
	FAILS(ddp_device_cuda_kernels(&kernels), DDP_ERR_UNSUPPORTED, "--with-cuda");
	assert_true(dladdr((void *)_assert_true, &cmocka) != 0);
	setenv("DDP_CUDA_MODULE", cmocka.dli_fname, 1);
	FAILS(ddp_device_open("cuda", &device), DDP_ERR_UNSUPPORTED, "is no module");
	unsetenv("DDP_CUDA_MODULE"); /* it is not beside a test */
	FAILS(ddp_device_open("cuda", &device), DDP_ERR_UNSUPPORTED, "--with-cuda");
	assert_null(device);
	setenv("DDP_CUDA_MODULE", before, 1);
	setenv("DDP_CUDA_KERNELS", kernels_before, 1);
	free(before);
	free(kernels_before);
}

/* Until somebody has asked, or for so long that one who does not wait has. */
static void linger(void *asked)
{
	for (int i = 0; i < 100 && !atomic_load((atomic_bool *)asked); i++)
		usleep(1000);
}

static void closing_kernels_waits_for_their_queue(void **state)
{
	static atomic_bool asked; /* linger() may look at it when a test has failed */
	ddp_device_queue *queue;
	ddp_device *device;
	dk_queue *kernels;
	bool done;

	OK(ddp_device_open("cuda", &device));
	OK(ddp_device_queue_create(device, DDP_DEVICE_NORMAL, &queue));
	OK(ddp_kernel_queue_open(device, queue, DK_F32, &kernels));
	OK(ddp_device_launch(device, queue, linger, &asked));
	ddp_kernel_queue_close(kernels);
	OK(ddp_device_queue_query(device, queue, &done));
	atomic_store(&asked, true);
	assert_true(done);
	OK(ddp_device_queue_free(device, queue));
	OK(ddp_device_close(device));
}

#define ON(device, test) { device ": " #test, test, NULL, NULL, (void *)device }
#define CASES(device) \
	ON(device, device_says_what_it_is), \
	ON(device, memory_is_aligned_and_known_by_its_address), \
	ON(device, memory_that_is_not_there_is_an_error_of_the_call_alone), \
	ON(device, bytes_go_there_and_back), \
	ON(device, a_queue_keeps_its_order), \
	ON(device, events_order_queues), \
	ON(device, an_event_stands_for_its_last_record), \
	ON(device, timed_events_tell_how_long_work_took), \
	ON(device, threads_share_a_device), \
	ON(device, wrong_arguments_are_named), \
	ON(device, a_device_is_closed_when_nothing_of_it_is_left)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_module_that_cannot_serve_is_named_with_the_reason),
		cmocka_unit_test(unknown_devices_are_refused_by_name),
		cmocka_unit_test(closing_kernels_waits_for_their_queue),
		CASES("cpu"), CASES("cuda"),
		cmocka_unit_test(an_index_is_named_or_the_jobs), /* of the fake GPU */
	};
	const size_t count = sizeof(tests) / sizeof(*tests);

	unsetenv("DDP_LOCAL_DEVICE");
	return _cmocka_run_group_tests("tests", tests, test_on_gpu() ? count - 1 : count, NULL, NULL);
}
