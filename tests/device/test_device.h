/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asynchronous test device: shows on a machine without a GPU what would go wrong on
 * one. Each queue is a thread. Each piece of work starts after a random delay, and a copy
 * has another in its middle; so who reads too early reads something else. An address of its
 * memory cannot be read or written, by nobody: a function that a queue runs finds its
 * bytes by ddp_device_view(), whoever else touches them dies of SIGSEGV. Memory begins as
 * 0xff and is not given again soon.
 *
 * Moreover, with `check_order`, it refuses two pieces of work that use the same bytes, one
 * of them for writing, from two queues, if neither event nor the host's waiting puts one
 * before the other, whether or not it went well this time: DDP_ERR_STATE, with a sentence
 * that names both, and the device is broken. Copies and fills are checked when they are
 * enqueued, functions at ddp_device_view().
 *
 * A function that asks for a view stands for a kernel: the host knows that it ended by an
 * event or a sync. One that does not may tell the host that the work before it is done.
 *
 * What breaks it: work that is not ordered, and a view of what is not the device's memory.
 * It refuses to free memory that work under way uses, a call from a function that a queue
 * runs, handles of other devices, and what would end a capture (test_capture.h).
 *
 * The device, its kernels, and what stands for NCCL (nccl_standin.h) are a module that only tests load: libddp finds it by
 * DDP_TEST_MODULE of the environment.
 */
#ifndef TESTS_DEVICE_TEST_DEVICE_H
#define TESTS_DEVICE_TEST_DEVICE_H

#include "device/backend.h"

DDP_API extern const ddp_device_backend ddp_device_module;

/* The device in a function of whose ddp_device_within() the calling thread is; NULL: in none. */
void *ddp_test_device_here(void);

#endif
