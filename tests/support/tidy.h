/* SPDX-License-Identifier: Apache-2.0 */
/* What clang-tidy's analyzer cannot see, since it looks at one file at a time: a function that records an error
   returns the status that it was given, which is not DDP_OK, or false. Included before each file but error.c's. */
#ifndef TESTS_SUPPORT_TIDY_H
#define TESTS_SUPPORT_TIDY_H

#include "libruntime/base/error.h"
#include "spank/base/error.h"

#define ddp_fail(status, ...) (ddp_fail(status, __VA_ARGS__), (status))
#define ddp_fail_null(function, argument) (ddp_fail_null(function, argument), DDP_ERR_INVALID)
#define ddp_fail_errno(status, ...) (ddp_fail_errno(status, __VA_ARGS__), (status))
#define ddp_fail_context(status, ...) (ddp_fail_context(status, __VA_ARGS__), (status))
#define error_set(...) (error_set(__VA_ARGS__), false)

#endif
