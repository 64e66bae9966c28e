/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan tsan; all: unit */
/* data/tokens: token files, whole and broken. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp.h"
#include "tests/support/test.h"

static char dir[] = "/tmp/ddp-tokens-XXXXXX";
static char path[sizeof(dir) + 16];

static int make_directory(void **state)
{
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/tokens", dir);
	return 0;
}

static int remove_directory(void **state)
{
	unlink(path);
	return rmdir(dir);
}

static void write_file(const void *data, size_t bytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

static void write_llmc(int32_t magic, int32_t version, int32_t said, int32_t tokens)
{
	int32_t header[256] = { magic, version, said };
	char file[sizeof(header) + 2 * 100];
	uint16_t values[100];

	for (int i = 0; i < tokens; i++)
		values[i] = (uint16_t)(50000 + i);
	memcpy(file, header, sizeof(header));
	memcpy(file + sizeof(header), values, 2 * (size_t)tokens);
	write_file(file, sizeof(header) + 2 * (size_t)tokens);
}

static void expect_failure(ddp_token_format format, int length, double first, double last,
                           ddp_status status, const char *says)
{
	ddp_dataset dataset;

	assert_int_equal(ddp_tokens_open(path, format, length, first, last, &dataset), status);
	if (strstr(ddp_last_error(), says) == NULL || strstr(ddp_last_error(), path) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", ddp_last_error(), says);
}

TEST(bytes_become_samples_that_share_their_ends)
{
	ddp_dataset dataset;
	int32_t sample[4];
	const unsigned char text[] = { 10, 11, 12, 13, 14, 15, 16, 255, 18 };

	write_file(text, sizeof(text));
	assert_int_equal(ddp_tokens_open(path, DDP_TOKENS_BYTES, 3, 0, 1, &dataset), DDP_OK);
	assert_int_equal(dataset.size, 2);
	assert_int_equal(dataset.sample_bytes, sizeof(sample));
	assert_int_equal(dataset.read(dataset.self, 1, sample), DDP_OK);
	assert_memory_equal(sample, ((int32_t[]){ 13, 14, 15, 16 }), sizeof(sample));
	assert_int_equal(dataset.read(dataset.self, 0, sample), DDP_OK);
	assert_memory_equal(sample, ((int32_t[]){ 10, 11, 12, 13 }), sizeof(sample));
	ddp_dataset_close(&dataset);
	assert_null(dataset.self);
}

TEST(shorts_and_llmc_files_are_unsigned)
{
	ddp_dataset dataset;
	int32_t sample[3];
	const unsigned char raw[] = { 1, 0, 0, 128, 255, 255 };

	write_file(raw, sizeof(raw));
	assert_int_equal(ddp_tokens_open(path, DDP_TOKENS_U16, 2, 0, 1, &dataset), DDP_OK);
	assert_int_equal(dataset.read(dataset.self, 0, sample), DDP_OK);
	assert_memory_equal(sample, ((int32_t[]){ 1, 32768, 65535 }), sizeof(sample));
	ddp_dataset_close(&dataset);

	write_llmc(20240520, 1, 100, 100);
	assert_int_equal(ddp_tokens_open(path, DDP_TOKENS_LLMC, 2, 0, 1, &dataset), DDP_OK);
	assert_int_equal(dataset.size, 49);
	assert_int_equal(dataset.read(dataset.self, 48, sample), DDP_OK);
	assert_memory_equal(sample, ((int32_t[]){ 50096, 50097, 50098 }), sizeof(sample));
	ddp_dataset_close(&dataset);
}

TEST(broken_files_are_told_apart)
{
	unsigned char raw[7] = { 0 };

	unlink(path);
	expect_failure(DDP_TOKENS_BYTES, 2, 0, 1, DDP_ERR_IO, "No such file");
	write_file(raw, 0);
	expect_failure(DDP_TOKENS_BYTES, 2, 0, 1, DDP_ERR_FORMAT, "0 tokens");
	write_file(raw, 7);
	expect_failure(DDP_TOKENS_U16, 2, 0, 1, DDP_ERR_FORMAT, "cut short");
	expect_failure(DDP_TOKENS_BYTES, 7, 0, 1, DDP_ERR_FORMAT, "7 tokens");
	expect_failure(DDP_TOKENS_BYTES, 6, 0, 0.9, DDP_ERR_FORMAT, "6 tokens");
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "cut short");
	write_llmc(20240520, 1, 100, 99);
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "cut short");
	write_llmc(20240520, 1, 98, 99);
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "too long");
	write_llmc(20240520, 1, -1, 99);
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "cut short");
	write_llmc(20240521, 1, 99, 99);
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "magic");
	write_llmc(20240520, 7, 99, 99);
	expect_failure(DDP_TOKENS_LLMC, 2, 0, 1, DDP_ERR_FORMAT, "version 7");
}

TEST(what_is_no_file_is_refused_without_blocking)
{
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	expect_failure(DDP_TOKENS_BYTES, 2, 0, 1, DDP_ERR_INVALID, "a directory");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	expect_failure(DDP_TOKENS_BYTES, 2, 0, 1, DDP_ERR_INVALID, "pipe");
	unlink(path);
}

/* Root reads everything, so a child that is nobody tries. */
TEST(unreadable_file_is_an_error)
{
	int how;

	write_file("abcd", 4);
	assert_int_equal(chmod(path, 0), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		ddp_dataset dataset;
		bool changed = geteuid() != 0 || setuid(65534) == 0;
		ddp_status status = ddp_tokens_open(path, DDP_TOKENS_BYTES, 2, 0, 1, &dataset);
		_exit(changed && status == DDP_ERR_IO &&
		      strstr(ddp_last_error(), "Permission denied") != NULL ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &how, 0), child);
	assert_int_equal(how, 0);
	assert_int_equal(chmod(path, 0600), 0);
}

