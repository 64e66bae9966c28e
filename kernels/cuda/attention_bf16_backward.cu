/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of attention_bf16.cu, in two kernels: of queries, by the blocks that own them,
   and of keys and values, by theirs. Each computes the scores anew, so that seven products take
   the place of five; but each gradient is one block's, in its registers: there are no atomics,
   and each run gives the same bits. */
#include "cuda/attention.cuh"
#include "cuda/tensor_cores.cuh"

/* Both kernels know these numbers of a query. A probability is 2^(score * scale * log2(e) + minus_lse), and a
   score's gradient is that times (dout . value + minus_delta) * scale. */
typedef struct alignas(8) query_numbers {
	float minus_lse;   /* in base 2 */
	float minus_delta; /* dout . out */
} query_numbers;

/* ---- queries ---- */

template <int HEAD> struct query_tile {
	enum {
		M = HEAD > 64 ? 1 : 2, /* so that registers suffice */
		WARP_ROWS = M * 16, OWN = WARPS * WARP_ROWS, AT_ONCE = 32 / M /* keys */
	};
};

/* Finds the numbers of the lane's rows `row` and row + 8, whose dout the lane has. */
template <int HEAD>
__device__ inline void find_numbers(query_numbers of[2], const uint32_t dout[HEAD / 16][4], const bf16 *out,
                                    int64_t stride, const float *lse, int row, int pair, int length)
{
	uint32_t rows[HEAD / 16][4];
	float sums[2] = {};

	load_rows<HEAD>(rows, out, stride, row, pair, length);
	UNROLL
	for (int d = 0; d < HEAD / 16; d++)
		UNROLL
		for (int i = 0; i < 4; i++)
			sums[i % 2] += first_of(dout[d][i]) * first_of(rows[d][i]) + second_of(dout[d][i]) * second_of(rows[d][i]);
	UNROLL
	for (int half = 0; half < 2; half++) {
		of[half].minus_lse = row + half * 8 < length ? -lse[row + half * 8] * LOG2_E : 0;
		of[half].minus_delta = -row_sum(sums[half]);
	}
}

/* The gradients of queries, from all keys up to each; and what the other kernel needs of each. */
template <int HEAD>
__global__ void __launch_bounds__(THREADS)
query_kernel(bf16 *dqkv, query_numbers *numbers, const bf16 *dout, const bf16 *qkv, const bf16 *out,
             const float *lse, attention_shape s)
{
	typedef query_tile<HEAD> t;
	typedef key_value_tiles<HEAD> tiles;
	enum { M = t::M, N = t::AT_ONCE / 8 };
	const int warp = own_warp(), lane = (int)threadIdx.x % WARP;
	const int group = lane / 4, pair = lane % 4 * 2;
	const lane_pieces pieces = pieces_of<HEAD>(lane);
	const attention_head h = find_head(&s);
	const int first = (int)(gridDim.x - 1 - blockIdx.x) * t::OWN; /* the longest come first */
	const int warp_row = first + warp * t::WARP_ROWS, row = warp_row + group, length = (int)s.length;
	const int end = first + t::OWN < length ? first + t::OWN : length;
	const int64_t stride = 3 * s.width;
	const float scale = s.scale * LOG2_E;
	const bf16 *keys = qkv + h.qkv + s.width;
	float sums[M][HEAD / 8][4] = {};
	query_numbers of[M][2];
	uint32_t queries[M][HEAD / 16][4], douts[M][HEAD / 16][4], stage = 0;

	copy_keys<HEAD>(0, keys, s.width, stride, 0, length);
	UNROLL
	for (int m = 0; m < M; m++) {
		load_rows<HEAD>(queries[m], qkv + h.qkv, stride, row + m * 16, pair, length);
		load_rows<HEAD>(douts[m], dout + h.out, s.width, row + m * 16, pair, length);
		find_numbers<HEAD>(of[m], douts[m], out + h.out, s.width, lse + h.lse, row + m * 16, pair, length);
		UNROLL
		for (int half = 0; half < 2; half++)
			if (pair == 0 && row + m * 16 + half * 8 < length)
				numbers[h.lse + row + m * 16 + half * 8] = of[m][half];
	}
	for (int tile = 0; tile < end; tile += TILE_ROWS, stage ^= tiles::bytes) {
		copies_arrived();
		__syncthreads(); /* all have this tile, and none uses the one before */
		if (tile + TILE_ROWS < end)
			copy_keys<HEAD>(stage ^ tiles::bytes, keys, s.width, stride, tile + TILE_ROWS, length);
		const int ahead = warp_row - tile;
		for (int key = 0; key < TILE_ROWS && key < ahead + t::WARP_ROWS; key += t::AT_ONCE) {
			const uint32_t at = stage + tile_bytes<HEAD>(key);
			float scores[M][N][4], dscores[M][N][4];
			multiply<HEAD, M, N>(scores, queries, at, &pieces, [](int, int) { return quad(); });
			multiply<HEAD, M, N>(dscores, douts, at + tiles::values, &pieces, [&](int m, int) {
				const float upper = of[m][0].minus_delta, lower = of[m][1].minus_delta;
				return quad{{upper, upper, lower, lower}};
			});
			if (key + t::AT_ONCE > ahead + 1)
				mask_keys<M, N>(scores, ahead - key, group, pair);
			UNROLL
			for (int i = 0; i < 4 * M * N; i++) {
				const int m = i / 4 / N, n = i / 4 % N;
				dscores[m][n][i % 4] *= power_of_2(scores[m][n][i % 4] * scale + of[m][i % 4 / 2].minus_lse);
			}
			accumulate<HEAD, M, N>(sums, dscores, at, &pieces);
		}
	}
	const float scales[2] = {s.scale, s.scale};
	UNROLL
	for (int m = 0; m < M; m++)
		store_rows<HEAD>(dqkv + h.qkv, stride, row + m * 16, sums[m], scales, pair, length);
}

