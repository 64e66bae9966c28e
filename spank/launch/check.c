/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/sink.h"

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

void check_write(int fd, const char *text)
{
	size_t left = strlen(text);

	while (left > 0) {
		ssize_t written = write(fd, text, left);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return;
		text += written;
		left -= (size_t)written;
	}
}