TEST(wrong_arguments_are_named)
{
	write_file("abcdefgh", 8);
	expect_failure(DDP_TOKENS_BYTES, 0, 0, 1, DDP_ERR_INVALID, "samples of 0");
	expect_failure(DDP_TOKENS_BYTES, 1 << 30, 0, 1, DDP_ERR_INVALID, "samples of");
	expect_failure((ddp_token_format)9, 2, 0, 1, DDP_ERR_INVALID, "9 is no");
	expect_failure(DDP_TOKENS_BYTES, 2, 0.5, 0.5, DDP_ERR_INVALID, "0.5 to 0.5");
	expect_failure(DDP_TOKENS_BYTES, 2, -0.1, 1, DDP_ERR_INVALID, "-0.1");
	expect_failure(DDP_TOKENS_BYTES, 2, 0, 1.5, DDP_ERR_INVALID, "1.5");
	expect_failure(DDP_TOKENS_BYTES, 2, 0.0 / 0.0, 1, DDP_ERR_INVALID, "nan");
}

TEST(file_that_shrinks_in_use_is_an_error_of_the_read)
{
	ddp_dataset dataset;
	int32_t sample[3];

	write_file("abcdefgh", 8);
	assert_int_equal(ddp_tokens_open(path, DDP_TOKENS_BYTES, 2, 0, 1, &dataset), DDP_OK);
	assert_int_equal(truncate(path, 4), 0);
	assert_int_equal(dataset.read(dataset.self, 0, sample), DDP_OK);
	assert_int_equal(dataset.read(dataset.self, 2, sample), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "cut short while in use"));
	ddp_dataset_close(&dataset);
}

/* ---- several files ---------------------------------------------------------------------- */

static char pattern[sizeof(dir) + 24];

/* Files of `tokens` bytes that count on from one to the next. */
static void write_shard(const char *name, int first, int tokens)
{
	unsigned char bytes[100];

	for (int i = 0; i < tokens; i++)
		bytes[i] = (unsigned char)(first + i);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	write_file(bytes, (size_t)tokens);
}

static int make_shards(void **state)
{
	write_shard("shard_10", 30, 8);
	write_shard("shard_9", 20, 9);
	write_shard("shard_1", 0, 20);
	snprintf(pattern, sizeof(pattern), "%s/shard_*", dir);
	return 0;
}

static int remove_shards(void **state)
{
	char command[sizeof(dir) + 16];

	snprintf(command, sizeof(command), "rm -f %s/*", dir);
	snprintf(path, sizeof(path), "%s/tokens", dir);
	return system(command);
}

