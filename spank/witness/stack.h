/* SPDX-License-Identifier: Apache-2.0 */
/* The stacks of a process's Python threads, which slurm_ddp's faulthandler writes to a memory file when it
   gets a signal (libruntime/python/slurm_ddp/slurm_ddp/stack.py). The file's name tells the signal. A process without
   such a file, or without a handler, gets none. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { STACK_TEXT_MAX = 12288, STACK_WAIT_MS = 1500 };

struct stack {
	int file;     /* -1: the process has none */
	off_t before; /* what the file held before */
};

/* Asks a process for its stacks. False: it has no such file; stack_take() must not be called. */
bool stack_ask(pid_t pid, struct stack *stack);
/* Waits until the process has written, at most until `deadline_ns` (ddp_now_ns()), and closes the file. Returns
   text of lines, to be freed; NULL: nothing came. */
char *stack_take(struct stack *stack, unsigned long long deadline_ns);

/* The signal in the target of a link such as "/memfd:ddp_stack-59 (deleted)"; 0: it is another file. */
int stack_signal(const char *link);
