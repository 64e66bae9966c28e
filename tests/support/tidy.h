/* SPDX-License-Identifier: Apache-2.0 */
/* clang-tidy's analyzer looks at one file at a time. This tells it what functions of other files return: one that
   records an error returns the status that it was given, or false, and ranks agree on DDP_OK only if this one gave
   it. Each file is compiled with it, except those that define these functions. */
#pragma once

#include "libruntime/base/error.h"
#include "libruntime/comm/agree.h"
#include "spank/base/text.h"

#define ddp_fail(status, ...) (ddp_fail(status, __VA_ARGS__), (status))
#define ddp_fail_null(function, argument) (ddp_fail_null(function, argument), DDP_ERR_INVALID)
#define ddp_fail_errno(status, ...) (ddp_fail_errno(status, __VA_ARGS__), (status))
#define ddp_fail_context(status, ...) (ddp_fail_context(status, __VA_ARGS__), (status))
#define ddp_comm_agree(comm, mine, what) ((mine) == DDP_OK ? ddp_comm_agree(comm, mine, what) : (mine))
#define error_set(...) (error_set(__VA_ARGS__), false)
