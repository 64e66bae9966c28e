/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET CUDA */
/* libnccl-net-ddpucx.so with CUDA memory: UCX's own CUDA transports on a stand-in for the driver
   (tests/support/driver), whose memory the host cannot touch. Where this UCX has no such transports,
   as those of distributions, the plugin has to say so, and the rest is left out: `make check-ucx` has
   a UCX with them, and says so by DDP_TEST_UCX_CUDA. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "tests/support/driver/driver.h"
#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

static const char cuda_over_tcp[] = "tcp,cuda_copy", cuda_over_memory[] = "posix,sysv,cma,cuda_copy";

/* ---- the stand-in for CUDA's driver, which a rank loads as the program's CUDA would a real one ------- */

typedef struct cuda_calls {
	cuda_driver_switches *switches;
	CUresult (*init)(unsigned int flags), (*retain)(CUcontext *context, CUdevice device);
	CUresult (*push)(CUcontext context);
	CUresult (*allocate)(CUdeviceptr *address, size_t bytes), (*free)(CUdeviceptr address);
	CUresult (*to_device)(CUdeviceptr to, const void *from, size_t bytes);
	CUresult (*to_host)(void *to, CUdeviceptr from, size_t bytes);
	CUresult (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
	CUresult (*make_stream)(CUstream *stream, unsigned int flags), (*end_stream)(CUstream stream);
	CUresult (*make_event)(CUevent *event, unsigned int flags), (*end_event)(CUevent event);
	CUresult (*record)(CUevent event, CUstream stream), (*query)(CUevent event);
} cuda_calls;

#define FOLDER "tests/support/driver/.libs/"

static cuda_calls cuda;

static void find(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	CHECK(symbol != NULL);
	memcpy(function, &symbol, sizeof(symbol));
}

/* In a rank: fills `cuda` in. From then on UCX gets these libraries, not a real driver. The
   calling thread has the GPU's context. */
static void cuda_load_driver(void)
{
	void *library = dlopen(FOLDER "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CUcontext context;

	if (library == NULL)
		fprintf(stderr, "# %s\n", dlerror());
	CHECK(library != NULL && dlopen(FOLDER "libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL);
	find(library, "cuda_driver", &cuda.switches);
	find(library, "cuInit", &cuda.init);
	find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
	find(library, "cuCtxPushCurrent_v2", &cuda.push);
	find(library, "cuMemAlloc_v2", &cuda.allocate);
	find(library, "cuMemFree_v2", &cuda.free);
	find(library, "cuMemcpyHtoD_v2", &cuda.to_device);
	find(library, "cuMemcpyDtoH_v2", &cuda.to_host);
	find(library, "cuMemcpyAsync", &cuda.copy);
	find(library, "cuStreamCreate", &cuda.make_stream);
	find(library, "cuEventCreate", &cuda.make_event);
	find(library, "cuEventRecord", &cuda.record);
	find(library, "cuEventQuery", &cuda.query);
	find(library, "cuStreamDestroy_v2", &cuda.end_stream);
	find(library, "cuEventDestroy_v2", &cuda.end_event);
	CHECK(cuda.init(0) == CUDA_SUCCESS && cuda.retain(&context, 0) == CUDA_SUCCESS);
	CHECK(cuda.push(context) == CUDA_SUCCESS);
}

static CUdeviceptr cuda_address(const void *data)
{
	return (CUdeviceptr)(uintptr_t)data;
}

static void *take(size_t bytes)
{
	CUdeviceptr address = 0;

	CHECK(cuda.allocate(&address, bytes) == CUDA_SUCCESS);
	return (void *)(uintptr_t)address;
}

static void give_back(void *data)
{
	CHECK(cuda.free(cuda_address(data)) == CUDA_SUCCESS);
}

static void write_device(void *to, const void *from, size_t bytes)
{
	CHECK(cuda.to_device(cuda_address(to), from, bytes) == CUDA_SUCCESS);
}

static void read_device(void *to, const void *from, size_t bytes)
{
	CHECK(cuda.to_host(to, cuda_address(from), bytes) == CUDA_SUCCESS);
}

static const place cuda_on_device = {
	.memory = NET_CUDA, .take = take, .give_back = give_back, .write = write_device, .read = read_device,
};

/* ---- what the tests rely on ----------------------------------------------------------------------- */

static int touch_device(bool writes)
{
	cuda_load_driver();
	volatile char *data = cuda_on_device.take(100);
	signal(SIGSEGV, SIG_DFL);
	if (writes)
		data[99] = 1;
	return data[0];
}

/* By which signal a process dies that does. */
static int dies_of_a_touch(bool writes)
{
	int status = 0;
	const pid_t pid = fork();

	if (pid == 0)
		_exit(touch_device(writes));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int see_copies_end(int rank, void *argument)
{
	char seen[4] = "";
	CUstream stream;
	CUevent event;
	int asked = 0;

	cuda_load_driver();
	char *data = cuda_on_device.take(4);
	cuda_on_device.write(data, "old", 4);
	CHECK(cuda.make_stream(&stream, 0) == CUDA_SUCCESS && cuda.make_event(&event, 0) == CUDA_SUCCESS);
	CHECK(cuda.copy(cuda_address(data), cuda_address("new"), 4, stream) == CUDA_SUCCESS);
	CHECK(cuda.record(event, stream) == CUDA_SUCCESS);
	cuda_on_device.read(seen, data, 4);
	CHECK(strcmp(seen, "old") == 0);
	while (cuda.query(event) == CUDA_ERROR_NOT_READY)
		asked++;
	cuda_on_device.read(seen, data, 4);
	CHECK(asked > 0 && strcmp(seen, "new") == 0);
	CHECK(cuda.copy(cuda_address(data), cuda_address(data), 5, stream) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuda.end_event(event) == CUDA_SUCCESS && cuda.end_stream(stream) == CUDA_SUCCESS);
	cuda_on_device.give_back(data);
	return 0;
}

TEST(the_host_cannot_touch_the_devices_memory)
{
	const test_ranks one = { .count = 1, .body = see_copies_end };

	assert_int_equal(dies_of_a_touch(true), SIGSEGV);
	assert_int_equal(dies_of_a_touch(false), SIGSEGV);
	assert_int_equal(test_ranks_run(&one), 0);
}

/* ---- whether the plugin takes it -------------------------------------------------------------------- */

static bool ucx_has_cuda; /* as the first of them found */

static int memory_taken(const nccl_driver *d)
{
	net_properties_v12 properties;

	CHECK(nccl_properties(d, 0, &properties) == NET_SUCCESS);
	return properties.memory;
}

/* The first of a rank of these tests. */
static void set_up_cuda(nccl_driver *d, const board *b, int rank)
{
	cuda_load_driver();
	CHECK(setenv("NCCL_NET_GDR_LEVEL", "SYS", 1) == 0);
	set_up(d, b, rank);
}

static int tell_whether(int rank, void *argument)
{
	nccl_driver d;

	set_up_cuda(&d, argument, rank);
	if (memory_taken(&d) == (NET_HOST | NET_CUDA | NET_DMABUF))
		reach(1);
	else
		CHECK(memory_taken(&d) == NET_HOST);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(cuda_memory_is_taken_where_ucx_has_it)
{
	assert_int_equal(run_board(tell_whether, 11, cuda_over_tcp), 0);
	ucx_has_cuda = atomic_load(&shared->stage) == 1;
	assert_true(ucx_has_cuda || getenv("DDP_TEST_UCX_CUDA") == NULL);
	if (!ucx_has_cuda)
		print_message("# this UCX has no CUDA transports: the rest is for make check-ucx\n");
}

static bool left_out(void)
{
	if (!ucx_has_cuda)
		skip();
	return !ucx_has_cuda;
}

/* Without the switch, no device is for it that is not of InfiniBand. */
static int do_without(int rank, void *argument)
{
	char data[8];
	void *memory = data;
	nccl_driver d;

	cuda_load_driver();
	CHECK(unsetenv("NCCL_NET_GDR_LEVEL") == 0);
	set_up(&d, argument, rank);
	CHECK(memory_taken(&d) == NET_HOST);
	void *connection = open_one(&d, rank);
	CHECK(d.register_memory(connection, data, sizeof(data), NET_CUDA, &memory) == NET_INVALID_USAGE && memory == NULL);
	CHECK(d.register_memory(connection, data, sizeof(data), 8, &memory) == NET_INVALID_USAGE && memory == NULL);
	if (rank == RECEIVER)
		stream_in(&d, connection, 3);
	else
		stream_out(&d, connection, 3);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(without_it_a_registration_says_why)
{
	assert_int_equal(run_board(do_without, 11, cuda_over_tcp), 0);
	assert_non_null(strstr(shared->heard, "moves no CUDA memory through this device"));
	assert_non_null(strstr(shared->heard, "memory of kind 8 cannot be registered"));
}

/* ---- registrations -------------------------------------------------------------------------------------- */

/* Of what the plugin gave UCX to send or receive in CUDA memory. UCX does with or without a registration
   here; on InfiniBand it would register each message's memory, unless its hooks in malloc() and mmap() work. */
static int with_registration, without_registration;

static void note_registration(const ucp_request_param_t *param)
{
	if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) == 0 || param->memory_type != UCS_MEMORY_TYPE_CUDA)
		return;
	if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) != 0 && param->memh != NULL)
		with_registration++;
	else
		without_registration++;
}

static void *of_ucx(const char *function)
{
	void *found = dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), function);

	CHECK(found != NULL);
	return found;
}

#define SHOWN __attribute__((visibility("default")))

/* The plugin calls these two instead of UCX's. */
SHOWN ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *data, size_t bytes, ucp_tag_t tag,
                                  const ucp_request_param_t *param)
{
	static ucs_status_ptr_t (*send)(ucp_ep_h, const void *, size_t, ucp_tag_t, const ucp_request_param_t *);

	if (send == NULL)
		*(void **)&send = of_ucx("ucp_tag_send_nbx");
	note_registration(param);
	return send(ep, data, bytes, tag, param);
}

