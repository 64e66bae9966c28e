/* SPDX-License-Identifier: Apache-2.0 */
/* runs:; all: unit asan tsan; needs: NCCL_NET */
/* libnccl-net-ddpucx.so with CUDA memory: what it asks of UCX. There is no GPU. The plugin's calls of UCX pass through
   this program: it says that UCX moves CUDA memory, counts what is called CUDA memory, and gives it to UCX as the
   host's memory, which it is. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "tests/support/netplugin_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

/* ---- between the plugin and UCX ------------------------------------------------------------------------ */

static bool ucx_has_cuda = true; /* as the plugin is told */

/* Counts the calls of UCX for CUDA memory in this process. */
static struct {
	int mapped, moved, moved_unregistered;
	int flushed;
	uint64_t flushed_last; /* an address */
} seen;

static void *of_ucx(const char *function)
{
	void *found = dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), function);

	CHECK(found != NULL);
	return found;
}

#define UCX(function) ((__typeof__(&(function)))of_ucx(#function))
#define SHOWN __attribute__((visibility("default")))

SHOWN ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attributes)
{
	const ucs_status_t status = UCX(ucp_context_query)(context, attributes);

	if ((attributes->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) != 0) {
		attributes->memory_types &= ~UCS_BIT(UCS_MEMORY_TYPE_CUDA);
		attributes->memory_types |= ucx_has_cuda ? UCS_BIT(UCS_MEMORY_TYPE_CUDA) : 0;
	}
	return status;
}

SHOWN ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memory)
{
	ucp_mem_map_params_t host = *params;

	seen.mapped += (params->field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE) != 0 &&
	               params->memory_type == UCS_MEMORY_TYPE_CUDA;
	host.memory_type = UCS_MEMORY_TYPE_HOST;
	return UCX(ucp_mem_map)(context, &host, memory);
}

/* UCX does with or without a registration here. On InfiniBand it would register each message's memory, unless its hooks
   in malloc() and mmap() work. */
static ucp_request_param_t as_host(const ucp_request_param_t *param)
{
	ucp_request_param_t host = *param;

	if ((param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE) == 0 || param->memory_type != UCS_MEMORY_TYPE_CUDA)
		return host;
	seen.moved++;
#if UCP_API_VERSION >= UCP_VERSION(1, 15)
	seen.moved_unregistered += (param->op_attr_mask & UCP_OP_ATTR_FIELD_MEMH) == 0 || param->memh == NULL;
#endif
	host.memory_type = UCS_MEMORY_TYPE_HOST;
	return host;
}

SHOWN ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *data, size_t bytes, ucp_tag_t tag,
                                        const ucp_request_param_t *param)
{
	const ucp_request_param_t host = as_host(param);

	return UCX(ucp_tag_send_nbx)(ep, data, bytes, tag, &host);
}

SHOWN ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void *data, size_t bytes, ucp_tag_t tag, ucp_tag_t mask,
                                        const ucp_request_param_t *param)
{
	const ucp_request_param_t host = as_host(param);

	return UCX(ucp_tag_recv_nbx)(worker, data, bytes, tag, mask, &host);
}

SHOWN ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *to, size_t bytes, uint64_t from, ucp_rkey_h key,
                                   const ucp_request_param_t *param)
{
	seen.flushed++;
	seen.flushed_last = from;
	return UCX(ucp_get_nbx)(ep, to, bytes, from, key, param);
}

/* ---- whether the plugin takes it ----------------------------------------------------------------------- */

/* The first of a rank of these tests. */
static void set_up_cuda(nccl_driver *d, const board *b, int rank)
{
	CHECK(setenv("NCCL_NET_GDR_LEVEL", "SYS", 1) == 0);
	set_up(d, b, rank);
}

static int memory_taken(const nccl_driver *d)
{
	net_properties_v12 properties;

	CHECK(nccl_properties(d, 0, &properties) == NET_SUCCESS);
	return properties.memory;
}

