/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/base.h: status codes, errors, the log and the version of libddp. <ddp.h> states the conventions of all
 * headers.
 */
#ifndef DDP_BASE_H
#define DDP_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_API __attribute__((visibility("default")))

/* In an option: the library chooses, as the comment on the option says. */
#define DDP_AUTO (-1)

/* ---- status, errors, log ------------------------------------------------ */

typedef enum ddp_status {
	DDP_OK = 0,
	DDP_ERR_INVALID,     /* an argument or option is wrong */
	DDP_ERR_STATE,       /* a call out of order */
	DDP_ERR_NOMEM,       /* memory, shared memory or descriptors ran out */
	DDP_ERR_IO,          /* a system call or a file operation failed */
	DDP_ERR_FORMAT,      /* a file has another format, is damaged or is cut short */
	DDP_ERR_JOB,         /* the rank's identity cannot be derived, or ranks disagree on it */
	DDP_ERR_AUTH,        /* a peer does not hold the step's key */
	DDP_ERR_TIMEOUT,     /* a deadline passed */
	DDP_ERR_PEER,        /* a peer died or cannot be reached */
	DDP_ERR_MISMATCH,    /* ranks issued different collectives */
	DDP_ERR_ABORTED,     /* ddp_comm_abort() or ddp_context_fail() was called, here or on a peer */
	DDP_ERR_UNSUPPORTED, /* this build, or these arguments, do not allow it */
	DDP_ERR_NOT_FINITE,  /* a loss, gradient or tensor holds an infinity or a NaN */
	DDP_ERR_INTERNAL     /* a bug in the library */
} ddp_status;

/* The name of a status, such as "DDP_ERR_TIMEOUT". Never NULL. */
DDP_API const char *ddp_status_name(ddp_status status);

/*
 * The calling thread's last error: a full sentence with the thing, the reason and what to do.
 * It is valid until the thread's next call that fails, and "" if no call has failed.
 */
DDP_API const char *ddp_last_error(void);

/*
 * Returns whether another rank tells the user about the calling thread's last error, so that this rank
 * can be silent. If all ranks have the same error, the function is false on one rank: rank 0, or rank 1
 * if rank 0 failed. After DDP_ERR_PEER and DDP_ERR_TIMEOUT it is false on one rank of each node, since
 * other nodes may be lost. It is true on a rank that only heard of another rank's failure. A rank on
 * which it is true should not be the first to exit, because launchers then end the other ranks.
 */
DDP_API bool ddp_last_error_is_told(void);

/*
 * Gives the reason why a callback of the program fails (a read() of a dataset, a ddp_batch_fn, an
 * on_step, a hook): at most 1023 bytes, formatted as by printf(). The callback then returns the
 * status that all ranks are to get, such as DDP_ERR_IO. The library adds what failed, where, and on
 * which rank. If a callback fails because a call of libddp has failed, that call has set the reason. A
 * callback that succeeds returns DDP_OK.
 */
DDP_API void ddp_set_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef enum ddp_log_level {
	DDP_LOG_ERROR = 1,
	DDP_LOG_WARN,
	DDP_LOG_INFO,
	DDP_LOG_DEBUG
} ddp_log_level;

/* Gets one line without a newline. Any thread may call it. */
typedef void (*ddp_log_fn)(void *user, ddp_log_level level, const char *message);

/* Sets the callback for messages of `level` and more urgent ones. NULL: no callback. */
DDP_API void ddp_set_log(ddp_log_fn fn, void *user, ddp_log_level level);

/* A ready-made callback, which writes "ddp: message" to stderr. It ignores `user`. */
DDP_API void ddp_log_stderr(void *user, ddp_log_level level, const char *message);

/* The library's version, such as "0.3.0". */
DDP_API const char *ddp_version(void);

#ifdef __cplusplus
}
#endif
#endif
