/* SPDX-License-Identifier: Apache-2.0 */
/* Which sanitizer a test is built with, and which cases it takes. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

/* gcc defines a macro for the thread sanitizer, and clang has a feature. */
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#define THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define THREAD_SANITIZER 0
#endif
#ifdef __SANITIZE_ADDRESS__ /* configure defines it for clang */
#define ADDRESS_SANITIZER 1
#else
#define ADDRESS_SANITIZER 0
#endif
#define SANITIZER (THREAD_SANITIZER || ADDRESS_SANITIZER)

/* Does case `number` of many alike run? A sanitizer would find the same in all of them, so the address sanitizer takes
   every other one, and the thread sanitizer those between. Without a sanitizer, and with tests/run --all, each case runs.
   Cases must not alternate in anything else by `number` % 2; otherwise pass `number` / 2. */
static inline bool test_takes(size_t number)
{
	return !SANITIZER || getenv("DDP_TEST_ALL") != NULL || number % 2 == THREAD_SANITIZER;
}
