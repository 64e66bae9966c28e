/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net/calls: functions of libddp's in the place of others that a shared library
   calls. The library's table of addresses of functions is changed, so that no other library
   is affected, and it does not matter which library was loaded first, or how. */
#pragma once

/* A function that the library calls by this name. `theirs` gets what is called in its place so far; NULL: it is not
   needed. */
typedef struct ddp_call {
	const char *name;
	void *ours;
	void **theirs;
} ddp_call;

/* Replaces the calls that the library in which `symbol` lies makes. `libraries` is a handle of dlopen() by which the
   replaced functions are found. NULL: all are replaced; otherwise the reason why none was. The library that calls
   this, and those of `libraries`, must stay loaded until the process ends. */
const char *ddp_calls_replace(void *libraries, const char *symbol, const ddp_call *calls, int count);

/* Replaces, for the whole process, the functions by which UCX's transports write into TCP sockets: UCX's own end the
   process where a peer has died. `ucp` is a handle of UCX's libraries. NULL: it is done; otherwise the reason why
   UCX's own functions stay. */
const char *ddp_sendv_replace(void *ucp);
