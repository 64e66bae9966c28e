/* SPDX-License-Identifier: Apache-2.0 */
/* A full fence: no load behind it comes before a store ahead of it. */
#pragma once

#include <stdatomic.h>

static inline void ddp_full_fence(void)
{
#ifdef __SANITIZE_THREAD__ /* gcc's knows no fences */
	static _Atomic int word;
	atomic_fetch_add(&word, 1);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}