SHOWN ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void *data, size_t bytes, ucp_tag_t tag, ucp_tag_t mask,
                                  const ucp_request_param_t *param)
{
	static ucs_status_ptr_t (*receive)(ucp_worker_h, void *, size_t, ucp_tag_t, ucp_tag_t,
	                                   const ucp_request_param_t *);

	if (receive == NULL)
		*(void **)&receive = of_ucx("ucp_tag_recv_nbx");
	note_registration(param);
	return receive(worker, data, bytes, tag, mask, param);
}

/* ---- traffic ------------------------------------------------------------------------------------------ */

enum { STREAMED = 90 };

/* What the next run is of. */
static bool receiver_on_device, sender_on_device, virtual_memory;

/* One registration of so many bytes where this process's messages are. */
static void *take_registered(const nccl_driver *d, void *connection, size_t bytes, void **memory)
{
	void *data = messages_at->take(bytes);

	CHECK(d->register_memory(connection, data, bytes, messages_at->memory, memory) == NET_SUCCESS);
	return data;
}

static void give_registered_back(const nccl_driver *d, void *connection, void *data, void *memory)
{
	CHECK(d->deregister_memory(connection, memory) == NET_SUCCESS);
	messages_at->give_back(data);
}

/* Parts of one registration. The last message of a group has no bytes, and stands behind what is registered. */
enum { PART = 10000, LESS = 1111 };

