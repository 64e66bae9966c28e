/* SPDX-License-Identifier: Apache-2.0 */
/* Messages for the callback that the program set with ddp_set_log(). */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "ddp.h"

void ddp_log(ddp_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* A limit for one kind of message that an attacker can cause, by connecting, say. The first
   DDP_LOG_UNLIMITED are logged, then at most one a second, which says how many were left out before
   it. It begins as zeros, and any thread may use it. */
enum { DDP_LOG_UNLIMITED = 10 };

typedef struct ddp_log_limit {
	atomic_uint logged, left_out;
	_Atomic uint64_t next_ns;
} ddp_log_limit;

void ddp_log_limited(ddp_log_limit *limit, ddp_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Logs how many messages were left out since the last one: "WHAT: 5 more messages like the last one". */
void ddp_log_limit_end(ddp_log_limit *limit, ddp_log_level level, const char *what);
