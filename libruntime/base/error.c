/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/c_locale.h"

enum { MESSAGE_MAX = 1024 };

static _Thread_local char last_error[MESSAGE_MAX];
static _Thread_local bool last_is_told;
static _Thread_local int last_is_about = -1;

const char *ddp_last_error(void)
{
	return last_error;
}

bool ddp_last_error_is_told(void)
{
	return last_is_told;
}

ddp_status ddp_error_told(ddp_status status, bool told)
{
	last_is_told = told;
	return status;
}

ddp_status ddp_error_about(ddp_status status, int rank)
{
	last_is_about = rank;
	return status;
}

int ddp_error_rank(void)
{
	return last_is_about;
}

static void set_message(const char *format, va_list arguments, const char *suffix)
{
	/* Built aside, since an argument may point into last_error. */
	char message[MESSAGE_MAX];

	last_is_told = false;
	last_is_about = -1;
	ddp_format_list(message, sizeof(message), format, arguments);
	snprintf(last_error, sizeof(last_error), "%s", message);
	if (suffix != NULL) {
		size_t used = strlen(last_error);
		snprintf(last_error + used, sizeof(last_error) - used, ": %s", suffix);
	}
}

ddp_status ddp_fail(ddp_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	set_message(format, arguments, NULL);
	va_end(arguments);
	return status;
}

ddp_status ddp_fail_null(const char *function, const char *argument)
{
	return ddp_fail(DDP_ERR_INVALID, "%s(): %s is NULL", function, argument);
}

ddp_status ddp_fail_errno(ddp_status status, int error_number, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	set_message(format, arguments, ddp_reason(error_number));
	va_end(arguments);
	return status;
}

ddp_status ddp_fail_context(ddp_status status, const char *format, ...)
{
	const bool told = last_is_told;
	const int about = last_is_about;
	char before[MESSAGE_MAX];
	va_list arguments;

	memcpy(before, last_error, sizeof(before));
	va_start(arguments, format);
	set_message(format, arguments, before);
	va_end(arguments);
	return ddp_error_about(ddp_error_told(status, told), about);
}

void ddp_error_keep(ddp_kept_error *kept, ddp_status status)
{
	_Static_assert(sizeof(kept->text) == sizeof(last_error), "it is kept whole");
	kept->status = status;
	kept->told = last_is_told;
	kept->rank = last_is_about;
	memcpy(kept->text, last_error, sizeof(kept->text));
}

ddp_status ddp_error_return(const ddp_kept_error *kept)
{
	if (kept->status == DDP_OK)
		return DDP_OK;
	return ddp_error_about(ddp_error_told(ddp_fail(kept->status, "%s", kept->text), kept->told), kept->rank);
}

void ddp_set_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	set_message(format != NULL ? format : "", arguments, NULL);
	va_end(arguments);
}

void ddp_forget_error(void)
{
	last_error[0] = '\0';
}

const char *ddp_status_name(ddp_status status)
{
	switch (status) {
	case DDP_OK: return "DDP_OK";
	case DDP_ERR_INVALID: return "DDP_ERR_INVALID";
	case DDP_ERR_STATE: return "DDP_ERR_STATE";
	case DDP_ERR_NOMEM: return "DDP_ERR_NOMEM";
	case DDP_ERR_IO: return "DDP_ERR_IO";
	case DDP_ERR_FORMAT: return "DDP_ERR_FORMAT";
	case DDP_ERR_JOB: return "DDP_ERR_JOB";
	case DDP_ERR_AUTH: return "DDP_ERR_AUTH";
	case DDP_ERR_TIMEOUT: return "DDP_ERR_TIMEOUT";
	case DDP_ERR_PEER: return "DDP_ERR_PEER";
	case DDP_ERR_MISMATCH: return "DDP_ERR_MISMATCH";
	case DDP_ERR_ABORTED: return "DDP_ERR_ABORTED";
	case DDP_ERR_UNSUPPORTED: return "DDP_ERR_UNSUPPORTED";
	case DDP_ERR_NOT_FINITE: return "DDP_ERR_NOT_FINITE";
	case DDP_ERR_INTERNAL: return "DDP_ERR_INTERNAL";
	}
	return "DDP_ERR_UNKNOWN";
}
