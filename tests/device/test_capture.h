/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_capture: while a thread captures a graph (kernels.h), the test device refuses all that allocates,
 * frees, waits, or gives a queue work: of CUDA's calls, the former end a capture, and the latter work at
 * once instead of becoming a part of the graph.
 */
#ifndef TESTS_DEVICE_TEST_CAPTURE_H
#define TESTS_DEVICE_TEST_CAPTURE_H

#include "ddp.h"

/* The calling thread captures a graph from the one to the other, which returns what was refused
   first, or NULL. */
void ddp_test_capture_begin(void);
const char *ddp_test_capture_end(void);

/* `what` the call does, which stays; NULL: it does no harm. */
ddp_status ddp_test_refuse_in_capture(const char *what);

#endif
