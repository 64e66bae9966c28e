/* SPDX-License-Identifier: Apache-2.0 */
/*
 * services: functions of libddp in the module. It is linked with none of libddp, since a program that
 * loads it has libddp as a library or in itself. Errors are libddp's, so ddp_fail() and its like
 * (base/error.h) go to those that a device is opened with.
 */
#ifndef TESTS_DEVICE_SERVICES_H
#define TESTS_DEVICE_SERVICES_H

#include "device/backend.h"

/* Before anything that can fail. */
void ddp_test_take_services(const ddp_device_request *request);

#endif
