/* SPDX-License-Identifier: Apache-2.0 */
/* comm/nccl/load: NCCL's library, which is loaded when it is first asked for. */
#pragma once

#include "comm/nccl/abi.h"
#include "ddp.h"

/* The oldest that will do. Before, calls of one thread on a communicator that does not block
   the host are kept by the thread, not by the communicator: those on a second one, such as
   another lane, would write over them. */
enum { DDP_NCCL_OLDEST = 22703 };

typedef struct ddp_nccl {
	int version; /* 22809: 2.28.9 */
	int (*get_version)(int *version);
	const char *(*error_text)(int result);
	const char *(*last_error)(ddp_nccl_handle *handle);
	int (*get_id)(ddp_nccl_id *id);
	int (*init)(ddp_nccl_handle **handle, int ranks, ddp_nccl_id id, int rank, ddp_nccl_config *config);
	int (*async_error)(ddp_nccl_handle *handle, int *result);
	int (*finalize)(ddp_nccl_handle *handle);
	int (*destroy)(ddp_nccl_handle *handle);
	int (*abort)(ddp_nccl_handle *handle);
	int (*group_start)(void);
	int (*group_end)(void);
	int (*all_reduce)(const void *send, void *recv, size_t count, int type, int op,
	                  ddp_nccl_handle *handle, void *stream);
	int (*reduce)(const void *send, void *recv, size_t count, int type, int op, int root,
	              ddp_nccl_handle *handle, void *stream);
	int (*broadcast)(const void *send, void *recv, size_t count, int type, int root,
	                 ddp_nccl_handle *handle, void *stream);
	int (*reduce_scatter)(const void *send, void *recv, size_t count, int type, int op,
	                      ddp_nccl_handle *handle, void *stream);
	int (*all_gather)(const void *send, void *recv, size_t count, int type,
	                  ddp_nccl_handle *handle, void *stream);
	int (*send)(const void *buffer, size_t count, int type, int peer, ddp_nccl_handle *handle, void *stream);
	int (*recv)(void *buffer, size_t count, int type, int peer, ddp_nccl_handle *handle, void *stream);
	int (*make_scaled_sum)(int *op, void *scalar, int type, int residence, ddp_nccl_handle *handle);
	int (*free_op)(int op, ddp_nccl_handle *handle);

	/* NULL in older ones: */
	int (*init_by_ids)(ddp_nccl_handle **handle, int ranks, int rank, int ids, ddp_nccl_id *id,
	                   ddp_nccl_config *config);                          /* 2.23 */
	int (*mem_alloc)(void **memory, size_t bytes);                            /* 2.19 */
	int (*mem_free)(void *memory);
	int (*add_buffer)(ddp_nccl_handle *handle, void *memory, size_t bytes, void **registration); /* 2.19 */
	int (*remove_buffer)(ddp_nccl_handle *handle, void *registration);
} ddp_nccl;

/* Loads the library that DDP_NCCL of the environment names, else libnccl.so.2, once in a
   process. DDP_ERR_UNSUPPORTED: it is not there, does not load, or is too old. */
ddp_status ddp_nccl_load(const ddp_nccl **nccl);

/* Writes "2.28.9" into `text`, which is returned. */
const char *ddp_nccl_version_text(int version, char text[static 32]);
