/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* state/safetensors: files whole, broken and hostile. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "state/safetensors.h"
#include "state/safetensors_write.h"
#include "tests/support/test.h"

static char dir[] = "/tmp/ddp-safetensors-XXXXXX";
static char path[sizeof(dir) + 16];

static int make_directory(void **state)
{
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/file", dir);
	return 0;
}

static int remove_directory(void **state)
{
	unlink(path);
	return rmdir(dir);
}

static const float weight[6] = { 1, -2.5f, 3, 4, 5e-3f, 6 };
static const float bias[2] = { 0.25f, -7 };

static void write_sample(void)
{
	const ddp_safetensors_tensor tensors[] = {
		{ "h.0.weight", 2, (int64_t[]){ 3, 2 }, weight, false },
		{ "h.0.bias \"ä\"", 1, (int64_t[]){ 2 }, bias, false },
	};
	const ddp_safetensors_pair metadata[] = { { "step", "12" }, { "odd", "\"crc32c\":\"" } };
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ddp_safetensors_write(path, fd, tensors, 2, metadata, 2), DDP_OK);
	assert_int_equal(close(fd), 0);
}

static void write_raw(uint64_t length, const char *header, size_t data_bytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	fwrite(&length, sizeof(length), 1, file);
	fwrite(header, strlen(header), 1, file);
	for (size_t i = 0; i < data_bytes; i++)
		fputc('x', file);
	assert_int_equal(fclose(file), 0);
}

