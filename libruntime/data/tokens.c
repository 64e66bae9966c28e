/* SPDX-License-Identifier: Apache-2.0 */
/* Token files, one or several, as samples of length + 1 tokens. */
#include <endian.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "data/file.h"

enum {
	LLMC_MAGIC = 20240520,
	LLMC_VERSION = 1,
	LLMC_HEADER_BYTES = 256 * 4,
	LENGTH_MAX = 1 << 24
};

struct shard {
	ddp_file file;
	int64_t first_byte;   /* of its first sample */
	int64_t first_sample; /* of the dataset */
	int64_t tokens;       /* in the file; they begin at byte `start` */
	int64_t start;
};

struct tokens {
	int token_bytes, length;
	uint64_t digest; /* of the files */
	int count;
	struct shard shards[];
};

/* The file that has the sample; one without samples has the next one's first. */
static const struct shard *shard_of(const struct tokens *tokens, int64_t index)
{
	int low = 0, high = tokens->count;

	while (high - low > 1) {
		int middle = low + (high - low) / 2;
		if (tokens->shards[middle].first_sample <= index)
			low = middle;
		else
			high = middle;
	}
	return &tokens->shards[low];
}

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	const struct tokens *tokens = self;
	const struct shard *shard = shard_of(tokens, index);
	size_t count = (size_t)tokens->length + 1, bytes = count * (size_t)tokens->token_bytes;
	int64_t offset = shard->first_byte + (index - shard->first_sample) * tokens->length * tokens->token_bytes;
	/* At the sample's end: there each token lies behind its place, or in it. */
	unsigned char *out = sample, *raw = out + count * sizeof(int32_t) - bytes;

	ddp_status status = ddp_file_read(&shard->file, raw, bytes, offset);
	if (status != DDP_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		const unsigned char *from = raw + i * (size_t)tokens->token_bytes;
		int32_t token = tokens->token_bytes == 1 ? from[0] : from[0] | from[1] << 8;
		memcpy(out + i * sizeof(token), &token, sizeof(token));
	}
	return DDP_OK;
}

static void close_tokens(void *self)
{
	struct tokens *tokens = self;

	for (int i = 0; i < tokens->count; i++)
		ddp_file_close(&tokens->shards[i].file);
	free(tokens);
}

static ddp_status llmc_count(const ddp_file *file, int64_t *count)
{
	uint32_t header[3]; /* magic, version, tokens */
	const char *path = file->path;
	const int64_t bytes = file->bytes;

	if (bytes < LLMC_HEADER_BYTES)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: cut short: %" PRId64 " bytes, its "
		                "header alone takes %d", path, bytes, LLMC_HEADER_BYTES);
	ddp_status status = ddp_file_read(file, header, sizeof(header), 0);
	if (status != DDP_OK)
		return status;
	if (le32toh(header[0]) != LLMC_MAGIC)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: magic number (bytes 0 to 3) is %" PRIu32 ", not %d: "
		                "not an llm.c file of 16-bit tokens", path, le32toh(header[0]), LLMC_MAGIC);
	if (le32toh(header[1]) != LLMC_VERSION)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: version %" PRIu32 " (bytes 4 to 7) is not known, "
		                "only %d is", path, le32toh(header[1]), LLMC_VERSION);

	int64_t expected = LLMC_HEADER_BYTES + 2 * (int64_t)le32toh(header[2]);
	if (bytes != expected)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: %s: it ends at byte %" PRId64 ", but its header "
		                "(bytes 8 to 11) says %" PRIu32 " tokens, which end at byte %" PRId64, path,
		                bytes < expected ? "cut short" : "too long", bytes,
		                le32toh(header[2]), expected);
	*count = le32toh(header[2]);
	return DDP_OK;
}

