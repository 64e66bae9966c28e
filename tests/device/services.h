/* SPDX-License-Identifier: Apache-2.0 */
/*
 * services: functions of libddp in the module. It is linked with none of libddp, since a program that
 * loads it has libddp as a library or in itself. Errors are libddp's, so ddp_fail() and its like
 * (base/error.h) go to those that a device is opened with, and functions of communicators to those that
 * libddp gives for them.
 */
#ifndef TESTS_DEVICE_SERVICES_H
#define TESTS_DEVICE_SERVICES_H

#include "comm/core/backend.h"
#include "device/backend.h"

/* Before anything that can fail. */
void ddp_test_take_services(const ddp_device_request *request);

/* Those of communicators, before a lane is opened. */
void ddp_test_take_comm_services(const ddp_comm_services *services);

#endif