/* ---- keys and values ---- */

template <int HEAD> struct key_tile {
	enum {
		M = 1, WARP_ROWS = M * 16, OWN = WARPS * WARP_ROWS,
		AT_ONCE = 16 /* queries; so that registers suffice */
	};
	/* Within a stage, after the queries; in bytes. */
	static constexpr uint32_t douts = TILE_ROWS * HEAD * sizeof(bf16), numbers = 2 * douts,
		stage = numbers + TILE_ROWS * sizeof(query_numbers);
};

/* The block begins to copy what is known of a tile's queries. */
template <int HEAD>
__device__ inline void copy_queries(uint32_t to, const bf16 *queries, const bf16 *dout,
                                    const query_numbers *numbers, int first, const attention_shape *s)
{
	typedef key_tile<HEAD> t;
	const float *from = reinterpret_cast<const float *>(numbers + first);
	const bool there = first + (int)threadIdx.x / 2 < (int)s->length;

	static_assert(TILE_ROWS * sizeof(query_numbers) == THREADS * sizeof(float), "a word is each thread's");
	copy_tile<HEAD>(to, queries, 3 * s->width, first, (int)s->length);
	copy_tile<HEAD>(to + t::douts, dout, s->width, first, (int)s->length);
	copy_word(to + t::numbers + threadIdx.x * (uint32_t)sizeof(float), from + (there ? threadIdx.x : 0), there);
}

/* The numbers of two queries, of shared memory. */
__device__ inline pack<query_numbers, 2> numbers_at(uint32_t at)
{
	return *reinterpret_cast<const pack<query_numbers, 2> *>(static_cast<const char *>(launch_memory()) + at);
}

