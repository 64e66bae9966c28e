/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/wire/deal.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "spank/base/bytes.h"
#include "spank/base/text.h"

enum {
	GO_NUMBERS = 9, /* the last is the length of the list of nodes, with its end */
	GO_BYTES = 4 * GO_NUMBERS + DEAL_KEY_DIGITS,
	END_BYTES = 4,
	JOIN_NUMBERS = 4,
	JOIN_BYTES = 4 * JOIN_NUMBERS + DEAL_RELEASE_MAX,
	CLEAR_BYTES = 4 + 1 + 8 + 8,
	DONE_BYTES = 4 * 4 + 1,
	LOST_BYTES = 2 * 4,
};

static unsigned char *put_numbers(unsigned char *at, const uint32_t *numbers, size_t count)
{
	for (size_t i = 0; i < count; i++, at += 4)
		bytes_put32(at, numbers[i]);
	return at;
}

static void get_numbers(const unsigned char *at, uint32_t *numbers, size_t count)
{
	for (size_t i = 0; i < count; i++, at += 4)
		numbers[i] = bytes_get32(at);
}

/* A node of an older release reads only the beginning of END, CLEAR and GO, and sends no more. */
size_t deal_pack_end(uint32_t generation, bool keep, unsigned char *bytes)
{
	bytes_put32(bytes, generation);
	bytes[END_BYTES] = keep;
	return END_BYTES + 1;
}

bool deal_unpack_end(const void *bytes, size_t count, uint32_t *generation, bool *keep)
{
	if (count < END_BYTES)
		return false;
	*generation = bytes_get32(bytes);
	*keep = count > END_BYTES && ((const unsigned char *)bytes)[END_BYTES] != 0;
	return *generation <= DEAL_GENERATIONS;
}

size_t deal_pack_quit(int wait_status, unsigned char *bytes)
{
	bytes_put32(bytes, (uint32_t)wait_status);
	return 4;
}

bool deal_unpack_quit(const void *bytes, size_t count, int *wait_status)
{
	if (count < 4)
		return false;
	*wait_status = (int)bytes_get32(bytes);
	return true;
}

size_t deal_go_bytes(uint32_t local_count, const char *nodes)
{
	return GO_BYTES + 4 * (size_t)local_count + strlen(nodes) + 1 + 1;
}

size_t deal_pack_go(const struct deal_go *go, const uint32_t *ranks, unsigned char *bytes)
{
	size_t list = strlen(go->nodes) + 1;
	const uint32_t numbers[GO_NUMBERS] = { go->generation, go->restart_count, go->world_size, go->node_count,
		                               go->node_rank, go->master, go->local_count, go->port_seed,
		                               (uint32_t)list };
	unsigned char *at = put_numbers(bytes, numbers, GO_NUMBERS);

	memcpy(at, go->key, DEAL_KEY_DIGITS);
	at = put_numbers(at + DEAL_KEY_DIGITS, ranks, go->local_count);
	memcpy(at, go->nodes, list);
	at[list] = go->joins;
	return (size_t)(at + list + 1 - bytes);
}

/* The variables of a task are made of this: one word. */
static bool is_list(const char *nodes, size_t bytes)
{
	for (size_t i = 0; i + 1 < bytes; i++)
		if (!isgraph((unsigned char)nodes[i]))
			return false;
	return bytes > 1 && nodes[bytes - 1] == '\0';
}

static bool is_sound(const struct deal_go *go)
{
	bool spare = go->node_rank == DEAL_SPARE;

	if (go->generation == 0 || go->generation > DEAL_GENERATIONS || go->restart_count >= go->generation ||
	    go->node_count == 0 || go->world_size < go->node_count || go->master >= go->node_count ||
	    (spare ? go->local_count != 0 : go->local_count == 0 || go->node_rank >= go->node_count) ||
	    go->local_count > go->world_size)
		return false;
	for (uint32_t i = 0; i < go->local_count; i++)
		if (deal_rank(go, i) >= go->world_size)
			return false;
	return deal_is_key(go->key);
}

bool deal_unpack_go(const void *bytes, size_t count, struct deal_go *go)
{
	const unsigned char *at = bytes;
	uint32_t numbers[GO_NUMBERS];

	if (count < GO_BYTES)
		return false;
	get_numbers(at, numbers, GO_NUMBERS);
	*go = (struct deal_go){ .generation = numbers[0], .restart_count = numbers[1], .world_size = numbers[2],
		                .node_count = numbers[3], .node_rank = numbers[4], .master = numbers[5],
		                .local_count = numbers[6], .port_seed = numbers[7] };
	memcpy(go->key, at + 4 * GO_NUMBERS, DEAL_KEY_DIGITS);
	count -= GO_BYTES;
	if (go->local_count > DEAL_TASKS_MAX || count < 4 * (size_t)go->local_count)
		return false;
	go->ranks = at + GO_BYTES;
	count -= 4 * (size_t)go->local_count;
	if (numbers[8] > DEAL_NODES_MAX + 1 || count < numbers[8])
		return false;
	go->nodes = (const char *)go->ranks + 4 * (size_t)go->local_count;
	go->joins = count > numbers[8] && go->nodes[numbers[8]] != 0;
	return is_list(go->nodes, numbers[8]) && is_sound(go);
}

uint32_t deal_rank(const struct deal_go *go, uint32_t local_task)
{
	return bytes_get32(go->ranks + 4 * (size_t)local_task);
}

size_t deal_pack_spares(const char *nodes, unsigned char bytes[4 + DEAL_SPARES_MAX])
{
	size_t length = strnlen(nodes, DEAL_SPARES_MAX);

	bytes_put32(bytes, (uint32_t)length);
	memcpy(bytes + 4, nodes, length);
	return 4 + length;
}

