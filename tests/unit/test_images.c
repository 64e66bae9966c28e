/* SPDX-License-Identifier: Apache-2.0 */
/* runs: unit asan; all: tsan */
/* data/images, data/transform: image files, whole and broken, and what becomes of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ddp.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

static char dir[] = "/tmp/ddp-images-XXXXXX";
static char images[sizeof(dir) + 16], labels[sizeof(dir) + 16];

static int make_directory(void **state)
{
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(images, sizeof(images), "%s/images", dir);
	snprintf(labels, sizeof(labels), "%s/labels", dir);
	return 0;
}

static int remove_directory(void **state)
{
	unlink(images);
	unlink(labels);
	return rmdir(dir);
}

static void write_file(const char *path, const void *data, size_t bytes)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	assert_int_equal(fclose(file), 0);
}

/* Two images of 2 x 3. */
static const unsigned char good_images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3,
	1, 2, 3, 4, 5, 6, 250, 251, 252, 253, 254, 255};
static const unsigned char good_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 9};

static void write_good(void)
{
	write_file(images, good_images, sizeof(good_images));
	write_file(labels, good_labels, sizeof(good_labels));
}

TEST(idx_gives_a_label_and_an_image)
{
	ddp_image_shape shape;
	ddp_dataset dataset;
	unsigned char sample[7];

	write_good();
	assert_int_equal(ddp_idx_open(images, labels, &shape, &dataset), DDP_OK);
	assert_true(shape.channels == 1 && shape.height == 2 && shape.width == 3);
	assert_true(dataset.size == 2 && dataset.sample_bytes == sizeof(sample));
	const uint64_t digest = dataset.digest;
	assert_int_equal(dataset.read(dataset.self, 1, sample), DDP_OK);
	assert_memory_equal(sample, ((const unsigned char[]){9, 250, 251, 252, 253, 254, 255}), sizeof(sample));
	assert_int_equal(truncate(images, sizeof(good_images) - 2), 0);
	assert_int_equal(dataset.read(dataset.self, 1, sample), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "ends at byte 26"));
	ddp_dataset_close(&dataset);

	write_good();
	write_file(labels, "\0\0\10\1\0\0\0\2\7\10", sizeof(good_labels)); /* label 8 for 9 */
	assert_int_equal(ddp_idx_open(images, labels, &shape, &dataset), DDP_OK);
	assert_true(digest != 0 && dataset.digest != 0 && dataset.digest != digest);
	ddp_dataset_close(&dataset);
}

/* With one byte of a good file changed, or the file cut to `bytes`, if that is not 0. */
static void expect_refusal(const char *path, size_t at, unsigned char value, size_t bytes, const char *says)
{
	unsigned char copy[sizeof(good_images)];
	const bool first = path == images;
	const size_t whole = first ? sizeof(good_images) : sizeof(good_labels);
	ddp_image_shape shape;
	ddp_dataset dataset;

	write_good();
	memcpy(copy, first ? good_images : good_labels, whole);
	copy[at] = value;
	write_file(path, copy, bytes > 0 ? bytes : whole);
	assert_int_equal(ddp_idx_open(images, labels, &shape, &dataset), DDP_ERR_FORMAT);
	if (strstr(ddp_last_error(), says) == NULL || strstr(ddp_last_error(), path) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", ddp_last_error(), says);
}

TEST(a_damaged_idx_file_is_named_by_byte)
{
	expect_refusal(images, 0, 1, 0, "byte 0 is 0x01, not 0");
	expect_refusal(images, 2, 13, 0, "byte 2 is 0x0d, not 0x08");
	expect_refusal(images, 3, 1, 0, "byte 3 says 1 dimensions, but images have 3");
	expect_refusal(images, 7, 3, 0, "ends at byte 28: its header says 34 bytes");
	expect_refusal(images, 7, 1, 0, "goes on until it ends at byte 28: its header says 22 bytes");
	expect_refusal(images, 11, 0, 0, "bytes 8 to 11 say a size of 0");
	expect_refusal(images, 12, 0xff, 0, "bytes 12 to 15 say a size of 4278190083");
	expect_refusal(images, 0, 0, 9, "ends at byte 9");
	expect_refusal(labels, 3, 3, 0, "byte 3 says 3 dimensions, but labels have 1; were the files");
	expect_refusal(labels, 7, 1, 9, "has 1 labels (bytes 4 to 7)");
	write_good();
	write_file(labels, "\x1f\x8b\x08\0\0\0\0\0\0\0", 10);
	ddp_image_shape shape;
	ddp_dataset dataset;
	assert_int_equal(ddp_idx_open(images, labels, &shape, &dataset), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "gunzip"));
	assert_int_equal(ddp_idx_open("/nonexistent", labels, &shape, &dataset), DDP_ERR_IO);
}

