/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/services.h"

#include <stdatomic.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "comm/agree.h"
#include "comm/core/comm.h"
#include "comm/host.h"
#include "comm/request.h"

enum { MESSAGE_MAX = 1024 };

/* Of each device that is opened the same; threads may open devices at the same time. */
static _Atomic(ddp_device_fail) fail;
static _Atomic(ddp_device_last_error) last_error;
static _Atomic(const ddp_comm_services *) of_comm;

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

/* ---- communicators ---- */

void ddp_test_take_comm_services(const ddp_comm_services *services)
{
	atomic_store(&of_comm, services);
}

ddp_status ddp_comm_run(ddp_comm *comm, const ddp_operation *operation)
{
	return atomic_load(&of_comm)->run(comm, operation);
}

ddp_status ddp_comm_issue(ddp_comm *comm, const ddp_operation *operation, ddp_request **request)
{
	return atomic_load(&of_comm)->issue(comm, operation, request);
}

ddp_status ddp_comm_check(ddp_comm *comm)
{
	return atomic_load(&of_comm)->check(comm);
}

ddp_status ddp_comm_break(ddp_comm *comm, ddp_status status, int culprit, const char *format, ...)
{
	char message[MESSAGE_MAX];
	va_list arguments;

	va_start(arguments, format);
	ddp_format_list(message, sizeof(message), format, arguments);
	va_end(arguments);
	return atomic_load(&of_comm)->breaks(comm, status, culprit, "%s", message);
}

ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what)
{
	return atomic_load(&of_comm)->agree(comm, mine, what);
}

ddp_status ddp_twin_open(ddp_comm *comm, ddp_comm **twin)
{
	return atomic_load(&of_comm)->open_twin(comm, twin);
}

ddp_status ddp_host_end(ddp_comm *comm)
{
	return atomic_load(&of_comm)->end(comm);
}

void ddp_host_close(ddp_comm *comm)
{
	atomic_load(&of_comm)->close(comm);
}