/* That samples of five tokens begin with these. */
static void expect_samples(double first, double last, int count, const int *begins)
{
	ddp_dataset dataset;
	int32_t sample[5];

	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, first, last, &dataset), DDP_OK);
	assert_int_equal(dataset.size, count);
	for (int i = 0; i < count; i++) {
		assert_int_equal(dataset.read(dataset.self, i, sample), DDP_OK);
		for (int k = 0; k < 5; k++)
			assert_int_equal(sample[k], begins[i] + k);
	}
	ddp_dataset_close(&dataset);
}

TEST_WITH(files_of_a_pattern_are_one_dataset_by_their_names, make_shards, remove_shards)
{
	expect_samples(0, 1, 7, (int[]){ 0, 4, 8, 12, 20, 24, 30 });
	/* Of 37 tokens 22 and 15: of the second file 2 and 7. */
	expect_samples(0, 0.6, 4, (int[]){ 0, 4, 8, 12 });
	expect_samples(0.6, 1, 2, (int[]){ 22, 30 });
	snprintf(pattern, sizeof(pattern), "%s/shard_{10,1}", dir);
	expect_samples(0, 1, 5, (int[]){ 0, 4, 8, 12, 30 });
}

TEST_WITH(each_alternative_matches_and_each_file_counts_once, make_shards, remove_shards)
{
	ddp_dataset dataset;

	snprintf(pattern, sizeof(pattern), "%s/shard_{1*,1,9}", dir);
	expect_samples(0, 1, 7, (int[]){ 0, 4, 8, 12, 20, 24, 30 });
	snprintf(pattern, sizeof(pattern), "%s/{shard_{1{0,},9}}", dir);
	expect_samples(0, 1, 7, (int[]){ 0, 4, 8, 12, 20, 24, 30 });
	snprintf(pattern, sizeof(pattern), "%s/shard_{1,2}", dir);
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "shard_2: No such file"));
	snprintf(pattern, sizeof(pattern), "%s/shard_{1,2*}", dir);
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "shard_2*: No such file"));
	snprintf(pattern, sizeof(pattern), "%s/shard_{1,*", dir);
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "shard_{1,*: No such file"));
}

TEST_WITH(a_file_is_taken_by_its_name_before_a_pattern_is, make_shards, remove_shards)
{
	write_shard("shard_[1]", 50, 5);
	strcpy(pattern, path);
	expect_samples(0, 1, 1, (int[]){ 50 });
}

static uint64_t digest_of(double first, double last)
{
	ddp_dataset dataset;

	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, first, last, &dataset), DDP_OK);
	const uint64_t digest = dataset.digest;
	ddp_dataset_close(&dataset);
	return digest;
}

/* So that ranks find out that theirs differ, though there are as many samples. */
TEST_WITH(files_of_other_bytes_have_another_digest, make_shards, remove_shards)
{
	const uint64_t digest = digest_of(0, 1);

	assert_true(digest != 0 && digest == digest_of(0, 1));
	assert_true(digest != digest_of(0.2, 1));
	write_shard("shard_10", 31, 8);
	assert_true(digest != digest_of(0, 1));
	write_shard("shard_10", 30, 9); /* as many tokens and samples, in other files */
	write_shard("shard_9", 20, 8);
	assert_true(digest != digest_of(0, 1));
	write_shard("shard_10", 30, 8);
	write_shard("shard_9", 20, 9);
	assert_true(digest == digest_of(0, 1));
}

/* The first, the last, and one of those in between that are looked at. */
TEST_WITH(a_large_files_ends_and_middle_count, make_shards, remove_shards)
{
	const off_t bytes = 3 << 20, places[] = { 0, bytes / 3, bytes - 1 };
	uint64_t before;

	write_shard("shard_1", 0, 1);
	strcpy(pattern, path);
	assert_int_equal(truncate(path, bytes), 0);
	before = digest_of(0, 1);
	for (int i = 0; i < 3; i++) {
		int fd = open(path, O_WRONLY);
		assert_true(fd >= 0);
		assert_int_equal(pwrite(fd, "x", 1, places[i]), 1);
		assert_int_equal(close(fd), 0);
		assert_true(digest_of(0, 1) != before);
		before = digest_of(0, 1);
	}
}

