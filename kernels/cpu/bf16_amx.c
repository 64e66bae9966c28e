/* SPDX-License-Identifier: Apache-2.0 */
/* Products by AMX: four tiles of c, two of a by two of b. */
#include <immintrin.h>

#include "cpu/bf16.h"

/* All eight registers are whole tiles. */
static void begin(void)
{
	static const struct {
		uint8_t palette, start, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} whole = {
		.palette = 1,
		.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
		.rows = {16, 16, 16, 16, 16, 16, 16, 16},
	};

	_tile_loadconfig(&whole);
}

static void end(void)
{
	_tile_release();
}

static void block(float *c, int64_t ldc, const dk_strip_range *left, const dk_strip_range *right, int64_t depth,
                  bool adds)
{
	enum { ROW_BYTES = DK_DEPTH * sizeof(uint16_t) };
	const int64_t stride = ldc * (int64_t)sizeof(float);
	const uint16_t *a = left->first, *b = right->first;
	float *below = c + DK_STRIP * ldc;

	if (adds) {
		_tile_loadd(0, c, stride);
		_tile_loadd(1, c + DK_STRIP, stride);
		_tile_loadd(2, below, stride);
		_tile_loadd(3, below + DK_STRIP, stride);
	} else {
		_tile_zero(0);
		_tile_zero(1);
		_tile_zero(2);
		_tile_zero(3);
	}
	for (int64_t d = 0; d < depth; d++, a += DK_TILE, b += DK_TILE) {
		_tile_loadd(6, b, ROW_BYTES);
		_tile_loadd(4, a, ROW_BYTES);
		_tile_dpbf16ps(0, 4, 6);
		_tile_loadd(7, b + right->next, ROW_BYTES);
		_tile_dpbf16ps(1, 4, 7);
		_tile_loadd(5, a + left->next, ROW_BYTES);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_stored(0, c, stride);
	_tile_stored(1, c + DK_STRIP, stride);
	_tile_stored(2, below, stride);
	_tile_stored(3, below + DK_STRIP, stride);
}

const dk_bf16_set dk_bf16_amx = {
	.name = "amx", .begin = begin, .end = end, .pack = dk_pack_avx512, .block = block,
};
