/* SPDX-License-Identifier: Apache-2.0 */
/* option_table: a program's command line, by a table of what it takes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum option_kind {
	OPTION_HEADING,   /* of the rows below: its help alone */
	OPTION_FLAG,      /* bool */
	OPTION_TEXT,      /* const char *, into argv */
	OPTION_INT,       /* int, from least to most */
	OPTION_INTEGER,   /* int64_t, likewise */
	OPTION_REAL,      /* double, from 0 on */
	OPTION_NAME,      /* int or enum: which of `names` */
	OPTION_OPTIMIZER, /* ddp_optimizer; this and the next: the library's names, in small letters */
	OPTION_SCHEDULE,  /* ddp_schedule_kind */
} option_kind;

typedef struct option_row {
	option_kind kind;
	const char *name, *argument; /* the latter of what takes one */
	size_t at;                   /* of the value in the program's options */
	const char *help;            /* the names and the default, if it is above 0, are added */
	int64_t least, most;
	const char *const *names;    /* NULL behind the last one */
} option_row;

#define OPTION_NAMES(...) (const char *const[]){__VA_ARGS__, NULL}

typedef struct option_form {
	const char *program, *usage, *about; /* usage: what follows the program's name */
	const option_row *rows;
	int count;
	const char *end;     /* of the help, or NULL */
	bool operand;        /* there may be one argument that is no option */
	int wrong;           /* exit code */
} option_form;

/* Fills `options`, which has the defaults, and returns the operand, or NULL. --help and --version end the program, and
   so does what is wrong. */
const char *options_read(const option_form *form, int argc, char **argv, void *options);

/* Says on stderr what is wrong, and ends the program. */
void options_wrong(const option_form *form, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