TEST_WITH(the_damaged_one_of_several_files_is_named, make_shards, remove_shards)
{
	ddp_dataset dataset;

	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_U16, 2, 0, 1, &dataset), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "shard_9: it ends at byte 9, within a 16-bit token"));
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 8, 0, 1, &dataset), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "shard_10: 8 tokens, but one sample takes 9"));
	/* Each file has room for a sample, but no part of one. */
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 7, 0.5, 0.75, &dataset), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "9 tokens in the part 0.5 to 0.75, but one sample takes 8"));
	snprintf(pattern, sizeof(pattern), "%s/none_*", dir);
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset), DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "none_*: No such file"));
}

TEST_WITH(too_many_files_are_an_error_that_says_what_to_do, make_shards, remove_shards)
{
	struct rlimit before;
	ddp_dataset dataset;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	int next = dup(0); /* the lowest that is free, which the folder and the second file would take */
	assert_true(next > 0);
	close(next);
	const struct rlimit few = { .rlim_cur = (rlim_t)next + 1, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	ddp_status status = ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(status, DDP_ERR_IO);
	assert_non_null(strstr(ddp_last_error(), "shard_9, as a dataset keeps all its files open (raise ulimit -n)"));
	int32_t sample[5];
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_BYTES, 4, 0, 1, &dataset), DDP_OK);
	assert_int_equal(dataset.read(dataset.self, 6, sample), DDP_OK);
	ddp_dataset_close(&dataset);
}

/* Sparse ones: the disk keeps next to nothing of them. */
TEST_WITH(files_may_be_beyond_4_gib, make_shards, remove_shards)
{
	const int64_t bytes = (INT64_C(9) << 30) + 2, length = 1024, index = (INT64_C(9) << 29) / length - 1;
	const uint16_t last[3] = { 60000, 60001, 60002 };
	int32_t sample[1025];
	ddp_dataset dataset;

	write_shard("shard_1", 0, 0);
	assert_int_equal(truncate(path, bytes), 0);
	write_shard("shard_2", 0, 0);
	int fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, last, sizeof(last), bytes - (int64_t)sizeof(last)), sizeof(last));
	assert_int_equal(close(fd), 0);
	snprintf(pattern, sizeof(pattern), "%s/shard_[12]", dir);
	assert_int_equal(ddp_tokens_open(pattern, DDP_TOKENS_U16, (int)length, 0, 1, &dataset), DDP_OK);
	assert_int_equal(dataset.size, 2 * (index + 1));
	assert_int_equal(dataset.read(dataset.self, index, sample), DDP_OK);
	assert_int_equal(sample[1024], 0);
	assert_int_equal(dataset.read(dataset.self, dataset.size - 1, sample), DDP_OK);
	assert_int_equal(sample[1021], 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(sample[1022 + i], last[i]);
	ddp_dataset_close(&dataset);
}

struct reader {
	const ddp_dataset *dataset;
	int64_t index, wrong;
};

static void *read_again_and_again(void *argument)
{
	struct reader *reader = argument;
	int32_t sample[65];

	for (int i = 0; i < 2000; i++) {
		if (reader->dataset->read(reader->dataset->self, reader->index, sample) != DDP_OK)
			reader->wrong++;
		for (int k = 0; k < 65; k++)
			reader->wrong += sample[k] != (reader->index * 64 + k) % 251;
	}
	return NULL;
}

/* As two loaders of one dataset do. */
TEST(threads_read_one_dataset_at_once)
{
	unsigned char bytes[129];
	ddp_dataset dataset;
	pthread_t threads[2];
	struct reader readers[2];

	for (int i = 0; i < 129; i++)
		bytes[i] = (unsigned char)(i % 251);
	write_file(bytes, sizeof(bytes));
	assert_int_equal(ddp_tokens_open(path, DDP_TOKENS_BYTES, 64, 0, 1, &dataset), DDP_OK);
	for (int t = 0; t < 2; t++) {
		readers[t] = (struct reader){ .dataset = &dataset, .index = t };
		assert_int_equal(pthread_create(&threads[t], NULL, read_again_and_again, &readers[t]), 0);
	}
	for (int t = 0; t < 2; t++) {
		assert_int_equal(pthread_join(threads[t], NULL), 0);
		assert_int_equal(readers[t].wrong, 0);
	}
	ddp_dataset_close(&dataset);
}

int main(void)
{
	return test_run(make_directory, remove_directory);
}
