/* SPDX-License-Identifier: Apache-2.0 */
#include "option_table.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <ddp.h>

enum { ROWS_MAX = 80, NAMES_BYTES = 128, LEFT_COLUMNS = 26, COLUMNS = 110 };
enum { OPTION_HELP = 1, OPTION_VERSION, OPTION_ROW = 256 /* above what getopt returns itself */ };

void options_wrong(const option_form *form, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: ", form->program);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	exit(form->wrong);
}

/* NULL: there is no such number. */
static const char *name_of(const option_row *row, int i)
{
	switch (row->kind) {
	case OPTION_OPTIMIZER: return ddp_optimizer_name((ddp_optimizer)i);
	case OPTION_SCHEDULE: return ddp_schedule_kind_name((ddp_schedule_kind)i);
	default: return row->names[i];
	}
}

static void in_small_letters(char *text)
{
	for (; *text != '\0'; text++)
		*text = (char)tolower((unsigned char)*text);
}

/* "adamw, sgd, ... or muon": the library's names in small letters. */
static const char *list_names(const option_row *row, char text[NAMES_BYTES])
{
	size_t used = 0;

	for (int i = 0; name_of(row, i) != NULL && used < NAMES_BYTES; i++)
		used += (size_t)snprintf(text + used, NAMES_BYTES - used, "%s%s",
		                         i == 0 ? "" : name_of(row, i + 1) != NULL ? ", " : " or ", name_of(row, i));
	if (row->kind > OPTION_NAME)
		in_small_letters(text);
	return text;
}

/* ---- help ------------------------------------------------------------------------------ */

static void print_wrapped(const char *text)
{
	int column = LEFT_COLUMNS;

	for (int length; *text != '\0'; text += length + (text[length] == ' ')) {
		length = (int)strcspn(text, " ");
		if (column + 1 + length > COLUMNS)
			column = printf("\n%*s", LEFT_COLUMNS, "") - 1;
		column += printf(" %.*s", length, text);
	}
	printf("\n");
}

/* " (8)", if it is above 0 */
static void print_default(const option_row *row, const void *at, char *text, size_t bytes)
{
	text[0] = '\0';
	if (row->kind == OPTION_INT && *(const int *)at > 0)
		snprintf(text, bytes, " (%d)", *(const int *)at);
	if (row->kind == OPTION_INTEGER && *(const int64_t *)at > 0)
		snprintf(text, bytes, " (%lld)", (long long)*(const int64_t *)at);
	if (row->kind == OPTION_REAL && *(const double *)at > 0)
		snprintf(text, bytes, " (%g)", *(const double *)at);
	if (row->kind >= OPTION_NAME && *(const int *)at >= 0)
		snprintf(text, bytes, " (%s)", name_of(row, *(const int *)at));
	if (row->kind > OPTION_NAME)
		in_small_letters(text);
}

static void print_row(const option_row *row, const void *defaults)
{
	const bool named = row->kind >= OPTION_NAME, flag = row->kind == OPTION_FLAG;
	char left[48], names[NAMES_BYTES], value[48], right[768];

	print_default(row, (const char *)defaults + row->at, value, sizeof(value));
	snprintf(left, sizeof(left), "--%s%s%s", row->name, flag ? "" : " ", flag ? "" : row->argument);
	snprintf(right, sizeof(right), "%s%s%s", named ? list_names(row, names) : row->help, value, named ? row->help : "");
	printf("  %-*s", LEFT_COLUMNS - 2, left);
	print_wrapped(right);
}

static void print_help(const option_form *form, const void *defaults)
{
	static const option_row own[] = {{OPTION_FLAG, "version", .help = "tell the version and exit"},
		{OPTION_FLAG, "help", .help = "this text"}};

	printf("usage: %s %s\n%s\n\n", form->program, form->usage, form->about);
	for (int i = 0; i < form->count; i++) {
		if (form->rows[i].kind == OPTION_HEADING)
			printf("\n%s\n", form->rows[i].help);
		else
			print_row(&form->rows[i], defaults);
	}
	for (int i = 0; i < 2; i++)
		print_row(&own[i], defaults);
	if (form->end != NULL)
		printf("\n%s", form->end);
	exit(EXIT_SUCCESS);
}

/* ---- values ---------------------------------------------------------------------------- */

static int64_t read_integer(const option_form *form, const option_row *row, const char *text)
{
	char *end;

	errno = 0;
	const long long number = strtoll(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || number < row->least || number > row->most)
		options_wrong(form, "--%s %s: not a whole number from %lld to %lld", row->name, text, (long long)row->least,
		              (long long)row->most);
	return number;
}

static double read_real(const option_form *form, const option_row *row, const char *text)
{
	char *end;
	const double number = strtod(text, &end);

	if (end == text || *end != '\0' || !isfinite(number) || number < 0)
		options_wrong(form, "--%s %s: not a number from 0 on", row->name, text);
	return number;
}

static int read_name(const option_form *form, const option_row *row, const char *text)
{
	char names[NAMES_BYTES];

	for (int i = 0; name_of(row, i) != NULL; i++) {
		if (strcasecmp(name_of(row, i), text) == 0)
			return i;
	}
	options_wrong(form, "--%s %s: choose %s", row->name, text, list_names(row, names));
}

static void take(const option_form *form, const option_row *row, const char *text, void *options)
{
	void *at = (char *)options + row->at;

	switch (row->kind) {
	case OPTION_HEADING: break;
	case OPTION_FLAG: *(bool *)at = true; break;
	case OPTION_TEXT: *(const char **)at = text; break;
	case OPTION_INT: *(int *)at = (int)read_integer(form, row, text); break;
	case OPTION_INTEGER: *(int64_t *)at = read_integer(form, row, text); break;
	case OPTION_REAL: *(double *)at = read_real(form, row, text); break;
	case OPTION_NAME:
	case OPTION_OPTIMIZER:
	case OPTION_SCHEDULE: *(int *)at = read_name(form, row, text); break;
	}
}

const char *options_read(const option_form *form, int argc, char **argv, void *options)
{
	struct option known[ROWS_MAX] = {{"version", false, NULL, OPTION_VERSION}, {"help", false, NULL, OPTION_HELP}};
	int count = 2, id;

	for (int i = 0; i < form->count && count < ROWS_MAX - 1; i++) {
		const option_row *row = &form->rows[i];
		if (row->kind != OPTION_HEADING)
			known[count++] = (struct option){row->name, row->kind != OPTION_FLAG, NULL, OPTION_ROW + i};
	}
	/* The help shows defaults, so it comes before any option has changed one. */
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--help") == 0)
			print_help(form, options);
	}
	while ((id = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (id == OPTION_HELP)
			print_help(form, options);
		if (id == OPTION_VERSION) {
			printf("%s (slurm-ddp) %s\n", form->program, ddp_version());
			exit(EXIT_SUCCESS);
		}
		if (id == '?') /* getopt has said what is wrong */
			options_wrong(form, "see %s --help", form->program);
		take(form, &form->rows[id - OPTION_ROW], optarg, options);
	}
	const bool named = form->operand && optind < argc;
	if (optind + named < argc)
		options_wrong(form, "%s: not an option; see %s --help", argv[optind + named], form->program);
	return named ? argv[optind] : NULL;
}
