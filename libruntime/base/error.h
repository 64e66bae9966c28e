/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's last error: one sentence, kept for ddp_last_error(). */
#pragma once

#include "ddp.h"

/* Records the message and returns `status`, so that callers can
   `return ddp_fail(...)`. Does not touch errno. */
ddp_status ddp_fail(ddp_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* DDP_ERR_INVALID: an argument that must not be NULL is. */
ddp_status ddp_fail_null(const char *function, const char *argument);

/* The same, with ": strerror(error_number)" behind the message. */
ddp_status ddp_fail_errno(ddp_status status, int error_number, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Says whether another rank tells the user of the present error. The next ddp_fail() forgets that;
   ddp_fail_context() keeps it. Returns `status`. */
ddp_status ddp_error_told(ddp_status status, bool told);

/* Says which rank the present error is about. The next ddp_fail() forgets that; ddp_fail_context()
   keeps it. Returns `status`. */
ddp_status ddp_error_about(ddp_status status, int rank);
/* That rank; -1: none in particular. */
int ddp_error_rank(void);

/* Puts a prefix before the present message: "while saving x: ...". */
ddp_status ddp_fail_context(ddp_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* The calling thread's last error, to be returned after calls that may fail, too. */
typedef struct ddp_kept_error {
	ddp_status status;
	bool told;
	int rank; /* that it is about; -1: none in particular */
	char text[1024];
} ddp_kept_error;

/* Keeps `status`, and the present error unless it is DDP_OK. */
void ddp_error_keep(ddp_kept_error *kept, ddp_status status);
/* Makes it the present error again, and returns its status. */
ddp_status ddp_error_return(const ddp_kept_error *kept);

/* Nothing has failed: before a function of the program is called, which may give a reason by
   ddp_set_error(). */
void ddp_forget_error(void);
