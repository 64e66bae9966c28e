/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_cores: what kernels by tensor cores are written with. Products are of 16 x 16 by
   16 x 8 (mma.m16n8k16), whose operands lie over a warp's lanes so: a lane has rows `group`
   and group + 8, and of 8 columns the pair that begins at `pair`. Two results side by side
   are the left operand of a next product, as they lie.

   Shared memory is named by bytes from its first. A tile there has rows of HEAD bf16, whose
   pieces of 16 bytes are exchanged within their row, so that a piece of eight rows lies in
   all banks. */
#pragma once

#include "cuda/device.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, PIECE = 8 /* elements */, PIECE_BYTES = 16 };
enum { TILE_ROWS = 64 /* that a block meets at a time */ };

/* The calling thread's warp. All threads of the warp get it from one register, so branches cost less. */
__device__ inline int own_warp()
{
	return __shfl_sync(EVERY_LANE, (int)threadIdx.x / WARP, 0);
}

/* ---- instructions; over the emulation, tests/support/cuda_emulation.h has them ---- */

#ifdef __CUDACC__
/* d [16, 8] = a [16, 16] b [16, 8] + c [16, 8]; d may be c. */
__device__ inline void multiply_add(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
	    : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
	      "f"(c[3]));
}

__device__ inline uint32_t shared_address(uint32_t at)
{
	return (uint32_t)__cvta_generic_to_shared(launch_memory()) + at;
}

/* Four matrices of 8 x 8; lane l names row l % 8 of matrix l / 8. A lane gets of each the pair of
   its `group`. */
__device__ inline void load_matrices(uint32_t m[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(at)) : "memory");
}

/* Loads the same, transposed. */
__device__ inline void load_matrices_transposed(uint32_t m[4], uint32_t at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(at)) : "memory");
}

/* 16 bytes, or zeros unless they are `there`; the thread has them when copies_arrived(). */
__device__ inline void copy_piece(uint32_t at, const void *from, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	             :: "r"(shared_address(at)), "l"(__cvta_generic_to_global(from)), "r"(there ? PIECE_BYTES : 0)
	             : "memory");
}

/* Copies 4 bytes likewise. */
__device__ inline void copy_word(uint32_t at, const void *from, bool there)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
	             :: "r"(shared_address(at)), "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
	             : "memory");
}

__device__ inline void copies_arrived()
{
	asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Zero where it would be subnormal. */
__device__ inline float power_of_2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Rounds both to the nearest bf16. The first is in the lower bits. */
__device__ inline uint32_t pair_of(float first, float second)
{
	uint32_t pair;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
	return pair;
}
#else
static inline uint32_t pair_of(float first, float second)
{
	return to_bf16(first).bits | (uint32_t)to_bf16(second).bits << 16;
}
#endif

#define LOG2_E 1.4426950408889634f

__device__ inline uint32_t pair_at(const bf16 *at)
{
	return *reinterpret_cast<const uint32_t *>(at);
}

__device__ inline float first_of(uint32_t pair)
{
	return __uint_as_float(pair << 16);
}

__device__ inline float second_of(uint32_t pair)
{
	return __uint_as_float(pair & 0xffff0000u);
}

/* These reduce over the four lanes that share rows. */
__device__ inline float row_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, 1));
	return fmaxf(x, __shfl_xor_sync(EVERY_LANE, x, 2));
}

__device__ inline float row_sum(float x)
{
	x += __shfl_xor_sync(EVERY_LANE, x, 1);
	return x + __shfl_xor_sync(EVERY_LANE, x, 2);
}

/* ---- tiles in shared memory ---- */

template <int HEAD> __device__ constexpr uint32_t tile_bytes(int rows)
{
	return (uint32_t)(rows * HEAD * (int)sizeof(bf16));
}

template <int HEAD> __device__ inline uint32_t piece_at(int row, int piece)
{
	const int turn = HEAD >= 64 ? row % 8 : row / 2 % 4;

	return tile_bytes<HEAD>(row) + (uint32_t)((piece ^ turn) * PIECE_BYTES);
}

/* The offsets that a lane names in the first 16 rows and 16 columns of a tile. With these, each two registers of
   load_matrices() are a right operand: of the rows transposed, or of the rows themselves. For columns further to
   the right, xor columns * sizeof(bf16). */
struct lane_pieces {
	uint32_t transposed, plain;
};

template <int HEAD> __device__ inline lane_pieces pieces_of(int lane)
{
	return {piece_at<HEAD>(lane / 16 * 8 + lane % 8, lane / 8 % 2), piece_at<HEAD>(lane % 16, lane / 16)};
}

/* The block begins to copy TILE_ROWS rows of a matrix, from `first` on; zero beyond its end. */
template <int HEAD>
__device__ inline void copy_tile(uint32_t to, const bf16 *from, int64_t stride, int first, int length)
{
	enum { PIECES = HEAD / PIECE, AT_ONCE = THREADS / PIECES };
	const int row = (int)threadIdx.x / PIECES, piece = (int)threadIdx.x % PIECES;

	to += piece_at<HEAD>(row, piece);
	from += (first + row) * stride + piece * PIECE;
	UNROLL
	for (int r = 0; r < TILE_ROWS; r += AT_ONCE, from += AT_ONCE * stride)
		copy_piece(to + tile_bytes<HEAD>(r), from, first + row + r < length);
}