bool deal_unpack_spares(const void *bytes, size_t count, char nodes[DEAL_SPARES_MAX + 1])
{
	size_t length;

	if (count < 4)
		return false;
	length = bytes_get32(bytes);
	if (length > DEAL_SPARES_MAX || count - 4 < length)
		return false;
	memcpy(nodes, (const unsigned char *)bytes + 4, length);
	nodes[length] = '\0';
	return length == 0 || is_list(nodes, length + 1);
}

size_t deal_join_bytes(uint32_t task_count)
{
	return JOIN_BYTES + 4 * (size_t)task_count;
}

size_t deal_pack_join(const struct deal_join *join, const uint32_t *tasks, unsigned char *bytes)
{
	const uint32_t numbers[JOIN_NUMBERS] = { join->version, join->node_id, join->generation, join->task_count };
	unsigned char *at = put_numbers(bytes, numbers, JOIN_NUMBERS);

	memset(at, 0, DEAL_RELEASE_MAX);
	memcpy(at, join->release, strnlen(join->release, DEAL_RELEASE_MAX));
	at = put_numbers(at + DEAL_RELEASE_MAX, tasks, join->task_count);
	return (size_t)(at - bytes);
}

bool deal_unpack_join(const void *bytes, size_t count, struct deal_join *join)
{
	const unsigned char *at = bytes;
	uint32_t numbers[JOIN_NUMBERS];
	struct sink release;

	if (count < JOIN_BYTES)
		return false;
	get_numbers(at, numbers, JOIN_NUMBERS);
	*join = (struct deal_join){ .version = numbers[0], .node_id = numbers[1], .generation = numbers[2],
		                    .task_count = numbers[3], .tasks = at + JOIN_BYTES };
	release = sink_on(join->release, sizeof(join->release));
	sink_add_untrusted(&release, (const char *)at + 4 * JOIN_NUMBERS, DEAL_RELEASE_MAX);
	return join->version > 0 && join->generation <= DEAL_GENERATIONS && join->task_count > 0 &&
	       join->task_count <= DEAL_TASKS_MAX && count - JOIN_BYTES >= 4 * (size_t)join->task_count;
}

uint32_t deal_task(const struct deal_join *join, uint32_t local_task)
{
	return bytes_get32(join->tasks + 4 * (size_t)local_task);
}

size_t deal_pack_clear(const struct deal_clear *clear, unsigned char *bytes)
{
	bytes_put32(bytes, clear->generation);
	bytes[4] = clear->fenced ? 1 : 0;
	bytes_put64(bytes + 5, clear->step);
	bytes_put64(bytes + 13, clear->first);
	bytes[CLEAR_BYTES] = (unsigned char)clear->rest;
	return CLEAR_BYTES + 1;
}

bool deal_unpack_clear(const void *bytes, size_t count, struct deal_clear *clear)
{
	const unsigned char *at = bytes;

	if (count < CLEAR_BYTES)
		return false;
	*clear = (struct deal_clear){ .generation = bytes_get32(at), .fenced = at[4] != 0,
		                      .step = bytes_get64(at + 5), .first = bytes_get64(at + 13) };
	if (count > CLEAR_BYTES && at[CLEAR_BYTES] <= DEAL_SOME)
		clear->rest = (enum deal_rest)at[CLEAR_BYTES];
	return clear->generation <= DEAL_GENERATIONS && at[4] <= 1;
}

size_t deal_pack_done(const struct deal_done *done, unsigned char *bytes)
{
	const uint32_t numbers[] = { done->generation, done->local_task, done->rank, (uint32_t)done->wait_status };

	put_numbers(bytes, numbers, 4);
	bytes[DONE_BYTES - 1] = done->never_ran;
	return DONE_BYTES;
}

bool deal_unpack_done(const void *bytes, size_t count, struct deal_done *done)
{
	const unsigned char *at = bytes;
	uint32_t numbers[4];

	if (count < DONE_BYTES || at[DONE_BYTES - 1] > 1)
		return false;
	get_numbers(bytes, numbers, 4);
	*done = (struct deal_done){ .generation = numbers[0], .local_task = numbers[1], .rank = numbers[2],
		                    .wait_status = (int)numbers[3], .never_ran = at[DONE_BYTES - 1] != 0 };
	return done->generation > 0 && done->generation <= DEAL_GENERATIONS && done->local_task < DEAL_TASKS_MAX;
}

size_t deal_pack_lost(const struct deal_lost *lost, unsigned char *bytes)
{
	bytes_put32(bytes, lost->generation);
	bytes_put32(bytes + 4, lost->local_task);
	return LOST_BYTES;
}

bool deal_unpack_lost(const void *bytes, size_t count, struct deal_lost *lost)
{
	const unsigned char *at = bytes;

	if (count < LOST_BYTES)
		return false;
	*lost = (struct deal_lost){ .generation = bytes_get32(at), .local_task = bytes_get32(at + 4) };
	return lost->generation <= DEAL_GENERATIONS && lost->local_task < DEAL_TASKS_MAX;
}

bool deal_make_key(char key[DEAL_KEY_DIGITS + 1])
{
	unsigned char bytes[DEAL_KEY_DIGITS / 2];
	ssize_t got;

	do {
		got = getrandom(bytes, sizeof(bytes), 0);
	} while (got < 0 && errno == EINTR);
	if (got != (ssize_t)sizeof(bytes))
		return false;
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(key + 2 * i, 3, "%02x", bytes[i]);
	explicit_bzero(bytes, sizeof(bytes));
	return true;
}

bool deal_is_key(const char *text)
{
	return text != NULL && strlen(text) == DEAL_KEY_DIGITS && strspn(text, "0123456789abcdef") == DEAL_KEY_DIGITS;
}