static void group_in(const nccl_driver *d, void *receiver)
{
	unsigned char copy[PART];
	void *memory, *at[NET_RECEIVES_MAX], *memories[NET_RECEIVES_MAX], *request = NULL;
	char *data = take_registered(d, receiver, (size_t)(NET_RECEIVES_MAX - 1) * PART, &memory);
	size_t bytes[NET_RECEIVES_MAX];
	int tags[NET_RECEIVES_MAX], sizes[NET_RECEIVES_MAX];

	for (int i = 0; i < NET_RECEIVES_MAX; i++) {
		at[i] = data + (size_t)i * PART;
		memories[i] = memory;
		bytes[i] = i < NET_RECEIVES_MAX - 1 ? PART : 0;
		tags[i] = i;
	}
	CHECK(nccl_receive(d, receiver, NET_RECEIVES_MAX, at, bytes, tags, memories, &request) == NET_SUCCESS);
	CHECK(request != NULL);
	finish(d, request, sizes);
	request = NULL;
	CHECK(d->flush(receiver, NET_RECEIVES_MAX, at, sizes, memories, &request) == NET_SUCCESS);
	CHECK((request != NULL) == (messages_at->memory == NET_CUDA));
	if (request != NULL)
		finish(d, request, NULL);
	for (int i = 0; i < NET_RECEIVES_MAX; i++) {
		CHECK(sizes[i] == (NET_RECEIVES_MAX - 1 - i) * LESS);
		messages_at->read(copy, at[i], (size_t)sizes[i]);
		CHECK(holds(copy, (size_t)sizes[i], i));
	}
	give_registered_back(d, receiver, data, memory);
}