/* A tile of keys and, behind them, the one of their values; in bytes. */
template <int HEAD> struct key_value_tiles {
	static constexpr uint32_t values = TILE_ROWS * HEAD * sizeof(bf16), bytes = 2 * values;
};

/* The block begins to copy both; a key's value lies `width` elements behind the key. */
template <int HEAD>
__device__ inline void copy_keys(uint32_t to, const bf16 *keys, int64_t width, int64_t stride, int first, int length)
{
	copy_tile<HEAD>(to, keys, stride, first, length);
	copy_tile<HEAD>(to + key_value_tiles<HEAD>::values, keys + width, stride, first, length);
}

/* ---- a warp's products ---- */

/* a [16, HEAD] from memory, of the lane's rows `row` and row + 8; beyond its end, of row 0. */
template <int HEAD>
__device__ inline void load_rows(uint32_t a[HEAD / 16][4], const bf16 *from, int64_t stride, int row,
                                 int pair, int length)
{
	UNROLL
	for (int half = 0; half < 2; half++) {
		const bf16 *at = from + (row + half * 8 < length ? row + half * 8 : 0) * stride + pair;
		UNROLL
		for (int d = 0; d < HEAD / 16; d++) {
			a[d][half] = pair_at(at + d * 16);
			a[d][half + 2] = pair_at(at + d * 16 + 8);
		}
	}
}

/* A lane's four of a product. */
typedef pack<float, 4> quad;

/* products [M x 16, N x 8] = a [M x 16, HEAD] times so many rows' transposed + start(m, n), of each
   16 x 8 */
template <int HEAD, int M, int N, class F>
__device__ inline void multiply(float products[M][N][4], const uint32_t a[M][HEAD / 16][4], uint32_t rows,
                                const lane_pieces *lane, F start)
{
	UNROLL
	for (int d = 0; d < HEAD / 16; d++)
		UNROLL
		for (int n = 0; n < N; n += 2) {
			uint32_t b[4];
			load_matrices(b, rows + tile_bytes<HEAD>(n * 8) + (lane->transposed ^ (uint32_t)(d * 32)));
			UNROLL
			for (int i = 0; i < 2 * M; i++) {
				const int m = i / 2, at = n + i % 2;
				const quad from = start(m, at);
				multiply_add(products[m][at], a[m][d], b + i % 2 * 2, d == 0 ? from.at : products[m][at]);
			}
		}
}

/* No query sees a later key: scores [M x 16 queries, N x 8 keys] of those get no weight. `ahead`: of
   the first query to the first key. */
template <int M, int N>
__device__ inline void mask_keys(float scores[M][N][4], int ahead, int group, int pair)
{
	UNROLL
	for (int m = 0; m < M; m++)
		UNROLL
		for (int i = 0; i < 4 * N; i++)
			if (i / 4 * 8 + pair + i % 2 > ahead + m * 16 + group + i % 4 / 2 * 8)
				scores[m][i / 4][i % 4] = -INFINITY;
}

/* Masks scores [M x 16 keys, N x 8 queries] likewise. `ahead` goes from the first key to the first query. */
template <int M, int N>
__device__ inline void mask_queries(float scores[M][N][4], int ahead, int group, int pair)
{
	UNROLL
	for (int m = 0; m < M; m++)
		UNROLL
		for (int i = 0; i < 4 * N; i++)
			if (ahead + m * 16 + group + i % 4 / 2 * 8 > i / 4 * 8 + pair + i % 2)
				scores[m][i / 4][i % 4] = -INFINITY;
}

/* sums [M x 16, HEAD] += factors [M x 16, N x 8], as multiply() lays them, times so many rows */
template <int HEAD, int M, int N>
__device__ inline void accumulate(float sums[M][HEAD / 8][4], const float factors[M][N][4], uint32_t rows,
                                  const lane_pieces *lane)
{
	UNROLL
	for (int n = 0; n < N; n += 2) {
		uint32_t a[M][4], b[4];
		UNROLL
		for (int m = 0; m < M; m++)
			UNROLL
			for (int i = 0; i < 4; i++)
				a[m][i] = pair_of(factors[m][n + i / 2][i % 2 * 2], factors[m][n + i / 2][i % 2 * 2 + 1]);
		UNROLL
		for (int d = 0; d < HEAD / 16; d++) {
			load_matrices_transposed(b, rows + tile_bytes<HEAD>(n * 8) + (lane->plain ^ (uint32_t)(d * 32)));
			UNROLL
			for (int m = 0; m < M; m++) {
				multiply_add(sums[m][2 * d], a[m], b, sums[m][2 * d]);
				multiply_add(sums[m][2 * d + 1], a[m], b + 2, sums[m][2 * d + 1]);
			}
		}
	}
}

/* The lane's rows `row` and row + 8, times a factor for each. */
template <int HEAD>
__device__ inline void store_rows(bf16 *to, int64_t stride, int row, const float sums[HEAD / 8][4],
                                  const float factors[2], int pair, int length)
{
	UNROLL
	for (int half = 0; half < 2; half++)
		UNROLL
		for (int n = 0; n < HEAD / 8; n++)
			if (row + half * 8 < length)
				*reinterpret_cast<uint32_t *>(to + (row + half * 8) * stride + n * 8 + pair) =
					pair_of(sums[n][half * 2] * factors[half], sums[n][half * 2 + 1] * factors[half]);
}
