/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL asks a profiler plugin for the symbols ncclProfiler_v4 (NCCL 2.27),
   ncclProfiler_v5 (2.28) and ncclProfiler_v6 (2.30), as far as this library reads or
   fills them. Layouts are NCCL's (plugins/profiler of its sources), words are ours.
   Versions 4 to 6 agree in the members below, but for the width of `type` and the
   order of init's arguments. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Values of ncclResult_t. */
enum { DDP_NCCL_SUCCESS = 0, DDP_NCCL_SYSTEM_ERROR = 2 };

/* Kinds of events: bits of the mask that init gives. Other kinds may come unasked. */
enum { DDP_NCCL_COLLECTIVE = 1 << 1, DDP_NCCL_P2P = 1 << 2, DDP_NCCL_KERNEL = 1 << 6 };

/* Values of ncclDebugLogLevel and ncclDebugLogSubSys. */
enum { DDP_NCCL_LOG_INFO = 3, DDP_NCCL_LOG_INIT = 1 };
typedef void (*ddp_nccl_log)(int level, unsigned long flags, const char *file, int line,
                             const char *format, ...);

union ddp_nccl_details {
	struct {
		uint64_t sequence;
		const char *function;
		const void *send;
		void *recv;
		size_t count;
		int root;
		const char *type;
		uint8_t channels, warps;
	} collective;
	struct {
		const char *function;
		void *buffer;
		const char *type;
		size_t count;
		int peer;
		uint8_t channels;
	} p2p;
};

struct ddp_nccl_event_v4 {
	uint8_t type;
	void *parent; /* of a kernel's event: the handle of the operation's */
	int rank;
	union ddp_nccl_details details;
};

struct ddp_nccl_event_v5 {
	uint64_t type;
	void *parent;
	int rank;
	union ddp_nccl_details details;
};

struct ddp_nccl_profiler_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks,
	            int rank, ddp_nccl_log log);
	int (*start)(void *context, void **handle, const struct ddp_nccl_event_v4 *event);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, const void *arguments);
	int (*finalize)(void *context);
};

struct ddp_nccl_profiler_v5 {
	const char *name;
	int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,
	            int rank, ddp_nccl_log log);
	int (*start)(void *context, void **handle, const struct ddp_nccl_event_v5 *event);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, const void *arguments);
	int (*finalize)(void *context);
};
