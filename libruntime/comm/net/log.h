/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/log: what UCX prints. UCX writes to stdout unless told otherwise, and a program may use UCX itself:
   libddp's share goes to the log, the program's comes out as if libddp were not there. */
#pragma once

#include <stddef.h>

/* From here to the end of the block, UCX's messages of this thread are libddp's. Blocks may nest, and several
   threads may be in one. */
#define DDP_UCX_FOR_LIBDDP() \
	__attribute__((cleanup(ddp_ucx_log_leave), unused)) const int ucx_for_libddp = ddp_ucx_log_enter()

int ddp_ucx_log_enter(void);
void ddp_ucx_log_leave(const int *ignored);

/* The last error that UCX told in this thread since the outermost such block began, or "". */
const char *ddp_ucx_log_reason(void);

/* Between these two calls, UCX may start the thread that serves the whole process. If UCX starts it, it does so
   for libddp, and the thread's messages are libddp's. */
typedef struct ddp_threads {
	int count;
	int *ids;
} ddp_threads;

void ddp_ucx_log_list_threads(ddp_threads *before);
void ddp_ucx_log_claim_thread(ddp_threads *before);

/* "; the environment sets UCX_NET_DEVICES=ib0: ..." behind a sentence on what cannot be reached; "" if
   it chooses no device and no transport. */
const char *ddp_ucx_choice(char *text, size_t bytes);