static void group_out(const nccl_driver *d, void *sender)
{
	unsigned char copy[PART];
	void *memory, *data = take_registered(d, sender, PART, &memory);

	for (int i = NET_RECEIVES_MAX - 1; i >= 0; i--) {
		const size_t bytes = (size_t)(NET_RECEIVES_MAX - 1 - i) * LESS;
		fill(copy, bytes, i);
		messages_at->write(data, copy, bytes);
		finish(d, begin_send(d, sender, data, bytes, i, memory), NULL);
	}
	give_registered_back(d, sender, data, memory);
}

/* What UCX moves in fragments, which it copies while others travel. All at once. */
static const size_t large[] = { 300000, 3 << 20, 9 << 20 };
enum { LARGE_ONES = 3, LARGEST = 9 << 20 };

static void move_large(const nccl_driver *d, int rank, void *connection)
{
	unsigned char *copy = calloc(1, LARGEST);
	void *memory, *requests[LARGE_ONES];
	char *data = take_registered(d, connection, (size_t)LARGE_ONES * LARGEST, &memory);

	CHECK(copy != NULL);
	for (int i = 0; i < LARGE_ONES; i++) {
		char *at = data + (size_t)i * LARGEST;
		if (rank == SENDER)
			fill(copy, large[i], i);
		messages_at->write(at, copy, large[i]);
		requests[i] = (rank == SENDER ? begin_send : begin_receive)(d, connection, at, large[i], 1, memory);
		CHECK(requests[i] != NULL);
	}
	for (int i = 0; i < LARGE_ONES; i++) {
		char *at = data + (size_t)i * LARGEST;
		finish(d, requests[i], NULL);
		if (rank == RECEIVER)
			flush(d, connection, at, (int)large[i], memory);
		messages_at->read(copy, at, large[i]);
		CHECK(holds(copy, large[i], i));
	}
	give_registered_back(d, connection, data, memory);
	free(copy);
}