static int take_it(int rank, void *argument)
{
	nccl_driver d;

	set_up_cuda(&d, argument, rank);
	CHECK(memory_taken(&d) == (NET_HOST | NET_CUDA | NET_DMABUF));
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static int do_without(int rank, void *argument)
{
	char data[8];
	void *memory = data;
	nccl_driver d;

	set_up(&d, argument, rank);
	CHECK(memory_taken(&d) == NET_HOST);
	void *connection = open_one(&d, rank);
	CHECK(d.register_memory(connection, data, sizeof(data), NET_CUDA, &memory) == NET_INVALID_USAGE && memory == NULL);
	CHECK(d.register_memory(connection, data, sizeof(data), 8, &memory) == NET_INVALID_USAGE && memory == NULL);
	(rank == RECEIVER ? stream_in : stream_out)(&d, connection, 3);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static int do_without_ucx(int rank, void *argument)
{
	ucx_has_cuda = false;
	CHECK(setenv("NCCL_NET_GDR_LEVEL", "SYS", 1) == 0);
	return do_without(rank, argument);
}

TEST(cuda_memory_is_taken_where_ucx_has_it)
{
	assert_int_equal(run_board(take_it, 11, over_tcp), 0);
}

/* Without the user's wish, only devices of InfiniBand take it. */
TEST(without_it_a_registration_says_why)
{
	assert_int_equal(run_board(do_without, 11, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "moves no CUDA memory through this device"));
	assert_non_null(strstr(shared->heard, "memory of kind 8 cannot be registered"));
	assert_int_equal(run_board(do_without_ucx, 11, over_tcp), 0);
	assert_non_null(strstr(shared->heard, "moves no CUDA memory through this device"));
}

/* ---- traffic ------------------------------------------------------------------------------------------- */

enum { STREAMED = 90 };

static place in_cuda;
static bool receiver_on_device, sender_on_device; /* in the next run */

/* Parts of one registration. The last message of a group has no bytes, and stands behind what is registered. */
enum { PART = 10000, LESS = 1111 };

static void group_in(const nccl_driver *d, void *receiver)
{
	const size_t all = (size_t)(NET_RECEIVES_MAX - 1) * PART;
	void *memory, *at[NET_RECEIVES_MAX], *memories[NET_RECEIVES_MAX], *request = NULL;
	unsigned char *data = malloc(all);
	size_t bytes[NET_RECEIVES_MAX];
	int tags[NET_RECEIVES_MAX], sizes[NET_RECEIVES_MAX];

	CHECK(d->register_memory(receiver, data, all, messages_at->memory, &memory) == NET_SUCCESS);
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
	if (request != NULL) {
		finish(d, request, NULL);
		CHECK(seen.flushed_last == (uint64_t)(uintptr_t)at[NET_RECEIVES_MAX - 2]);
	}
	for (int i = 0; i < NET_RECEIVES_MAX; i++) {
		CHECK(sizes[i] == (NET_RECEIVES_MAX - 1 - i) * LESS);
		CHECK(holds(at[i], (size_t)sizes[i], i));
	}
	CHECK(d->deregister_memory(receiver, memory) == NET_SUCCESS);
	free(data);
}

static void group_out(const nccl_driver *d, void *sender)
{
	unsigned char data[PART];
	void *memory;

	CHECK(d->register_memory(sender, data, PART, messages_at->memory, &memory) == NET_SUCCESS);
	for (int i = NET_RECEIVES_MAX - 1; i >= 0; i--) {
		const size_t bytes = (size_t)(NET_RECEIVES_MAX - 1 - i) * LESS;
		fill(data, bytes, i);
		finish(d, begin_send(d, sender, data, bytes, i, memory), NULL);
	}
	CHECK(d->deregister_memory(sender, memory) == NET_SUCCESS);
}

static void use_device(void)
{
	in_cuda = on_host;
	in_cuda.memory = NET_CUDA;
	messages_at = &in_cuda;
}

/* Connection 0 one way, and 1 back. */
static int exchange(int rank, void *argument)
{
	const bool on_device = rank == RECEIVER ? receiver_on_device : sender_on_device;
	nccl_driver d;

	set_up_cuda(&d, argument, rank);
	if (on_device)
		use_device();
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
	CHECK((seen.mapped == 3) == on_device && (seen.moved > 2 * STREAMED) == on_device);
	CHECK((seen.flushed > STREAMED / 2) == on_device && seen.moved_unregistered == 0);
	close_one(&d, rank, connection);
	close_one(&d, rank == RECEIVER ? SENDER : RECEIVER, back);
	if (rank == RECEIVER) /* It closed a sender's end last. */
		check_transports();
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

static void exchange_over(const char *transports, int version)
{
	for (int on_device = 1; on_device < 4; on_device++) {
		receiver_on_device = (on_device & 1) != 0;
		sender_on_device = (on_device & 2) != 0;
		assert_int_equal(run_board(exchange, version, transports), 0);
	}
}

TEST(device_memory_over_tcp)
{
	exchange_over(over_tcp, 12);
}

TEST(device_memory_over_memory)
{
	exchange_over(over_memory, 8);
}

/* The receiver frees memory while it is flushed. */
static int free_behind_a_flush(int rank, void *argument)
{
	nccl_driver d;
	void *memory, *request = NULL, *data = malloc(LONG);
	int bytes = LONG;

	set_up_cuda(&d, argument, rank);
	void *connection = open_one(&d, rank);
	memset(data, 1, LONG);
	CHECK(d.register_memory(connection, data, LONG, NET_CUDA, &memory) == NET_SUCCESS);
	finish(&d, (rank == RECEIVER ? begin_receive : begin_send)(&d, connection, data, LONG, 1, memory), NULL);
	if (rank == RECEIVER)
		CHECK(d.flush(connection, 1, &data, &bytes, &memory, &request) == NET_SUCCESS && request != NULL);
	CHECK(d.deregister_memory(connection, memory) == NET_SUCCESS);
	free(data);
	if (request != NULL)
		finish(&d, request, NULL);
	close_one(&d, rank, connection);
	CHECK(nccl_finalize(&d) == NET_SUCCESS);
	return 0;
}

TEST(memory_that_is_flushed_can_be_taken_back)
{
	assert_int_equal(run_board(free_behind_a_flush, 11, over_tcp), 0);
	assert_int_equal(run_board(free_behind_a_flush, 11, over_memory), 0);
}
