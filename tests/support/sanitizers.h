/* SPDX-License-Identifier: Apache-2.0 */
/* Which sanitizer a test is built with. */
#pragma once

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