/* How many tokens the file has and where they begin. */
static ddp_status measure(struct shard *shard, ddp_token_format format, int token_bytes)
{
	const ddp_file *file = &shard->file;

	shard->tokens = file->bytes / token_bytes;
	switch (format) {
	case DDP_TOKENS_BYTES:
		return DDP_OK;
	case DDP_TOKENS_U16:
		if (file->bytes % 2 != 0)
			return ddp_fail(DDP_ERR_FORMAT, "token file %s: it ends at byte %" PRId64 ", within a 16-bit "
			                "token; was it cut short?", file->path, file->bytes);
		return DDP_OK;
	case DDP_TOKENS_LLMC:
		shard->start = LLMC_HEADER_BYTES;
		return llmc_count(file, &shard->tokens);
	}
	return ddp_fail(DDP_ERR_INVALID, "token file %s: %d is no ddp_token_format", file->path, (int)format);
}

/* shard_2 comes before shard_10, in any locale. */
static int compare_names(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

static bool is_pattern(const char *path)
{
	return strpbrk(path, "*?[{") != NULL && access(path, F_OK) != 0;
}

/* Appends the files that match a pattern without braces; the pattern itself if none does, so
   that opening it says so. */
static ddp_status match(const char *pattern, glob_t *found)
{
	const int append = found->gl_pathc > 0 ? GLOB_APPEND : 0;
	int failed = glob(pattern, append | GLOB_ERR | GLOB_NOCHECK | GLOB_NOESCAPE | GLOB_NOSORT, NULL, found);

	if (failed == GLOB_NOSPACE)
		return ddp_fail(DDP_ERR_NOMEM, "token files %s: no memory for their names", pattern);
	if (failed != 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "token files %s: cannot read their folder", pattern);
	return DDP_OK;
}

/* The comma or brace that ends the alternative which begins at `text`; NULL without one. */
static const char *alternative_end(const char *text)
{
	for (int depth = 0; *text != '\0'; text++) {
		if (depth == 0 && (*text == ',' || *text == '}'))
			return text;
		depth += (*text == '{') - (*text == '}');
	}
	return NULL;
}

/* Braces are not left to glob(), which says nothing of an alternative that no file matches. */
static ddp_status match_alternatives(const char *pattern, glob_t *found)
{
	const char *open = strchr(pattern, '{');
	const char *close = open != NULL ? alternative_end(open + 1) : NULL;
	ddp_status status = DDP_OK;

	while (close != NULL && *close == ',')
		close = alternative_end(close + 1);
	if (close == NULL)
		return match(pattern, found);
	for (const char *begin = open + 1, *end; begin <= close && status == DDP_OK; begin = end + 1) {
		char *one;
		end = alternative_end(begin);
		if (asprintf(&one, "%.*s%.*s%s", (int)(open - pattern), pattern, (int)(end - begin), begin, close + 1) < 0)
			return ddp_fail(DDP_ERR_NOMEM, "token files %s: no memory for an alternative in braces", pattern);
		status = match_alternatives(one, found);
		free(one);
	}
	return status;
}

/* Those that match, in order, each once. */
static ddp_status find_files(const char *pattern, glob_t *found)
{
	ddp_status status = match_alternatives(pattern, found);
	if (status != DDP_OK)
		return status;
	char **paths = found->gl_pathv;
	size_t kept = 0;
	qsort(paths, found->gl_pathc, sizeof(*paths), compare_names);
	for (size_t i = 0; i < found->gl_pathc; i++) {
		if (kept > 0 && strcmp(paths[i], paths[kept - 1]) == 0)
			free(paths[i]);
		else
			paths[kept++] = paths[i];
	}
	found->gl_pathc = kept;
	return DDP_OK;
}

/* Appends a file, of whose tokens at least one sample can be made. */
static ddp_status add_shard(struct tokens *tokens, const char *path, ddp_token_format format)
{
	struct shard *shard = &tokens->shards[tokens->count];

	ddp_status status = ddp_file_open("token file", path, &shard->file);
	if (status != DDP_OK)
		return status;
	tokens->count++;
	status = measure(shard, format, tokens->token_bytes);
	if (status == DDP_OK && shard->tokens < tokens->length + 1)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: %" PRId64 " tokens, but one sample takes %d", path,
		                shard->tokens, tokens->length + 1);
	return status == DDP_OK ? ddp_file_digest(&shard->file, &tokens->digest) : status;
}

