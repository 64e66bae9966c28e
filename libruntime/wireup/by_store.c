/* SPDX-License-Identifier: Apache-2.0 */
#include "wireup/by_store.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "wireup/file_store.h"
#include "wireup/open.h"

enum { RUN_BYTES = 16, KEY_TEXT = 96, LIST_BYTES = 200, FIRST_ROOM = 4096 };

/* A rank waits for an answer for so long before it looks whether rank 0 has begun another run. */
static const uint64_t first_slice_ns = 250000000u, longest_slice_ns = 2000000000u;
static const uint64_t first_pause_ns = 5000000u, longest_pause_ns = 200000000u;
/* These limit how long a rank looks for an answer that is there. */
static const int all_looks_ms = 2000, shortest_look_ms = 10, longest_look_ms = 200;

/* Rank 0 puts this under "ddp/run". */
struct run {
	char magic[8];
	int32_t world_size;
	unsigned char number[RUN_BYTES];
	unsigned char key[DDP_KEY_BYTES];
};

/* A rank puts this under "ddp/RUN/EXCHANGE/RANK", and the blob behind it. */
struct entry {
	char magic[8];
	int32_t rank, world_size;
	uint32_t gone;  /* 1: the rank has ended; there is no blob */
	uint32_t bytes; /* of the blob */
	uint64_t self;  /* a number that only this process has */
	char host[64];
};

/* Rank 0 puts this under "ddp/RUN/EXCHANGE/all", and behind it all entries, each with its blob. After a failure,
   the numbers of the processes that it is told to and a sentence follow instead. */
struct answer {
	char magic[8];
	uint32_t status; /* ddp_status */
	uint32_t count;  /* of entries, or processes */
	int32_t culprit; /* the rank that the failure is about; -1: none */
};

static const char run_magic[8] = "ddprun1", entry_magic[8] = "ddprnk1", answer_magic[8] = "ddpall1";

struct store {
	ddp_wireup base;
	ddp_store calls;
	ddp_file_store *file; /* NULL: the store is the program's */
	char name[256];
	ddp_key *key;
	bool has_run;
	struct run run;
	uint64_t self;
	uint32_t exchange, told; /* the present one, from 1; the last that this rank has told its part of */
	bool settled;
};

/* ---- the program's calls ------------------------------------------------------------------ */

static ddp_status about_call(const struct store *s, const char *call, const char *key, ddp_status status)
{
	if (ddp_last_error()[0] == '\0')
		ddp_fail(status, "it gave no reason (ddp_set_error())");
	return ddp_fail_context(status, "rank %d on %s: %s of \"%s\" in %s failed with %s", s->base.job->rank,
	                        s->base.job->hostname, call, key, s->name, ddp_status_name(status));
}

static ddp_status put(struct store *s, const char *key, const void *value, size_t bytes)
{
	ddp_forget_error();
	const ddp_status status = s->calls.set(s->calls.user, key, value, bytes);
	return status == DDP_OK ? DDP_OK : about_call(s, "set()", key, status);
}

/* *there: the key is in the store. DDP_OK also at the deadline. A key is looked for at least once. */
static ddp_status await(struct store *s, const char *key, uint64_t deadline_ns, bool *there)
{
	const uint64_t now_ns = ddp_now_ns(), left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000u : 0;

	ddp_forget_error();
	const ddp_status status = s->calls.wait(s->calls.user, key, left_ms < 1 ? 1 : left_ms < INT32_MAX ? (int)left_ms : INT32_MAX);
	*there = status == DDP_OK;
	return status == DDP_OK || status == DDP_ERR_TIMEOUT ? DDP_OK : about_call(s, "wait()", key, status);
}

/* Whether the key is there now. A store on another node takes some time to answer; for all ranks together this waits
   some seconds at most. */
static ddp_status look(struct store *s, const char *key, bool *there)
{
	const int share_ms = all_looks_ms / s->base.job->world_size;
	const int look_ms = share_ms > longest_look_ms ? longest_look_ms : share_ms < shortest_look_ms ? shortest_look_ms : share_ms;

	return await(s, key, ddp_ms_from_now(look_ms), there);
}

