/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic: makes images in the formats of MNIST and of CIFAR-10, and tokens in that of llm.c,
   where data cannot be had. A class is some spots; an image of it has them moved a little, and
   noise. A token tells which few may come next. The files' names begin with "synthetic-", so
   that nobody takes them for the real ones. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "models/random.h"

enum { CLASSES = 10, SPOTS = 5, CHANNELS_MAX = 3, SIDE_MAX = 32, SHIFT = 2 };
enum { VOCABULARY = 512, CHOICES = 3, SHARDS = 2, LLMC_HEADER = 256 /* int32 */, LLMC_MAGIC = 20240520, LLMC_VERSION = 1 };

struct kind {
	const char *name;
	int channels, side;
	const char *images[2], *labels[2]; /* to train on, to test with; labels NULL: in the same file */
};

static const struct kind kinds[] = {
	{"mnist", 1, 28, {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"},
	 {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"}},
	{"cifar10", 3, 32, {"data_batch_1.bin", "test_batch.bin"}, {NULL, NULL}},
};

static uint64_t state;

/* From 0 to 1 */
static double uniform(void)
{
	return (double)(next_random(&state) >> 11) * 0x1p-53;
}

static double patterns[CLASSES][CHANNELS_MAX][SIDE_MAX][SIDE_MAX];

static void draw_spot(double pattern[SIDE_MAX][SIDE_MAX], int side, double strength)
{
	const double down = side * (0.2 + 0.6 * uniform()), right = side * (0.2 + 0.6 * uniform());
	const double width = side * (0.06 + 0.1 * uniform());

	for (int y = 0; y < side; y++)
		for (int x = 0; x < side; x++) {
			const double far = ((y - down) * (y - down) + (x - right) * (x - right)) / (width * width);
			pattern[y][x] += strength * exp(-far);
		}
}

static void draw_patterns(const struct kind *k)
{
	for (int c = 0; c < CLASSES; c++)
		for (int channel = 0; channel < k->channels; channel++)
			for (int spot = 0; spot < SPOTS; spot++)
				draw_spot(patterns[c][channel], k->side, 100 + 155 * uniform());
}

static void draw_image(const struct kind *k, int class, unsigned char *image)
{
	const int down = (int)(uniform() * (2 * SHIFT + 1)) - SHIFT, right = (int)(uniform() * (2 * SHIFT + 1)) - SHIFT;

	for (int channel = 0; channel < k->channels; channel++)
		for (int y = 0; y < k->side; y++)
			for (int x = 0; x < k->side; x++) {
				const int from_y = y + down, from_x = x + right;
				const bool inside = from_y >= 0 && from_y < k->side && from_x >= 0 && from_x < k->side;
				const double value = (inside ? patterns[class][channel][from_y][from_x] : 0) +
				                     60 * (uniform() - 0.5);
				*image++ = (unsigned char)fmin(255, fmax(0, value));
			}
}

/* ---- files ---------------------------------------------------------------------------------- */

static void fail(const char *path)
{
	fprintf(stderr, "synthetic: cannot write %s: %s\n", path, strerror(errno));
	exit(EXIT_FAILURE);
}

static FILE *create(const char *folder, const char *name, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/synthetic-%s", folder, name);
	FILE *file = open_own_file("synthetic", path, true);
	if (file == NULL)
		exit(EXIT_FAILURE);
	return file;
}

static void put(FILE *file, const char *path, const void *data, size_t bytes)
{
	if (fwrite(data, 1, bytes, file) != bytes)
		fail(path);
}

static void put_header(FILE *file, const char *path, int dimensions, const uint32_t *sizes)
{
	unsigned char header[4 + 4 * 3] = {0, 0, 8, (unsigned char)dimensions};

	for (int i = 0; i < dimensions; i++)
		for (int byte = 0; byte < 4; byte++)
			header[4 + 4 * i + byte] = (unsigned char)(sizes[i] >> (24 - 8 * byte));
	put(file, path, header, (size_t)(4 + 4 * dimensions));
}

static void finish(FILE *file, const char *path)
{
	if (fclose(file) != 0)
		fail(path);
	printf("%s\n", path);
}

static void write_set(const struct kind *k, const char *folder, int which, uint32_t count)
{
	char images_path[4096], labels_path[4096];
	unsigned char image[CHANNELS_MAX * SIDE_MAX * SIDE_MAX];
	const uint32_t side = (uint32_t)k->side;
	FILE *images = create(folder, k->images[which], images_path, sizeof(images_path)), *labels = images;

	if (k->labels[which] != NULL) {
		labels = create(folder, k->labels[which], labels_path, sizeof(labels_path));
		put_header(images, images_path, 3, (const uint32_t[]){count, side, side});
		put_header(labels, labels_path, 1, &count);
	}
	for (uint32_t i = 0; i < count; i++) {
		const unsigned char class = (unsigned char)(uniform() * CLASSES);
		draw_image(k, class, image);
		put(labels, labels == images ? images_path : labels_path, &class, 1);
		put(images, images_path, image, (size_t)(k->channels * k->side * k->side));
	}
	finish(images, images_path);
	if (labels != images)
		finish(labels, labels_path);
}

/* `before` begins the first token of a file. */
static void write_tokens(const char *folder, const char *name, uint32_t count, uint32_t before)
{
	char path[4096];
	FILE *file = create(folder, name, path, sizeof(path));
	unsigned char header[4 * LLMC_HEADER] = {0};
	const uint32_t numbers[] = {LLMC_MAGIC, LLMC_VERSION, count};

	for (int i = 0; i < 3; i++)
		for (int byte = 0; byte < 4; byte++)
			header[4 * i + byte] = (unsigned char)(numbers[i] >> (8 * byte));
	put(file, path, header, sizeof(header));
	for (uint32_t i = 0; i < count; i++) {
		before = (before * 5 + 1 + 97 * (uint32_t)(uniform() * CHOICES)) % VOCABULARY;
		put(file, path, (const unsigned char[]){(unsigned char)before, (unsigned char)(before >> 8)}, 2);
	}
	finish(file, path);
}

static void write_all_tokens(const char *folder, uint32_t train, uint32_t test)
{
	char name[64];

	for (uint32_t i = 0; i < SHARDS; i++) {
		snprintf(name, sizeof(name), "tokens_train_%06u.bin", (unsigned)i + 1);
		write_tokens(folder, name, train / SHARDS + (i < train % SHARDS), i);
	}
	write_tokens(folder, "tokens_val_000000.bin", test, SHARDS);
}

static void print_help(FILE *to)
{
	fprintf(to, "usage: synthetic mnist|cifar10 DIR [TRAIN [TEST]]\n"
	        "       synthetic tokens DIR [TRAIN [TEST]]\n"
	        "Writes TRAIN images to train on (2000) and TEST to test with (500), of ten\n"
	        "classes, into files of MNIST's or CIFAR-10's format; or tokens (200000 and 20000),\n"
	        "0 to 511, into files of llm.c's, those to train on into two. The same numbers\n"
	        "give the same data.\n"
	        "\n"
	        "  --help  this text\n");
}

static uint32_t count_of(const char *text)
{
	char *end;
	const long count = strtol(text, &end, 10);

	if (end == text || *end != '\0' || count < 1 || count > 10000000) {
		fprintf(stderr, "synthetic: \"%s\" is not a number of images or tokens, 1 to 10000000\n", text);
		exit(EXIT_FAILURE);
	}
	return (uint32_t)count;
}

int main(int argc, char **argv)
{
	const struct kind *kind = NULL;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		print_help(stdout);
		return EXIT_SUCCESS;
	}
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && argc > 1; i++)
		if (strcmp(argv[1], kinds[i].name) == 0)
			kind = &kinds[i];
	const bool tokens = argc > 1 && strcmp(argv[1], "tokens") == 0;
	if ((kind == NULL && !tokens) || argc < 3 || argc > 5) {
		print_help(stderr);
		return EXIT_FAILURE;
	}
	const uint32_t train = argc > 3 ? count_of(argv[3]) : tokens ? 200000 : 2000;
	const uint32_t test = argc > 4 ? count_of(argv[4]) : tokens ? 20000 : 500;
	if (tokens) {
		write_all_tokens(argv[2], train, test);
		return EXIT_SUCCESS;
	}
	draw_patterns(kind);
	write_set(kind, argv[2], 0, train);
	write_set(kind, argv[2], 1, test);
	return EXIT_SUCCESS;
}