TEST(cifar_files_follow_one_another)
{
	enum { BYTES = 3073 };
	static unsigned char file[3 * BYTES], sample[BYTES];
	const char *const paths[] = {images, labels};
	ddp_image_shape shape;
	ddp_dataset dataset;

	for (int i = 0; i < 3; i++) {
		file[i * BYTES] = (unsigned char)(i + 1);
		file[i * BYTES + 3072] = (unsigned char)(100 + i);
	}
	write_file(images, file, 2 * BYTES);
	file[2 * BYTES] = 10;
	write_file(labels, file, 3 * BYTES);
	assert_int_equal(ddp_cifar10_open(paths, 2, &shape, &dataset), DDP_OK);
	assert_true(shape.channels == 3 && shape.height == 32 && shape.width == 32 && dataset.size == 5);
	assert_int_equal(dataset.read(dataset.self, 3, sample), DDP_OK);
	assert_true(sample[0] == 2 && sample[3072] == 101);
	assert_int_equal(dataset.read(dataset.self, 4, sample), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "byte 6146 is label 10, must be 0 to 9"));
	const uint64_t digest = dataset.digest;
	ddp_dataset_close(&dataset);

	file[2 * BYTES] = 9;
	write_file(labels, file, 3 * BYTES);
	assert_int_equal(ddp_cifar10_open(paths, 2, &shape, &dataset), DDP_OK);
	assert_true(digest != 0 && dataset.digest != 0 && dataset.digest != digest);
	ddp_dataset_close(&dataset);

	write_file(labels, file, BYTES + 5);
	assert_int_equal(ddp_cifar10_open(paths, 2, &shape, &dataset), DDP_ERR_FORMAT);
	assert_non_null(strstr(ddp_last_error(), "ends at byte 3078, within the sample that begins at byte 3073"));
	write_file(labels, file, 0);
	assert_int_equal(ddp_cifar10_open(paths, 2, &shape, &dataset), DDP_ERR_FORMAT);
	assert_int_equal(ddp_cifar10_open(paths, 0, &shape, &dataset), DDP_ERR_INVALID);
}

TEST(images_become_numbers_channels_last)
{
	const ddp_image_shape shape = {.channels = 2, .height = 1, .width = 2};
	const ddp_image_transform t = {DDP_IMAGE_TRANSFORM_FIELDS, .mean = {0.5f, 0.25f}, .deviation = {0.5f, 1}};
	const unsigned char samples[] = {3, 0, 255, 51, 0, /**/ 9, 255, 255, 255, 102};
	const float wanted[] = {-1, -0.05f, 1, -0.25f, 1, 0.75f, 1, 0.15f};
	float out[8];
	int32_t found[2];

	assert_int_equal(ddp_transform_images(&shape, &t, samples, 2, 0, out, found), DDP_OK);
	assert_true(found[0] == 3 && found[1] == 9);
	for (int i = 0; i < 8; i++)
		assert_true(fabsf(out[i] - wanted[i]) < 1e-6f);
	const ddp_image_transform plain = {DDP_IMAGE_TRANSFORM_FIELDS};
	assert_int_equal(ddp_transform_images(&(ddp_image_shape){1, 0, 4}, &plain, samples, 2, 0, out, found), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "images of 0 lines and 4 columns cannot be transformed: height and width must"));
	assert_int_equal(ddp_transform_images(&(ddp_image_shape){9, 4, 4}, &plain, samples, 2, 0, out, found), DDP_ERR_INVALID);
	assert_non_null(strstr(ddp_last_error(), "images of 9 channels cannot be transformed: channels must be 1 to 4"));
	const ddp_image_transform bad = {DDP_IMAGE_TRANSFORM_FIELDS, .crop_padding = 2};
	assert_int_equal(ddp_transform_images(&shape, &bad, samples, 2, 0, out, found), DDP_ERR_INVALID);
}

/* An image of which each pixel tells where it was: each cut and mirroring must come, about
   equally often, and the same again for the same number. */
TEST(cuts_and_mirrors_are_drawn_by_number)
{
	enum { SIDE = 5, PADDING = 1, SHIFTS = 3, DRAWS = 3600 };
	const ddp_image_shape shape = {.channels = 1, .height = SIDE, .width = SIDE};
	const ddp_image_transform t = {DDP_IMAGE_TRANSFORM_FIELDS, .crop_padding = PADDING, .flip = true, .seed = 5};
	unsigned char sample[1 + SIDE * SIDE] = {0};
	int seen[2][SHIFTS][SHIFTS] = {0};
	float out[SIDE * SIDE], again[SIDE * SIDE];
	int32_t label;

	for (int i = 0; i < SIDE * SIDE; i++)
		sample[1 + i] = (unsigned char)(i + 1);
	for (uint64_t n = 0; n < DRAWS; n++) {
		assert_int_equal(ddp_transform_images(&shape, &t, sample, 1, n, out, &label), DDP_OK);
		assert_int_equal(ddp_transform_images(&shape, &t, sample, 1, n, again, &label), DDP_OK);
		assert_memory_equal(out, again, sizeof(out));
		const int middle = (int)lroundf(out[2 * SIDE + 2] * 255) - 1;
		const int next = (int)lroundf(out[2 * SIDE + 3] * 255) - 1;
		const bool mirrored = next < middle;
		const int down = middle / SIDE - 2, right = middle % SIDE - 2;
		for (int i = 0; i < SIDE * SIDE; i++) {
			const int y = i / SIDE + down, x = (mirrored ? SIDE - 1 - i % SIDE : i % SIDE) + right;
			const bool inside = y >= 0 && y < SIDE && x >= 0 && x < SIDE;
			assert_int_equal(lroundf(out[i] * 255), inside ? y * SIDE + x + 1 : 0);
		}
		seen[mirrored][down + PADDING][right + PADDING]++;
	}
	for (int i = 0; i < 2 * SHIFTS * SHIFTS; i++) {
		const int times = (&seen[0][0][0])[i];
		assert_true(times >= 140 && times <= 260); /* 200, and four deviations */
	}
}

int main(void)
{
	return test_run(make_directory, remove_directory);
}
