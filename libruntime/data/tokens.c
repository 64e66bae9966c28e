/*
 * Token files as samples of length + 1 tokens. Read with pread() rather than
 * mapped: a file that shrinks or a file system that fails is then an error of
 * one read, not a SIGBUS.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

enum {
	LLMC_MAGIC = 20240520,
	LLMC_VERSION = 1,
	LLMC_HEADER_BYTES = 256 * 4,
	LENGTH_MAX = 1 << 24
};

struct tokens {
	char *path;
	int fd;
	int token_bytes;
	int length;
	int64_t first_byte; /* of sample 0 */
};

/* Fills `buffer` from the file's `offset`; says so if the file ends before. */
static ddp_status read_at(const char *path, int fd, void *buffer, size_t bytes, int64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = pread(fd, (char *)buffer + done, bytes - done, offset + (int64_t)done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return ddp_fail_errno(DDP_ERR_IO, errno, "token file %s: cannot read at byte %" PRId64,
			                      path, offset + (int64_t)done);
		if (got == 0)
			return ddp_fail(DDP_ERR_FORMAT, "token file %s: ends at byte %" PRId64
			                "; was it cut short while in use?", path, offset + (int64_t)done);
		done += (size_t)got;
	}
	return DDP_OK;
}

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	const struct tokens *tokens = self;
	size_t count = (size_t)tokens->length + 1, bytes = count * (size_t)tokens->token_bytes;
	int64_t offset = tokens->first_byte + index * tokens->length * tokens->token_bytes;
	/* At the sample's end: there each token lies behind its place, or in it. */
	unsigned char *out = sample, *raw = out + count * sizeof(int32_t) - bytes;

	ddp_status status = read_at(tokens->path, tokens->fd, raw, bytes, offset);
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

	close(tokens->fd);
	free(tokens->path);
	free(tokens);
}

/* A FIFO would block open() for ever, hence O_NONBLOCK before we know. */
static ddp_status open_regular(const char *path, int *fd, int64_t *bytes)
{
	struct stat about;

	int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (opened < 0)
		return ddp_fail_errno(DDP_ERR_IO, errno, "cannot open token file %s", path);
	if (fstat(opened, &about) != 0) {
		ddp_fail_errno(DDP_ERR_IO, errno, "token file %s: cannot stat", path);
		close(opened);
		return DDP_ERR_IO;
	}
	if (!S_ISREG(about.st_mode)) {
		close(opened);
		return ddp_fail(DDP_ERR_INVALID, "token file %s is %s, not a regular file", path,
		                S_ISDIR(about.st_mode) ? "a directory" : "a device or pipe");
	}
	*fd = opened;
	*bytes = about.st_size;
	return DDP_OK;
}

static ddp_status llmc_count(const char *path, int fd, int64_t bytes, int64_t *count)
{
	uint32_t header[3]; /* magic, version, tokens */

	if (bytes < LLMC_HEADER_BYTES)
		return ddp_fail(DDP_ERR_FORMAT, "token file %s: cut short: %" PRId64 " bytes, its "
		                "header alone takes %d", path, bytes, LLMC_HEADER_BYTES);
	ddp_status status = read_at(path, fd, header, sizeof(header), 0);
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
static ddp_status measure(const char *path, int fd, int64_t bytes, ddp_token_format format,
                          int *token_bytes, int64_t *start, int64_t *count)
{
	*token_bytes = format == DDP_TOKENS_BYTES ? 1 : 2;
	*start = 0;
	*count = bytes / *token_bytes;
	switch (format) {
	case DDP_TOKENS_BYTES:
		return DDP_OK;
	case DDP_TOKENS_U16:
		if (bytes % 2 != 0)
			return ddp_fail(DDP_ERR_FORMAT, "token file %s: %" PRId64 " bytes are no whole "
			                "number of 16-bit tokens; was it cut short?", path, bytes);
		return DDP_OK;
	case DDP_TOKENS_LLMC:
		*start = LLMC_HEADER_BYTES;
		return llmc_count(path, fd, bytes, count);
	}
	return ddp_fail(DDP_ERR_INVALID, "token file %s: %d is no ddp_token_format", path, (int)format);
}

ddp_status ddp_tokens_open(const char *path, ddp_token_format format, int length,
                           double first, double last, ddp_dataset *dataset)
{
	int fd = -1;
	int token_bytes;
	int64_t bytes = 0, start, count;

	if (length < 1 || length > LENGTH_MAX)
		return ddp_fail(DDP_ERR_INVALID, "token file %s: samples of %d tokens, must be 1 .. %d",
		                path, length, LENGTH_MAX);
	if (!(first >= 0 && first < last && last <= 1)) /* so put, NaN fails too */
		return ddp_fail(DDP_ERR_INVALID, "token file %s: part %g to %g is not within 0 to 1",
		                path, first, last);
	ddp_status status = open_regular(path, &fd, &bytes);
	if (status != DDP_OK)
		return status;
	status = measure(path, fd, bytes, format, &token_bytes, &start, &count);
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
	char *name = strdup(path);
	if (tokens == NULL || name == NULL) {
		free(tokens);
		free(name);
		status = ddp_fail(DDP_ERR_NOMEM, "token file %s: out of memory", path);
		goto failed;
	}
	*tokens = (struct tokens){
		.path = name, .fd = fd, .token_bytes = token_bytes, .length = length,
		.first_byte = start + begin * token_bytes,
	};
	*dataset = (ddp_dataset){
		.size = (end - begin - 1) / length,
		.sample_bytes = ((size_t)length + 1) * sizeof(int32_t),
		.read = read_sample, .close = close_tokens, .self = tokens,
	};
	return DDP_OK;

failed:
	close(fd);
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
