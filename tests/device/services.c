/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/services.h"

#include <stdatomic.h>

#include "base/c_locale.h"
#include "base/error.h"

enum { MESSAGE_MAX = 1024 };

/* Of each device that is opened the same; threads may open devices at the same time. */
static _Atomic(ddp_device_fail) fail;
static _Atomic(ddp_device_last_error) last_error;

void ddp_test_take_services(const ddp_device_request *request)
{
	atomic_store(&fail, request->fail);
	atomic_store(&last_error, request->last_error);
}

ddp_status ddp_fail(ddp_status status, const char *format, ...)
{
	char message[MESSAGE_MAX];
	va_list arguments;

	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);
	return atomic_load(&fail)(status, "%s", message);
}

ddp_status ddp_fail_errno(ddp_status status, int error_number, const char *format, ...)
{
	char message[MESSAGE_MAX];
	va_list arguments;

	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);
	return atomic_load(&fail)(status, "%s: %s", message, ddp_reason(error_number));
}

const char *ddp_last_error(void)
{
	return atomic_load(&last_error)();
}