/* Connection 0 one way, and 1 back. */
static int exchange(int rank, void *argument)
{
	nccl_driver d;

	set_up_cuda(&d, argument, rank);
	cuda.switches->virtual_memory = virtual_memory;
	if (rank == RECEIVER ? receiver_on_device : sender_on_device)
		messages_at = &cuda_on_device;
	void *connection = open_one(&d, rank);
	void *back = rank == RECEIVER ? send_to(&d, 1) : receive_from(&d, 1);
	if (rank == RECEIVER) {
		stream_in(&d, connection, STREAMED);
		group_in(&d, connection);
		stream_out(&d, back, STREAMED);
	} else {
		stream_out(&d, connection, STREAMED);
		group_out(&d, connection);
		stream_in(&d, back, STREAMED);
	}
	move_large(&d, rank, connection);
	CHECK((cuda.switches->copies > 0 && cuda.switches->early > 0) || messages_at == &on_host);
	CHECK((with_registration > 0 && without_registration == 0) || messages_at == &on_host);
	close_one(&d, rank, connection);
	close_one(&d, rank == RECEIVER ? SENDER : RECEIVER, back);
	if (rank == RECEIVER) /* It closed a sender's end last. */
		check_transports();
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static void exchange_over(const char *transports, int version)
{
	for (int of = 0; of < 2; of++) {
		virtual_memory = of == 1;
		receiver_on_device = sender_on_device = true;
		assert_int_equal(run_board(exchange, version, transports), 0);
		receiver_on_device = false;
		assert_int_equal(run_board(exchange, version, transports), 0);
		receiver_on_device = true;
		sender_on_device = false;
		assert_int_equal(run_board(exchange, version, transports), 0);
	}
}

TEST(device_memory_over_tcp)
{
	if (!left_out())
		exchange_over(cuda_over_tcp, 12);
}

TEST(device_memory_over_memory)
{
	if (!left_out())
		exchange_over(cuda_over_memory, 8);
}

/* ---- errors --------------------------------------------------------------------------------------------- */

/* Each call of the driver's that a registration makes fails once. UCX does without it, as long as the
   memory can be moved. */
static int fail_registrations(int rank, void *argument)
{
	enum { CALLS = 16 };
	static unsigned char copy[LONG];
	nccl_driver d;
	void *memory;
	int made = 0;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	messages_at = &cuda_on_device;
	void *data = cuda_on_device.take(LONG);
	for (int n = 1; n <= CALLS; n++) {
		cuda.switches->failed = NULL;
		cuda.switches->calls = 0;
		cuda.switches->failing = n;
		CHECK(d.register_memory(connection, data, LONG, NET_CUDA, &memory) == NET_SUCCESS);
		cuda.switches->failing = 0;
		made += cuda.switches->failed != NULL;
		memset(copy, 0, LONG);
		if (rank == SENDER)
			fill(copy, LONG, n);
		cuda_on_device.write(data, copy, LONG);
		finish(&d, (rank == SENDER ? begin_send : begin_receive)(&d, connection, data, LONG, 1, memory), NULL);
		if (rank == RECEIVER)
			flush(&d, connection, data, LONG, memory);
		cuda_on_device.read(copy, data, LONG);
		CHECK(holds(copy, LONG, n));
		CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
	}
	CHECK(made > 1 && made < CALLS);
	cuda_on_device.give_back(data);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(a_registration_bears_failing_calls)
{
	if (!left_out())
		assert_int_equal(run_board(fail_registrations, 11, cuda_over_tcp), 0);
}

/* The victim's memory is freed before the message moves, and UCX goes on for another connection. */
static int take_back(int rank, void *argument)
{
	const bool victim = rank == shared->victim;
	nccl_driver d;
	void *memory;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	void *other = rank == RECEIVER ? receive_from(&d, 1) : send_to(&d, 1);
	messages_at = &cuda_on_device;
	void *data = take_registered(&d, connection, LARGEST, &memory);
	if (!victim)
		await(1);
	CHECK((rank == RECEIVER ? begin_receive : begin_send)(&d, connection, data, LARGEST, 5, memory) != NULL);
	if (victim) {
		give_registered_back(&d, connection, data, memory);
		reach(1);
	}
	if (rank == RECEIVER)
		stream_in(&d, other, STREAMED);
	else
		stream_out(&d, other, STREAMED);
	if (!victim)
		give_registered_back(&d, connection, data, memory);
	close_one(&d, rank, connection);
	close_one(&d, rank, other);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(memory_that_is_taken_back_is_left_alone)
{
	for (int victim = 0; victim < RANKS && !left_out(); victim++) {
		assert_int_equal(run_with_victim(take_back, cuda_over_tcp, victim, false), 0);
		assert_int_equal(run_with_victim(take_back, cuda_over_memory, victim, false), 0);
	}
}

/* The receiver frees memory while it is flushed. */
static int free_behind_a_flush(int rank, void *argument)
{
	nccl_driver d;
	void *memory, *request = NULL;
	int bytes = LONG;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	messages_at = &cuda_on_device;
	void *data = take_registered(&d, connection, LONG, &memory);
	finish(&d, (rank == RECEIVER ? begin_receive : begin_send)(&d, connection, data, LONG, 1, memory), NULL);
	const int copies = cuda.switches->copies;
	if (rank == RECEIVER)
		CHECK(d.flush(connection, 1, &data, &bytes, &memory, &request) == NET_SUCCESS && request != NULL);
	CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
	CHECK(cuda.switches->copies == copies + (rank == RECEIVER));
	cuda_on_device.give_back(data);
	if (request != NULL)
		finish(&d, request, NULL);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(memory_that_is_flushed_can_be_taken_back)
{
	if (left_out())
		return;
	assert_int_equal(run_board(free_behind_a_flush, 11, cuda_over_tcp), 0);
	assert_int_equal(run_board(free_behind_a_flush, 11, cuda_over_memory), 0);
}

/* The victim is killed with a message under way; what the other one had for it can be freed. */
static int outlive(int rank, void *argument)
{
	nccl_driver d;
	void *memory;
	net_result result = NET_SUCCESS;
	int done = 0;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	messages_at = &cuda_on_device;
	void *data = take_registered(&d, connection, LARGEST, &memory);
	void *request = (rank == RECEIVER ? begin_receive : begin_send)(&d, connection, data, LARGEST, 5, memory);
	/* Some of it gets there. */
	for (int i = 0; i < 20 && done == 0; i++)
		CHECK(d.test(request, &done, NULL) == NET_SUCCESS);
	if (rank == shared->victim) {
		await(1);
		kill(getpid(), SIGKILL);
	}
	reach(1);
	while (result == NET_SUCCESS && done == 0)
		result = d.test(request, &done, NULL);
	CHECK(result == NET_SYSTEM_ERROR || done != 0);
	give_registered_back(&d, connection, data, memory);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(a_killed_peer_leaves_memory_free)
{
	for (int victim = 0; victim < RANKS && !left_out(); victim++) {
		assert_int_equal(run_with_victim(outlive, cuda_over_tcp, victim, true), 0);
		assert_int_equal(run_with_victim(outlive, cuda_over_memory, victim, true), 0);
	}
}

/* A rank may be killed, but not abort. */
static void be_killed(int number)
{
	kill(getpid(), SIGKILL);
}

/* UCX aborts a process whose copies fail. The other one gets an error. */
static int send_in_vain(int rank, void *argument)
{
	nccl_driver d;
	void *memory;
	int done = 0;
	net_result result = NET_SUCCESS;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	messages_at = &cuda_on_device;
	void *data = take_registered(&d, connection, LONG, &memory);
	if (rank == SENDER) {
		signal(SIGABRT, be_killed);
		cuda.switches->failing_all = "cuMemcpyAsync";
	}
	void *request = (rank == SENDER ? begin_send : begin_receive)(&d, connection, data, LONG, 1, memory);
	while (done == 0 && result == NET_SUCCESS)
		result = d.test(request, &done, NULL);
	CHECK(rank == RECEIVER && result == NET_SYSTEM_ERROR);
	give_registered_back(&d, connection, data, memory);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(failing_copies_reach_the_peer)
{
	if (!left_out())
		assert_int_equal(run_with_victim(send_in_vain, cuda_over_tcp, SENDER, true), 0);
}