/* The value is malloc'd. */
static ddp_status get(struct store *s, const char *key, size_t most, char **value, size_t *bytes)
{
	size_t room = FIRST_ROOM;

	for (;;) {
		*value = malloc(room);
		if (*value == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of %s", room, s->name);
		*bytes = 0;
		ddp_forget_error();
		ddp_status status = s->calls.get(s->calls.user, key, *value, room, bytes);
		if (status == DDP_OK && *bytes <= room)
			return DDP_OK;
		free(*value);
		*value = NULL;
		if (status != DDP_OK)
			return about_call(s, "get()", key, status);
		if (*bytes > most)
			return ddp_fail(DDP_ERR_FORMAT, "\"%s\" in %s has %zu bytes: it is not what libddp has put there", key,
			                s->name, *bytes);
		room = *bytes;
	}
}

static void pause_for(uint64_t *pause_ns)
{
	const struct timespec pause = { .tv_nsec = (long)*pause_ns };

	nanosleep(&pause, NULL);
	*pause_ns = *pause_ns * 2 < longest_pause_ns ? *pause_ns * 2 : longest_pause_ns;
}

/* ---- keys and values ---------------------------------------------------------------------- */

static size_t key_of(const struct store *s, uint32_t exchange, char text[KEY_TEXT])
{
	size_t used = (size_t)snprintf(text, KEY_TEXT, "ddp/");

	for (int i = 0; i < RUN_BYTES; i++)
		used += (size_t)snprintf(text + used, KEY_TEXT - used, "%02x", s->run.number[i]);
	return used + (size_t)snprintf(text + used, KEY_TEXT - used, "/%u/", exchange);
}

static void key_of_rank(const struct store *s, uint32_t exchange, int rank, char text[KEY_TEXT])
{
	const size_t used = key_of(s, exchange, text);

	snprintf(text + used, KEY_TEXT - used, "%d", rank);
}

static void key_of_all(const struct store *s, uint32_t exchange, char text[KEY_TEXT])
{
	const size_t used = key_of(s, exchange, text);

	snprintf(text + used, KEY_TEXT - used, "all");
}

static struct entry own_entry(const struct store *s, size_t bytes)
{
	const ddp_job *job = s->base.job;
	struct entry entry = { .rank = job->rank, .world_size = job->world_size, .bytes = (uint32_t)bytes, .self = s->self };

	memcpy(entry.magic, entry_magic, sizeof(entry.magic));
	snprintf(entry.host, sizeof(entry.host), "%.63s", job->hostname);
	return entry;
}

static ddp_status put_entry(struct store *s, const struct entry *entry, const void *blob)
{
	char key[KEY_TEXT], *value = malloc(sizeof(*entry) + entry->bytes);

	if (value == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for %u bytes", entry->bytes);
	memcpy(value, entry, sizeof(*entry));
	if (entry->bytes > 0)
		memcpy(value + sizeof(*entry), blob, entry->bytes);
	key_of_rank(s, s->exchange, s->base.job->rank, key);
	const ddp_status status = put(s, key, value, sizeof(*entry) + entry->bytes);
	free(value);
	s->told = s->exchange;
	return status;
}

/* Reads the entry that rank `rank` has put. */
static ddp_status read_entry(const struct store *s, const char *value, size_t bytes, int rank, struct entry *entry)
{
	const ddp_job *job = s->base.job;

	if (bytes >= sizeof(*entry))
		memcpy(entry, value, sizeof(*entry));
	if (bytes < sizeof(*entry) || memcmp(entry->magic, entry_magic, sizeof(entry_magic)) != 0 || entry->rank != rank ||
	    entry->bytes > DDP_BLOB_MAX || entry->bytes > bytes - sizeof(*entry))
		return ddp_fail(DDP_ERR_FORMAT, "what %s holds for rank %d is not what this libddp has put there: install one "
		                "version on all nodes", s->name, rank);
	entry->host[sizeof(entry->host) - 1] = '\0';
	if (entry->gone == 1)
		return ddp_error_about(ddp_fail(DDP_ERR_PEER, "rank %d on %s ended during wire-up", rank, entry->host), rank);
	if (entry->world_size != job->world_size)
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that the world size is %d, but rank 0 on %s says %d", rank,
		                entry->host, entry->world_size, job->hostname, job->world_size);
	return DDP_OK;
}

/* ---- who did not come --------------------------------------------------------------------- */

/* Fails with the names of the ranks whose part is not in the store. */
static ddp_status name_missing(struct store *s, uint64_t start_ns)
{
	const ddp_job *job = s->base.job;
	bool *missing = calloc((size_t)job->world_size, sizeof(*missing)), there = true;
	char key[KEY_TEXT], list[LIST_BYTES];
	ddp_status status = DDP_OK;
	int first = -1;

	if (missing == NULL)
		return ddp_fail(DDP_ERR_TIMEOUT, "not all ranks came to %s in time", s->name);
	missing[0] = job->rank != 0 && !s->has_run;
	for (int r = 1; r < job->world_size && s->has_run && status == DDP_OK; r++) {
		key_of_rank(s, s->exchange, r, key);
		if (r != job->rank)
			status = look(s, key, &there);
		missing[r] = r != job->rank && !there;
	}
	for (int r = job->world_size - 1; r >= 0; r--)
		first = missing[r] ? r : first;
	if (status == DDP_OK && first < 0) {
		first = 0;
		status = ddp_fail(DDP_ERR_TIMEOUT, "rank %d on %s: rank 0 came to %s, but did not answer within %.1f s", job->rank,
		                  job->hostname, s->name, ddp_seconds_since(start_ns));
	} else if (status == DDP_OK) {
		status = ddp_fail(DDP_ERR_TIMEOUT, "rank %d on %s: %s did not come to %s within %.1f s: did they start, and do "
		                  "all ranks use the same store?", job->rank, job->hostname,
		                  ddp_rank_list(missing, job->world_size, list, sizeof(list)), s->name,
		                  ddp_seconds_since(start_ns));
	}
	free(missing);
	return first >= 0 ? ddp_error_about(status, first) : status;
}

/* ---- rank 0 ------------------------------------------------------------------------------- */

static ddp_status random_bytes(void *bytes, size_t count)
{
	return getrandom(bytes, count, 0) == (ssize_t)count ? DDP_OK : ddp_fail_errno(DDP_ERR_IO, errno, "no random key");
}

static void take_key(struct store *s)
{
	memcpy(s->key->bytes, s->run.key, DDP_KEY_BYTES);
	s->key->present = true;
	s->has_run = true;
}

static ddp_status begin_run(struct store *s)
{
	s->run.world_size = s->base.job->world_size;
	memcpy(s->run.magic, run_magic, sizeof(run_magic));
	ddp_status status = random_bytes(s->run.number, sizeof(s->run.number));
	if (status == DDP_OK)
		status = random_bytes(s->run.key, sizeof(s->run.key));
	if (status != DDP_OK)
		return status;
	take_key(s);
	return put(s, "ddp/run", &s->run, sizeof(s->run));
}

/* This holds the entries of all ranks, one behind the other. */
struct gathered {
	char *bytes;
	size_t used, room;
};

static ddp_status append(struct gathered *all, const void *bytes, size_t count)
{
	if (all->room - all->used < count) {
		const size_t room = 2 * all->room + count;
		char *more = realloc(all->bytes, room);
		if (more == NULL)
			return ddp_fail(DDP_ERR_NOMEM, "no memory for %zu bytes of all ranks", room);
		all->bytes = more;
		all->room = room;
	}
	memcpy(all->bytes + all->used, bytes, count);
	all->used += count;
	return DDP_OK;
}

static ddp_status gather_rank(struct store *s, int rank, uint64_t start_ns, uint64_t deadline_ns, struct gathered *all)
{
	char key[KEY_TEXT], *value;
	struct entry entry;
	size_t bytes;
	bool there;

	key_of_rank(s, s->exchange, rank, key);
	ddp_status status = await(s, key, deadline_ns, &there);
	if (status == DDP_OK && !there)
		return name_missing(s, start_ns);
	if (status == DDP_OK)
		status = get(s, key, sizeof(entry) + DDP_BLOB_MAX, &value, &bytes);
	if (status != DDP_OK)
		return status;
	status = read_entry(s, value, bytes, rank, &entry);
	if (status == DDP_OK)
		status = append(all, value, sizeof(entry) + entry.bytes);
	free(value);
	return status;
}

static ddp_status gather(struct store *s, const void *blob, size_t bytes, uint64_t deadline_ns, struct gathered *all)
{
	struct answer answer = { .count = (uint32_t)s->base.job->world_size };
	const struct entry own = own_entry(s, bytes);
	const uint64_t start_ns = ddp_now_ns();

	memcpy(answer.magic, answer_magic, sizeof(answer_magic));
	ddp_status status = append(all, &answer, sizeof(answer));
	if (status == DDP_OK)
		status = append(all, &own, sizeof(own));
	if (status == DDP_OK)
		status = append(all, blob, bytes);
	for (int r = 1; r < s->base.job->world_size && status == DDP_OK; r++)
		status = gather_rank(s, r, start_ns, deadline_ns, all);
	return status;
}

/* The numbers of the processes that have come: what is left of an earlier run must not end another one. */
static ddp_status list_processes(struct store *s, struct gathered *all, uint32_t *count)
{
	ddp_status status = DDP_OK;

	for (int r = 1; r < s->base.job->world_size && status == DDP_OK; r++) {
		struct entry entry;
		char key[KEY_TEXT], *value;
		size_t bytes;
		bool there;
		key_of_rank(s, s->exchange, r, key);
		status = look(s, key, &there);
		if (status != DDP_OK || !there)
			continue;
		status = get(s, key, sizeof(entry) + DDP_BLOB_MAX, &value, &bytes);
		if (status != DDP_OK)
			return status;
		if (bytes >= sizeof(entry)) {
			memcpy(&entry, value, sizeof(entry));
			status = append(all, &entry.self, sizeof(entry.self));
			++*count;
		}
		free(value);
	}
	return status;
}

/* All ranks are to fail in the same words. The present error stays. */
static void tell_failure(struct store *s, ddp_status failure)
{
	struct answer answer = { .status = (uint32_t)failure };
	struct gathered all = { NULL, 0, 0 };
	ddp_kept_error kept;
	char key[KEY_TEXT];

	ddp_error_keep(&kept, failure);
	memcpy(answer.magic, answer_magic, sizeof(answer_magic));
	answer.culprit = kept.rank;
	ddp_status status = append(&all, &answer, sizeof(answer));
	if (status == DDP_OK)
		status = list_processes(s, &all, &answer.count);
	if (status == DDP_OK)
		status = append(&all, kept.text, strlen(kept.text));
	if (status == DDP_OK) {
		memcpy(all.bytes, &answer, sizeof(answer));
		key_of_all(s, s->exchange, key);
		(void)put(s, key, all.bytes, all.used);
	}
	free(all.bytes);
	s->told = s->exchange;
	(void)ddp_error_return(&kept);
}

/* ---- what all get ------------------------------------------------------------------------- */

static ddp_status not_ours(const struct store *s)
{
	return ddp_fail(DDP_ERR_FORMAT, "what rank 0 has put into %s is not what this libddp puts there: install one version "
	                "on all nodes", s->name);
}

/* *own: it is told to this process. In later exchanges the run is known to be this process's. */
static ddp_status hear_failure(const struct store *s, const struct answer *answer, const char *at, size_t bytes,
                               bool *own)
{
	const ddp_status status = answer->status <= DDP_ERR_INTERNAL ? (ddp_status)answer->status : DDP_ERR_PEER;

	if (answer->count > bytes / sizeof(s->self))
		return not_ours(s);
	*own = s->exchange > 1;
	for (uint32_t i = 0; i < answer->count; i++)
		*own |= memcmp(at + i * sizeof(s->self), &s->self, sizeof(s->self)) == 0;
	if (!*own)
		return DDP_OK;
	at += answer->count * sizeof(s->self);
	bytes -= answer->count * sizeof(s->self);
	ddp_fail(status, "%.*s", (int)(bytes < 1000 ? bytes : 1000), at);
	return answer->culprit >= 0 ? ddp_error_about(status, answer->culprit) : status;
}

/* *own: this process is among the ranks. */
static ddp_status read_all(const struct store *s, const char *value, size_t bytes, void **blobs, size_t *sizes, bool *own)
{
	const ddp_job *job = s->base.job;
	struct answer answer;
	size_t at = sizeof(answer);

	*own = false;
	if (bytes < sizeof(answer))
		return not_ours(s);
	memcpy(&answer, value, sizeof(answer));
	if (memcmp(answer.magic, answer_magic, sizeof(answer_magic)) != 0)
		return not_ours(s);
	if (answer.status != DDP_OK)
		return hear_failure(s, &answer, value + at, bytes - at, own);
	if (answer.count != (uint32_t)job->world_size)
		return DDP_OK;
	for (int r = 0; r < job->world_size; r++) {
		struct entry entry;
		ddp_status status = read_entry(s, value + at, bytes - at, r, &entry);
		if (status == DDP_OK && (blobs[r] = malloc(entry.bytes > 0 ? entry.bytes : 1)) == NULL)
			status = ddp_fail(DDP_ERR_NOMEM, "no memory for a blob of %u bytes", entry.bytes);
		if (status != DDP_OK) {
			ddp_blobs_free(blobs, r);
			return status;
		}
		memcpy(blobs[r], value + at + sizeof(entry), entry.bytes);
		sizes[r] = entry.bytes;
		at += sizeof(entry) + entry.bytes;
		*own |= r == job->rank && entry.self == s->self;
	}
	if (!*own)
		ddp_blobs_free(blobs, job->world_size);
	return DDP_OK;
}

static ddp_status exchange_as_first(struct store *s, const void *blob, size_t bytes, uint64_t deadline_ns, void **blobs,
                                    size_t *sizes)
{
	struct gathered all = { NULL, 0, 0 };
	char key[KEY_TEXT];
	bool own;
	ddp_status status = s->has_run ? DDP_OK : begin_run(s);

	if (status == DDP_OK)
		status = gather(s, blob, bytes, deadline_ns, &all);
	if (status == DDP_OK)
		status = read_all(s, all.bytes, all.used, blobs, sizes, &own);
	if (status == DDP_OK) {
		key_of_all(s, s->exchange, key);
		status = put(s, key, all.bytes, all.used);
		if (status != DDP_OK)
			ddp_blobs_free(blobs, s->base.job->world_size);
		s->told = s->exchange;
	}
	if (status != DDP_OK && s->has_run)
		tell_failure(s, status);
	free(all.bytes);
	return status;
}

/* ---- the other ranks ---------------------------------------------------------------------- */

/* *changed: rank 0 has begun a run that this rank has not heard of. Without any it waits until the deadline. */
static ddp_status find_run(struct store *s, uint64_t deadline_ns, bool *changed)
{
	struct run run;
	char *value;
	size_t bytes;
	bool there;
	ddp_status status = await(s, "ddp/run", deadline_ns, &there);

	*changed = false;
	if (status == DDP_OK && there)
		status = get(s, "ddp/run", sizeof(run), &value, &bytes);
	if (status != DDP_OK || !there)
		return status;
	const bool ours = bytes == sizeof(run) && memcmp(value, run_magic, sizeof(run_magic)) == 0;
	if (ours)
		memcpy(&run, value, sizeof(run));
	OPENSSL_cleanse(value, bytes);
	free(value);
	if (!ours)
		return not_ours(s);
	*changed = !s->has_run || memcmp(run.number, s->run.number, sizeof(run.number)) != 0;
	if (*changed) {
		s->run = run;
		take_key(s);
	}
	OPENSSL_cleanse(&run, sizeof(run));
	return DDP_OK;
}

static ddp_status come(struct store *s, const void *blob, size_t bytes)
{
	const struct entry own = own_entry(s, bytes);

	return put_entry(s, &own, blob);
}

/* *done: rank 0's answer is there, and goes to this process. *refused: it is there, and does not. */
static ddp_status hear(struct store *s, uint64_t until_ns, void **blobs, size_t *sizes, bool *done, bool *refused)
{
	char key[KEY_TEXT], *value;
	size_t bytes;
	bool there;

	*done = *refused = false;
	key_of_all(s, s->exchange, key);
	ddp_status status = await(s, key, until_ns, &there);
	if (status != DDP_OK || !there)
		return status;
	status = get(s, key, (size_t)s->base.job->world_size * (sizeof(struct entry) + DDP_BLOB_MAX) + sizeof(struct answer),
	             &value, &bytes);
	if (status != DDP_OK)
		return status;
	status = read_all(s, value, bytes, blobs, sizes, done);
	free(value);
	*refused = !*done;
	return status;
}

/* Why rank 0 has not answered this process. */
static ddp_status not_heard(struct store *s, bool refused, uint64_t start_ns)
{
	const ddp_job *job = s->base.job;

	if (s->has_run && s->run.world_size != job->world_size)
		return ddp_fail(DDP_ERR_JOB, "rank %d on %s says that the world size is %d, but rank 0 says %d", job->rank,
		                job->hostname, job->world_size, s->run.world_size);
	if (!refused)
		return name_missing(s, start_ns);
	return ddp_error_about(ddp_fail(
		DDP_ERR_TIMEOUT, "rank %d on %s: rank 0 did not come to %s within %.1f s: what is there is an earlier run's, "
		"or another process has the same rank", job->rank, job->hostname, s->name, ddp_seconds_since(start_ns)), 0);
}

static ddp_status exchange_as_other(struct store *s, const void *blob, size_t bytes, uint64_t deadline_ns, void **blobs,
                                    size_t *sizes)
{
	const bool may_change = s->exchange == 1;
	const uint64_t start_ns = ddp_now_ns();
	uint64_t slice_ns = first_slice_ns, pause_ns = first_pause_ns;
	bool changed = !may_change, done = false, refused = false;

	for (;;) {
		ddp_status status = may_change ? find_run(s, deadline_ns, &changed) : DDP_OK;
		if (status == DDP_OK && changed)
			status = come(s, blob, bytes);
		changed = false;
		const uint64_t until_ns = ddp_now_ns() + slice_ns;
		if (status == DDP_OK && s->has_run)
			status = hear(s, until_ns < deadline_ns ? until_ns : deadline_ns, blobs, sizes, &done, &refused);
		if (status != DDP_OK || done)
			return status;
		if (ddp_now_ns() >= deadline_ns)
			return not_heard(s, refused, start_ns);
		if (ddp_now_ns() < until_ns)
			pause_for(&pause_ns);
		slice_ns = slice_ns * 2 < longest_slice_ns ? slice_ns * 2 : longest_slice_ns;
	}
}

/* ---- the wire-up -------------------------------------------------------------------------- */

static ddp_status store_exchange(ddp_wireup *wireup, const void *blob, size_t bytes, uint64_t deadline_ns, void **blobs,
                                 size_t *sizes)
{
	struct store *s = (struct store *)wireup;

	if (bytes > DDP_BLOB_MAX)
		return ddp_fail(DDP_ERR_INVALID, "a blob of %zu bytes; %d are possible", bytes, DDP_BLOB_MAX);
	s->exchange++;
	return s->base.job->rank == 0 ? exchange_as_first(s, blob, bytes, deadline_ns, blobs, sizes)
	                              : exchange_as_other(s, blob, bytes, deadline_ns, blobs, sizes);
}

static void store_settle(ddp_wireup *wireup)
{
	struct store *s = (struct store *)wireup;

	s->settled = true;
	ddp_file_store_close(s->file);
	s->file = NULL;
}

/* Others may wait for this rank. */
static void tell_end(struct store *s)
{
	struct entry entry = own_entry(s, 0);
	ddp_kept_error kept;

	ddp_error_keep(&kept, DDP_ERR_PEER);
	s->exchange = s->told + 1;
	entry.gone = 1;
	if (s->base.job->rank != 0)
		(void)put_entry(s, &entry, NULL);
	else
		tell_failure(s, ddp_error_about(ddp_fail(DDP_ERR_PEER, "rank 0 on %s ended during wire-up", entry.host), 0));
	(void)ddp_error_return(&kept);
}

static void store_close(ddp_wireup *wireup)
{
	struct store *s = (struct store *)wireup;

	if (s->has_run && !s->settled)
		tell_end(s);
	ddp_file_store_close(s->file);
	OPENSSL_cleanse(s, sizeof(*s));
	free(s);
}

static const ddp_wireup_ops store_ops = { .name = "store", .exchange = store_exchange, .settle = store_settle,
	                                  .close = store_close };
static const ddp_wireup_ops file_ops = { .name = "file", .exchange = store_exchange, .settle = store_settle,
	                                 .close = store_close };

static ddp_status check(const ddp_store *store)
{
	if (store->set == NULL || store->get == NULL || store->wait == NULL)
		return ddp_fail(DDP_ERR_INVALID, "ddp_init: the store needs set, get and wait");
	for (size_t i = 0; i < sizeof(store->reserved) / sizeof(store->reserved[0]); i++)
		if (store->reserved[i] != 0)
			return ddp_fail(DDP_ERR_INVALID, "ddp_init: a reserved word of the store is not 0: was it made by "
			                "{ .field = value }?");
	return DDP_OK;
}

static ddp_status make(const ddp_job *job, const char *name, ddp_key *key, struct store **made)
{
	struct store *s = calloc(1, sizeof(*s));

	if (s == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the wire-up");
	s->base = (ddp_wireup){ .ops = &store_ops, .job = job, .key = key };
	snprintf(s->name, sizeof(s->name), "%s", name);
	s->key = key;
	const ddp_status status = random_bytes(&s->self, sizeof(s->self));
	if (status == DDP_OK)
		*made = s;
	else
		free(s);
	return status;
}

/* There is nobody to meet. */
static ddp_status open_alone(const ddp_job *job, const ddp_key *key, ddp_wireup **wireup)
{
	const ddp_status status = ddp_self_open(job, wireup);

	if (status == DDP_OK)
		(*wireup)->key = key;
	return status;
}

ddp_status ddp_by_store_open(const ddp_job *job, const ddp_store *store, const char *name, ddp_key *key,
                          ddp_wireup **wireup)
{
	struct store *s;
	ddp_status status = check(store);

	if (status == DDP_OK && job->world_size == 1)
		return open_alone(job, key, wireup);
	if (status == DDP_OK)
		status = make(job, name, key, &s);
	if (status != DDP_OK)
		return status;
	s->calls = *store;
	*wireup = &s->base;
	return DDP_OK;
}

ddp_status ddp_by_file_open(const ddp_job *job, const char *path, ddp_key *key, uint64_t deadline_ns,
                               ddp_wireup **wireup)
{
	char name[sizeof(((struct store *)0)->name)];
	struct store *s;

	if (job->world_size == 1)
		return open_alone(job, key, wireup);
	snprintf(name, sizeof(name), "the file %.200s", path);
	ddp_status status = make(job, name, key, &s);
	if (status != DDP_OK)
		return status;
	s->base.ops = &file_ops;
	status = ddp_file_store_open(path, job, deadline_ns, &s->file);
	if (status != DDP_OK) {
		store_close(&s->base);
		return status;
	}
	s->calls = ddp_file_store_calls(s->file);
	*wireup = &s->base;
	return DDP_OK;
}