static void expect_failure(ddp_status status, const char *says)
{
	ddp_safetensors file;

	assert_int_equal(ddp_safetensors_open(path, &file), status);
	if (strstr(ddp_last_error(), says) == NULL || strstr(ddp_last_error(), path) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", ddp_last_error(), says);
}

TEST(checksum_is_castagnolis)
{
	static unsigned char noise[40000];

	assert_int_equal(ddp_crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(ddp_crc32c_portable(0, "123456789", 9), 0xe3069283);
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (unsigned char)(i * i >> 3);
	for (size_t from = 0; from < 20; from++)
		for (size_t bytes = 0; bytes < sizeof(noise) - 20; bytes += bytes < 900 ? 37 : 4099) {
			uint32_t whole = ddp_crc32c(0, noise + from, bytes);
			assert_int_equal(whole, ddp_crc32c_portable(0, noise + from, bytes));
			uint32_t half = ddp_crc32c(0, noise + from, bytes / 3);
			assert_int_equal(whole, ddp_crc32c(half, noise + from + bytes / 3, bytes - bytes / 3));
		}
}

TEST(written_file_reads_back)
{
	ddp_safetensors file;
	float numbers[6];

	write_sample();
	assert_int_equal(ddp_safetensors_open(path, &file), DDP_OK);
	assert_int_equal(ddp_safetensors_verify(&file), DDP_OK);
	assert_int_equal(file.count, 2);
	assert_int_equal(file.data_start % 64, 0);
	assert_string_equal(ddp_safetensors_metadata(&file, "step"), "12");
	assert_string_equal(ddp_safetensors_metadata(&file, "odd"), "\"crc32c\":\"");
	assert_null(ddp_safetensors_metadata(&file, "none"));
	assert_null(ddp_safetensors_find(&file, "none"));
	const ddp_safetensor *tensor = ddp_safetensors_find(&file, "h.0.weight");
	assert_non_null(tensor);
	assert_string_equal(tensor->dtype, "F32");
	assert_int_equal(tensor->ndim, 2);
	assert_int_equal(tensor->shape[0], 3);
	assert_int_equal(tensor->shape[1], 2);
	assert_int_equal(ddp_safetensors_read(&file, tensor, numbers), DDP_OK);
	assert_memory_equal(numbers, weight, sizeof(weight));
	tensor = ddp_safetensors_find(&file, "h.0.bias \"ä\"");
	assert_non_null(tensor);
	assert_int_equal(ddp_safetensors_read(&file, tensor, numbers), DDP_OK);
	assert_memory_equal(numbers, bias, sizeof(bias));
	ddp_safetensors_close(&file);
}

TEST(python_reads_the_same)
{
	char command[512], output[1024] = "";
	const char *source = getenv("srcdir");

	if (system("python3 -c pass >/dev/null 2>&1") != 0) {
		print_message("python3 is not here: not compared\n");
		return;
	}
	write_sample();
	snprintf(command, sizeof(command), "PYTHONIOENCODING=utf-8 python3 %s/tests/unit/read_safetensors.py %s",
	         source != NULL ? source : ".", path);
	FILE *pipe = popen(command, "r");
	assert_non_null(pipe);
	size_t got = fread(output, 1, sizeof(output) - 1, pipe);
	output[got] = '\0';
	assert_int_equal(pclose(pipe), 0);
	assert_string_equal(output,
	                    "h.0.weight [3, 2] 1 -2.5 3 4 0.005 6\n"
	                    "h.0.bias \"ä\" [2] 0.25 -7\n"
	                    "{'step': '12', 'odd': '\"crc32c\":\"'}\n");
}

/* Whichever byte rots, and wherever the file ends early, somebody notices. */
TEST(every_damaged_byte_and_every_cut_is_noticed)
{
	struct stat about;
	char byte;

	write_sample();
	assert_int_equal(stat(path, &about), 0);
	for (off_t at = 0; at < about.st_size; at++) {
		ddp_safetensors file;
		int fd = open(path, O_RDWR);
		assert_true(fd >= 0);
		assert_int_equal(pread(fd, &byte, 1, at), 1);
		byte = (char)(byte ^ 0x11);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		if (ddp_safetensors_open(path, &file) == DDP_OK) {
			assert_int_equal(ddp_safetensors_verify(&file), DDP_ERR_FORMAT);
			assert_non_null(strstr(ddp_last_error(), "is damaged"));
			ddp_safetensors_close(&file);
		}
		byte = (char)(byte ^ 0x11);
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		close(fd);
	}
	for (off_t bytes = about.st_size - 1; bytes >= 0; bytes--) {
		assert_int_equal(truncate(path, bytes), 0);
		expect_failure(DDP_ERR_FORMAT, "cut short");
	}
}

TEST(files_of_others_need_no_checksums)
{
	const char *header = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
	                     " \"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
	                     " \"e\":{\"dtype\":\"U8\",\"shape\":[3,0],\"data_offsets\":[8,8]}}   ";
	ddp_safetensors file;

	write_raw(strlen(header), header, 12);
	assert_int_equal(ddp_safetensors_open(path, &file), DDP_OK);
	assert_int_equal(ddp_safetensors_verify(&file), DDP_OK);
	assert_int_equal(file.count, 3);
	assert_string_equal(file.tensors[0].name, "s");
	assert_string_equal(file.tensors[1].name, "e");
	assert_string_equal(file.tensors[2].name, "b");
	ddp_safetensors_close(&file);
}

TEST(hostile_headers_are_told_apart)
{
#define TENSOR(name, shape, offsets) \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
	const struct { const char *header; size_t data; const char *says; } bad[] = {
		{ "", 0, "not JSON" },
		{ "[]", 0, "no JSON object" },
		{ "{\"a\":1", 0, "not JSON" },
		{ "{\"a\":1}", 0, "tensor a: dtype (missing)" },
		{ "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: \"shape\"" },
		{ "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a: \"data_offsets\"" },
		{ "{" TENSOR("a", "[1]", "[0,4]") "," TENSOR("a", "[1]", "[0,4]") "}", 4, "not JSON" },
		{ "{" TENSOR("a", "[1]", "[0]") "}", 4, "no pair" },
		{ "{" TENSOR("a", "[1]", "[0,4.0]") "}", 4, "no pair" },
		{ "{" TENSOR("a", "[1]", "[4,0]") "}", 4, "are no range" },
		{ "{" TENSOR("a", "[1]", "[-4,0]") "}", 4, "are no range" },
		{ "{" TENSOR("a", "[1]", "[0,8]") "}", 8, "take 4 bytes, data_offsets span 8" },
		{ "{" TENSOR("a", "[2]", "[0,8]") "}", 4, "cut short" },
		{ "{" TENSOR("a", "[-1,-1]", "[0,4]") "}", 4, "dimension 0" },
		{ "{" TENSOR("a", "[1.5]", "[0,4]") "}", 4, "dimension 0" },
		{ "{" TENSOR("a", "[4294967296,4294967296]", "[0,4]") "}", 4, "too large" },
		{ "{" TENSOR("a", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "\"shape\"" },
		{ "{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[1]", "[4,8]") "}", 8,
		  "tensor b overlaps tensor a" },
		{ "{" TENSOR("a", "[1]", "[0,4]") "," TENSOR("b", "[1]", "[8,12]") "}", 12, "a gap of 4" },
		{ "{" TENSOR("a", "[1]", "[0,4]") "}", 5, "1 bytes behind" },
		{ "{\"__metadata__\":[]}", 0, "__metadata__" },
		{ "{\"__metadata__\":{\"a\":1}}", 0, "metadata \"a\" is no text" },
		{ "{\"__metadata__\":{\"crc32c\":\"12345678\"}}", 0, "header is damaged" },
		{ "{\"__metadata__\":{\"crc32c\": \"12345678\"}}", 0, "was the file edited" },
		{ "{\"__metadata__\":{\"crc32c.a\":\"12345678\"}}", 0, "checksum is missing" },
		{ "{\"__metadata__\":{\"crc32c\":\"12\"}}", 0, "was the file edited" },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		write_raw(strlen(bad[i].header), bad[i].header, bad[i].data);
		expect_failure(DDP_ERR_FORMAT, bad[i].says);
	}
	write_raw(DDP_SAFETENSORS_HEADER_MAX + 1u, "{}", 0);
	expect_failure(DDP_ERR_FORMAT, "too long");
	write_raw(UINT64_MAX, "{}", 0);
	expect_failure(DDP_ERR_FORMAT, "too long");
	write_raw(3, "{}", 0);
	expect_failure(DDP_ERR_FORMAT, "cut short");
}

TEST(deeply_nested_header_is_no_stack_overflow)
{
	char *header = malloc(1000001);

	assert_non_null(header);
	memset(header, '[', 1000000);
	header[1000000] = '\0';
	write_raw(1000000, header, 0);
	expect_failure(DDP_ERR_FORMAT, "not JSON");
	free(header);
}

/* Each by its name: in no more time than a few times that of reading the header. */
TEST(many_tensors_are_found_fast)
{
	enum { MANY = 30000 };
	const float value = 1;
	ddp_safetensors_tensor *tensors = calloc(MANY, sizeof(*tensors));
	char (*names)[16] = calloc(MANY, sizeof(*names));
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ddp_safetensors file;

	assert_non_null(tensors);
	assert_non_null(names);
	for (int i = 0; i < MANY; i++) {
		snprintf(names[i], sizeof(names[i]), "t%d", i);
		tensors[i] = (ddp_safetensors_tensor){ names[i], 0, NULL, &value, false };
	}
	assert_int_equal(ddp_safetensors_write(path, fd, tensors, MANY, NULL, 0), DDP_OK);
	assert_int_equal(close(fd), 0);
	clock_t start = clock();
	assert_int_equal(ddp_safetensors_open(path, &file), DDP_OK);
	clock_t opened = clock();
	for (int i = 0; i < MANY; i++)
		assert_string_equal(ddp_safetensors_find(&file, names[i])->name, names[i]);
	clock_t found = clock();
	assert_null(ddp_safetensors_find(&file, "t"));
	assert_true(found - opened < 3 * (opened - start));
	ddp_safetensors_close(&file);
	free(tensors);
	free(names);
}

/* Sums are taken slice by slice while the data are written, and the header follows. */
TEST(a_large_tensor_has_its_sum)
{
	enum { LARGE = 11 << 18 };
	float *numbers = malloc(LARGE * sizeof(float)), *again = malloc(LARGE * sizeof(float));
	const ddp_safetensors_tensor tensors[] = {
		{ "small", 1, (int64_t[]){ 2 }, bias, false },
		{ "large", 2, (int64_t[]){ 11, LARGE / 11 }, numbers, false },
		{ "empty", 1, (int64_t[]){ 0 }, bias, false },
		{ "last", 1, (int64_t[]){ 6 }, weight, false },
	};
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ddp_safetensors file;

	assert_non_null(numbers);
	assert_non_null(again);
	for (int i = 0; i < LARGE; i++)
		numbers[i] = (float)(i % 1000003);
	assert_int_equal(ddp_safetensors_write(path, fd, tensors, 4, NULL, 0), DDP_OK);
	assert_int_equal(close(fd), 0);
	assert_int_equal(ddp_safetensors_open(path, &file), DDP_OK);
	assert_int_equal(ddp_safetensors_verify(&file), DDP_OK);
	assert_int_equal(ddp_safetensors_read(&file, ddp_safetensors_find(&file, "large"), again), DDP_OK);
	assert_memory_equal(numbers, again, LARGE * sizeof(float));
	assert_int_equal(ddp_safetensors_read(&file, ddp_safetensors_find(&file, "last"), again), DDP_OK);
	assert_memory_equal(weight, again, sizeof(weight));
	ddp_safetensors_close(&file);
	free(numbers);
	free(again);
}

TEST(what_is_no_file_is_refused)
{
	unlink(path);
	expect_failure(DDP_ERR_IO, "No such file");
	assert_int_equal(mkfifo(path, 0600), 0);
	expect_failure(DDP_ERR_INVALID, "not a regular file");
	unlink(path);
}

int main(void)
{
	return test_run(make_directory, remove_directory);
}