/* The gradients of keys and values, from all queries from each on. */
template <int HEAD>
__global__ void __launch_bounds__(THREADS, HEAD > 64 ? 2 : 3)
key_kernel(bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const query_numbers *numbers, attention_shape s)
{
	typedef key_tile<HEAD> t;
	enum { M = t::M, N = t::AT_ONCE / 8 };
	const int warp = own_warp(), lane = (int)threadIdx.x % WARP;
	const int group = lane / 4, pair = lane % 4 * 2;
	const lane_pieces pieces = pieces_of<HEAD>(lane);
	const attention_head h = find_head(&s);
	const int first = (int)blockIdx.x * t::OWN, warp_row = first + warp * t::WARP_ROWS;
	const int row = warp_row + group, length = (int)s.length;
	const int64_t stride = 3 * s.width;
	const float scale = s.scale * LOG2_E;
	const bf16 *queries = qkv + h.qkv;
	float key_sums[M][HEAD / 8][4] = {}, value_sums[M][HEAD / 8][4] = {};
	uint32_t keys[M][HEAD / 16][4], values[M][HEAD / 16][4], stage = 0;

	copy_queries<HEAD>(0, queries, dout + h.out, numbers + h.lse, first, &s);
	UNROLL
	for (int m = 0; m < M; m++) {
		load_rows<HEAD>(keys[m], queries + s.width, stride, row + m * 16, pair, length);
		load_rows<HEAD>(values[m], queries + 2 * s.width, stride, row + m * 16, pair, length);
	}
	for (int tile = first; tile < length; tile += TILE_ROWS, stage = t::stage - stage) {
		copies_arrived();
		__syncthreads(); /* all have this tile, and none uses the one before */
		if (tile + TILE_ROWS < length)
			copy_queries<HEAD>(t::stage - stage, queries, dout + h.out, numbers + h.lse, tile + TILE_ROWS,
			                   &s);
		const int ahead = warp_row - tile; /* of the first key to the first query */
		for (int query = 0; query < TILE_ROWS; query += t::AT_ONCE) {
			if (query + t::AT_ONCE <= ahead)
				continue; /* they see none of these keys */
			const uint32_t at = stage + tile_bytes<HEAD>(query);
			float scores[M][N][4], dscores[M][N][4];
			pack<query_numbers, 2> of[N];
			UNROLL
			for (int n = 0; n < N; n++)
				of[n] = numbers_at(stage + t::numbers + (uint32_t)((query + n * 8 + pair) * (int)sizeof(query_numbers)));
			multiply<HEAD, M, N>(scores, keys, at, &pieces, [](int, int) { return quad(); });
			multiply<HEAD, M, N>(dscores, values, at + t::douts, &pieces, [&](int, int n) {
				const float left = of[n].at[0].minus_delta, right = of[n].at[1].minus_delta;
				return quad{{left, right, left, right}};
			});
			if (query < ahead + t::WARP_ROWS - 1)
				mask_queries<M, N>(scores, ahead - query, group, pair);
			UNROLL
			for (int i = 0; i < 4 * M * N; i++) {
				const int m = i / 4 / N, n = i / 4 % N;
				float *score = &scores[m][n][i % 4];
				*score = power_of_2(*score * scale + of[n].at[i % 2].minus_lse);
				dscores[m][n][i % 4] *= *score;
			}
			accumulate<HEAD, M, N>(value_sums, scores, at + t::douts, &pieces);
			accumulate<HEAD, M, N>(key_sums, dscores, at, &pieces);
		}
	}
	const float scales[2] = {s.scale, s.scale}, ones[2] = {1, 1};
	UNROLL
	for (int m = 0; m < M; m++) {
		bf16 *to = dqkv + h.qkv;
		store_rows<HEAD>(to + s.width, stride, row + m * 16, key_sums[m], scales, pair, length);
		store_rows<HEAD>(to + 2 * s.width, stride, row + m * 16, value_sums[m], ones, pair, length);
	}
}

/* ---- launches ---- */

template <int HEAD>
static void backward_by(dk_cuda_queue *q, bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const bf16 *out,
                        const float *lse, float *scratch, int64_t batch, attention_shape s)
{
	query_numbers *numbers = reinterpret_cast<query_numbers *>(scratch);

	static_assert(sizeof(query_numbers) == ATTENTION_SCRATCH * sizeof(float), "as attention.cuh has it");
	launch(q, "attention's gradient by tensor cores", query_kernel<HEAD>,
	       attention_blocks(batch, &s, query_tile<HEAD>::OWN), THREADS, 2 * key_value_tiles<HEAD>::bytes, dqkv, numbers,
	       dout, qkv, out, lse, s);
	launch(q, "attention's gradient by tensor cores", key_kernel<HEAD>,
	       attention_blocks(batch, &s, key_tile<HEAD>::OWN), THREADS, 2 * key_tile<HEAD>::stage, dqkv, dout, qkv,
	       numbers, s);
}

bool dk_cuda_attention_bf16_backward(dk_cuda_queue *q, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                                     const bf16 *out, const float *lse, float *scratch, int64_t batch,
                                     attention_shape s)
{
	if (!in_pieces(dqkv) || !in_pieces(dout) || !in_pieces(qkv) || !in_pieces(out))
		return false;
	switch (s.head) {
	case 32: backward_by<32>(q, dqkv, dout, qkv, out, lse, scratch, batch, s); return true;
	case 64: backward_by<64>(q, dqkv, dout, qkv, out, lse, scratch, batch, s); return true;
	case 128: backward_by<128>(q, dqkv, dout, qkv, out, lse, scratch, batch, s); return true;
	default: return false;
	}
}
