/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/base/text.h"

static void add_string(struct sink *sink, const char *value)
{
	sink_add(sink, "\"");
	for (; *value != '\0'; value++) {
		unsigned char c = (unsigned char)*value;
		if (c == '"' || c == '\\')
			sink_add(sink, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			sink_add(sink, "\\u%04x", c);
		else
			sink_add(sink, "%c", c);
	}
	sink_add(sink, "\"");
}

static int digits_of(uint32_t number)
{
	return snprintf(NULL, 0, "%u", number);
}

static const char *value_of(const struct variables *variables, const char *name)
{
	for (int i = 0; i < variables->count; i++)
		if (strcmp(variables->item[i].name, name) == 0)
			return variables->item[i].value;
	return NULL;
}

bool check_row(const struct identity *identity, const struct task_extras *extras,
               const struct variables *variables, char *text, size_t bytes)
{
	struct sink sink = sink_on(text, bytes);
	const char *threads = value_of(variables, "OMP_NUM_THREADS");
	bool brackets = strchr(extras->master_address, ':') != NULL;

	if (identity->spare) {
		sink_add(&sink, "spare  local %u/%u  node %u %s  waits for the place of a lost node\n",
		         identity->local_rank, identity->local_world_size, identity->node_rank, identity->node_name);
		return !sink.full;
	}
	if (threads == NULL)
		threads = environment_get(extras->environment, "OMP_NUM_THREADS");
	sink_add(&sink, "rank %*u/%u  local %u/%u  node %*u/%u %s  master %s%s%s:%u  omp %.40s  gpus %u",
	    digits_of(identity->world_size - 1), identity->rank, identity->world_size,
	    identity->local_rank, identity->local_world_size, digits_of(identity->node_count - 1),
	    identity->node_rank, identity->node_count, identity->node_name, brackets ? "[" : "",
	    extras->master_address, brackets ? "]" : "",
	    identity->master_port, threads != NULL ? threads : "unset", extras->gpu.visible);
	make_printable(text);
	sink_add(&sink, "\n");
	return !sink.full;
}

bool check_json(const struct identity *identity, const struct variable *variable, char *text,
                size_t bytes)
{
	struct sink sink = sink_on(text, bytes);

	if (variable->value == NULL)
		return false;
	if (identity->spare)
		sink_add(&sink, "{\"rank\":null,\"world_size\":%u,\"node\":", identity->world_size);
	else
		sink_add(&sink, "{\"rank\":%u,\"world_size\":%u,\"node\":", identity->rank, identity->world_size);
	add_string(&sink, identity->node_name);
	sink_add(&sink, ",\"name\":");
	add_string(&sink, variable->name);
	sink_add(&sink, ",\"value\":");
	add_string(&sink, strcmp(variable->name, "DDP_KEY") == 0 ? "(secret)" : variable->value);
	sink_add(&sink, ",\"source\":");
	add_string(&sink, variable->source);
	sink_add(&sink, "}\n");
	return !sink.full;
}

struct line {
	char *text;    /* without its newline */
	int64_t node, rank; /* -1: no row */
	size_t place;  /* as it came */
};

static int kept = -1, terminal = -1; /* the file in memory, and what was fd 1 */
static pid_t process;                /* whose they are: not a forked child's */

bool table_begin(struct error *error)
{
	if (kept >= 0)
		return true;
	fflush(stdout);
	kept = memfd_create("ddp_table", MFD_CLOEXEC);
	terminal = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
	process = getpid();
	/* srun may leave without telling its plugins. */
	if (kept >= 0 && terminal >= 0 && atexit(table_end) == 0 &&
	    dup2(kept, STDOUT_FILENO) == STDOUT_FILENO)
		return true;
	error_set(error, "the table will not be in order: %s", strerror(errno));
	if (kept >= 0)
		close(kept);
	if (terminal >= 0)
		close(terminal);
	kept = terminal = -1;
	return false;
}

/* The number behind a word of the row; -1: there is none. */
static int64_t number_behind(const char *line, const char *word)
{
	const char *found = strstr(line, word);
	char *end;

	if (found == NULL)
		return -1;
	long number = strtol(found + strlen(word), &end, 10);
	return *end == '/' && number >= 0 ? number : -1;
}

/* The row of a spare comes behind those of ranks. */
static bool is_spare(const char *line)
{
	return strncmp(line, "spare  local ", 13) == 0;
}

static int by_node_and_rank(const void *left, const void *right)
{
	const struct line *a = left, *b = right;

	if (a->node != b->node)
		return a->node < b->node ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->place < b->place ? -1 : 1;
}

static size_t split(char *text, struct line *lines)
{
	size_t count = 0;

	for (char *next; *text != '\0'; text = next) {
		size_t length = strcspn(text, "\n");
		next = text + length + (text[length] == '\n');
		text[length] = '\0';
		struct line line = { text, number_behind(text, "  node "), number_behind(text, "rank "), count };
		if (is_spare(text))
			line.node = line.rank = INT64_MAX;
		else if (line.node < 0 || line.rank < 0)
			line.node = line.rank = -1;
		lines[count++] = line;
	}
	return count;
}

bool table_sort(char *text)
{
	size_t bytes = strlen(text), lines_max = 1, count;

	for (const char *p = text; *p != '\0'; p++)
		lines_max += *p == '\n';
	struct line *lines = calloc(lines_max, sizeof(*lines));
	char *sorted = malloc(bytes + 2);
	if (lines == NULL || sorted == NULL) {
		free(lines);
		free(sorted);
		return false;
	}
	struct sink sink = sink_on(sorted, bytes + 2);
	count = split(text, lines);
	qsort(lines, count, sizeof(*lines), by_node_and_rank);
	for (size_t i = 0; i < count; i++)
		sink_add(&sink, "%s\n", lines[i].text);
	/* A last line without a newline keeps its room. */
	memcpy(text, sorted, sink.used < bytes ? sink.used : bytes);
	free(lines);
	free(sorted);
	return true;
}

void table_end(void)
{
	struct stat info;
	char *text = NULL;

	if (kept < 0 || process != getpid())
		return;
	fflush(stdout);
	if (fstat(kept, &info) == 0 && info.st_size > 0)
		text = calloc(1, (size_t)info.st_size + 1);
	if (text != NULL && pread(kept, text, (size_t)info.st_size, 0) == info.st_size) {
		table_sort(text);
		text_write(terminal, text, strlen(text));
	}
	free(text);
	dup2(terminal, STDOUT_FILENO);
	close(kept);
	close(terminal);
	kept = terminal = -1;
}