/* Tokens `begin` to `end` in the row of all files become samples; no sample goes over
   from one file to the next. Returns how many there are. */
static int64_t choose_part(struct tokens *tokens, int64_t begin, int64_t end)
{
	int64_t samples = 0, before = 0;

	for (int i = 0; i < tokens->count; i++) {
		struct shard *shard = &tokens->shards[i];
		int64_t from = begin > before ? begin - before : 0;
		int64_t to = end - before < shard->tokens ? end - before : shard->tokens;

		shard->first_sample = samples;
		shard->first_byte = shard->start + from * tokens->token_bytes;
		samples += to > from ? (to - from - 1) / tokens->length : 0;
		before += shard->tokens;
	}
	return samples;
}

static ddp_status open_files(char *const *paths, size_t count, ddp_token_format format, int length,
                             struct tokens **opened)
{
	struct tokens *tokens = calloc(1, sizeof(*tokens) + count * sizeof(tokens->shards[0]));
	ddp_status status = DDP_OK;

	if (tokens == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "token file %s: no memory for a dataset of %zu files", paths[0], count);
	tokens->token_bytes = format == DDP_TOKENS_BYTES ? 1 : 2;
	tokens->length = length;
	for (size_t i = 0; i < count && status == DDP_OK; i++)
		status = add_shard(tokens, paths[i], format);
	if (status != DDP_OK)
		close_tokens(tokens);
	else
		*opened = tokens;
	return status;
}

static ddp_status open_all(const char *path, ddp_token_format format, int length, struct tokens **tokens)
{
	char *const one = (char *)(uintptr_t)path;
	glob_t found = { 0 };

	if (!is_pattern(path))
		return open_files(&one, 1, format, length, tokens);
	ddp_status status = find_files(path, &found);
	if (status == DDP_OK)
		status = open_files(found.gl_pathv, found.gl_pathc, format, length, tokens);
	globfree(&found);
	return status;
}

ddp_status ddp_tokens_open(const char *path, ddp_token_format format, int length,
                           double first, double last, ddp_dataset *dataset)
{
	struct tokens *tokens;
	int64_t count = 0;

	if (path == NULL)
		return ddp_fail_null("ddp_tokens_open", "path");
	if (dataset == NULL)
		return ddp_fail_null("ddp_tokens_open", "dataset");
	if (length < 1 || length > LENGTH_MAX)
		return ddp_fail(DDP_ERR_INVALID, "token file %s: samples of %d tokens, must be 1 .. %d",
		                path, length, LENGTH_MAX);
	if (!(first >= 0 && first < last && last <= 1)) /* so put, NaN fails too */
		return ddp_fail(DDP_ERR_INVALID, "token file %s: part %g to %g is not within 0 to 1",
		                path, first, last);
	ddp_status status = open_all(path, format, length, &tokens);
	if (status != DDP_OK)
		return status;
	for (int i = 0; i < tokens->count; i++)
		count += tokens->shards[i].tokens;
	int64_t begin = (int64_t)floor((double)count * first);
	int64_t end = last < 1 ? (int64_t)floor((double)count * last) : count;
	int64_t samples = choose_part(tokens, begin, end);
	if (samples == 0) {
		close_tokens(tokens);
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: %" PRId64 " tokens in the part %g to %g, but one "
		                "sample takes %d, of one file", path, end - begin, first, last, length + 1);
	}
	const uint64_t part[] = { tokens->digest, (uint64_t)begin, (uint64_t)end };
	*dataset = (ddp_dataset){
		.size = samples,
		.sample_bytes = ((size_t)length + 1) * sizeof(int32_t),
		.read = read_sample, .close = close_tokens, .self = tokens,
		.digest = ddp_hash(part, sizeof(part)),
	};
	return DDP_OK;
}

void ddp_dataset_close(ddp_dataset *dataset)
{
	if (dataset == NULL)
		return;
	if (dataset->close != NULL)
		dataset->close(dataset->self);
	*dataset = (ddp_dataset){ 0 };
}
