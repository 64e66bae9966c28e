/* Token files as samples of length + 1 tokens. */
#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/file.h"

enum {
	LLMC_MAGIC = 20240520,
	LLMC_VERSION = 1,
	LLMC_HEADER_BYTES = 256 * 4,
	LENGTH_MAX = 1 << 24
};

struct tokens {
	ddp_file file;
	int token_bytes;
	int length;
	int64_t first_byte; /* of sample 0 */
};

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	const struct tokens *tokens = self;
	size_t count = (size_t)tokens->length + 1, bytes = count * (size_t)tokens->token_bytes;
	int64_t offset = tokens->first_byte + index * tokens->length * tokens->token_bytes;
	/* At the sample's end: there each token lies behind its place, or in it. */
	unsigned char *out = sample, *raw = out + count * sizeof(int32_t) - bytes;

	ddp_status status = ddp_file_read(&tokens->file, raw, bytes, offset);
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

	ddp_file_close(&tokens->file);
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
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: magic number is %" PRIu32 ", not %d: "
		                "not an llm.c file of 16-bit tokens", path, le32toh(header[0]), LLMC_MAGIC);
	if (le32toh(header[1]) != LLMC_VERSION)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: version %" PRIu32 " is not known, "
		                "only %d is", path, le32toh(header[1]), LLMC_VERSION);

	int64_t expected = LLMC_HEADER_BYTES + 2 * (int64_t)le32toh(header[2]);
	if (bytes != expected)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: %s: %" PRId64 " bytes, but its header "
		                "says %" PRIu32 " tokens, that is %" PRId64 " bytes", path,
		                bytes < expected ? "cut short" : "too long", bytes,
		                le32toh(header[2]), expected);
	*count = le32toh(header[2]);
	return DDP_OK;
}

/* How many tokens the file has and where they begin. */
static ddp_status measure(const ddp_file *file, ddp_token_format format, int *token_bytes,
                          int64_t *start, int64_t *count)
{
	*token_bytes = format == DDP_TOKENS_BYTES ? 1 : 2;
	*start = 0;
	*count = file->bytes / *token_bytes;
	switch (format) {
	case DDP_TOKENS_BYTES:
		return DDP_OK;
	case DDP_TOKENS_U16:
		if (file->bytes % 2 != 0)
			return ddp_fail(DDP_ERR_FORMAT, "token file %s: %" PRId64 " bytes are no whole "
			                "number of 16-bit tokens; was it cut short?", file->path, file->bytes);
		return DDP_OK;
	case DDP_TOKENS_LLMC:
		*start = LLMC_HEADER_BYTES;
		return llmc_count(file, count);
	}
	return ddp_fail(DDP_ERR_INVALID, "token file %s: %d is no ddp_token_format", file->path, (int)format);
}

ddp_status ddp_tokens_open(const char *path, ddp_token_format format, int length,
                           double first, double last, ddp_dataset *dataset)
{
	ddp_file file;
	int token_bytes;
	int64_t start, count;

	if (length < 1 || length > LENGTH_MAX)
		return ddp_fail(DDP_ERR_INVALID, "token file %s: samples of %d tokens, must be 1 .. %d",
		                path, length, LENGTH_MAX);
	if (!(first >= 0 && first < last && last <= 1)) /* so put, NaN fails too */
		return ddp_fail(DDP_ERR_INVALID, "token file %s: part %g to %g is not within 0 to 1",
		                path, first, last);
	ddp_status status = ddp_file_open("token file", path, &file);
	if (status != DDP_OK)
		return status;
	status = measure(&file, format, &token_bytes, &start, &count);
	if (status != DDP_OK)
		goto failed;

	int64_t begin = (int64_t)floor((double)count * first);
	int64_t end = last < 1 ? (int64_t)floor((double)count * last) : count;
	if (end - begin < length + 1) {
		status = ddp_fail(DDP_ERR_FORMAT, "token file %s: %" PRId64 " tokens in the part %g to "
		                  "%g, but one sample takes %d", path, end - begin, first, last, length + 1);
		goto failed;
	}
	struct tokens *tokens = malloc(sizeof(*tokens));
	if (tokens == NULL) {
		status = ddp_fail(DDP_ERR_NOMEM, "token file %s: out of memory", path);
		goto failed;
	}
	*tokens = (struct tokens){
		.file = file, .token_bytes = token_bytes, .length = length,
		.first_byte = start + begin * token_bytes,
	};
	*dataset = (ddp_dataset){
		.size = (end - begin - 1) / length,
		.sample_bytes = ((size_t)length + 1) * sizeof(int32_t),
		.read = read_sample, .close = close_tokens, .self = tokens,
	};
	return DDP_OK;

failed:
	ddp_file_close(&file);
	return status;
}

void ddp_dataset_close(ddp_dataset *dataset)
{
	if (dataset == NULL)
		return;
	if (dataset->close != NULL)
		dataset->close(dataset->self);
	*dataset = (ddp_dataset){ 0 };
}
