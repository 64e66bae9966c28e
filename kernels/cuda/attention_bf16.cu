/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of bf16 by tensor cores, for heads of 32, 64 and 128: the walk over tiles of
   attention.cu, in the manner of FlashAttention-2 (Dao 2023). A warp keeps M x 16 queries in
   its registers, and meets the keys 64 at a time; while the warps compute with one tile of
   keys and values, the next is on its way. */
#include "cuda/attention.cuh"
#include "cuda/tensor_cores.cuh"

template <int HEAD> struct forward_tile {
	enum {
		M = HEAD > 64 ? 1 : 2, /* so that registers suffice */
		WARP_ROWS = M * 16, OWN = WARPS * WARP_ROWS
	};
};

/* Takes 16 rows' scores of a tile into the running softmax; they become probabilities. */
template <int HEAD, int N>
__device__ inline void soften(float scores[N][4], float sums[HEAD / 8][4], float top[2], float total[2],
                              float scale)
{
	UNROLL
	for (int half = 0; half < 2; half++) { /* the lane's row group, then group + 8 */
		float highest = top[half];
		UNROLL
		for (int i = 0; i < 2 * N; i++)
			highest = fmaxf(highest, scores[i / 2][half * 2 + i % 2]);
		highest = row_max(highest);
		const float base = highest == -INFINITY ? 0 : highest * scale;
		const float shrink = power_of_2(top[half] * scale - base);
		top[half] = highest;
		total[half] *= shrink;
		UNROLL
		for (int i = 0; i < 2 * N; i++) {
			float *score = &scores[i / 2][half * 2 + i % 2];
			*score = power_of_2(*score * scale - base);
			total[half] += *score;
		}
		UNROLL
		for (int n = 0; n < HEAD / 8; n++) {
			sums[n][half * 2] *= shrink;
			sums[n][half * 2 + 1] *= shrink;
		}
	}
}

template <int HEAD>
__global__ void __launch_bounds__(THREADS)
forward_kernel(bf16 *out, float *lse, const bf16 *qkv, attention_shape s)
{
	typedef forward_tile<HEAD> t;
	typedef key_value_tiles<HEAD> tiles;
	enum { M = t::M, N = TILE_ROWS / 8 };
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
	float sums[M][HEAD / 8][4] = {}, top[M][2], total[M][2] = {};
	uint32_t queries[M][HEAD / 16][4], stage = 0;

	copy_keys<HEAD>(0, keys, s.width, stride, 0, length);
	UNROLL
	for (int m = 0; m < M; m++) {
		load_rows<HEAD>(queries[m], qkv + h.qkv, stride, row + m * 16, pair, length);
		top[m][0] = top[m][1] = -INFINITY;
	}
	for (int key = 0; key < end; key += TILE_ROWS, stage ^= tiles::bytes) {
		copies_arrived();
		__syncthreads(); /* all have this tile, and none uses the one before */
		if (key + TILE_ROWS < end)
			copy_keys<HEAD>(stage ^ tiles::bytes, keys, s.width, stride, key + TILE_ROWS, length);
		if (key >= warp_row + t::WARP_ROWS)
			continue;
		float scores[M][N][4];
		multiply<HEAD, M, N>(scores, queries, stage, &pieces, [](int, int) { return quad(); });
		if (key + TILE_ROWS > warp_row + 1)
			mask_keys<M, N>(scores, warp_row - key, group, pair);
		UNROLL
		for (int m = 0; m < M; m++)
			soften<HEAD, N>(scores[m], sums[m], top[m], total[m], scale);
		accumulate<HEAD, M, N>(sums, scores, stage + tiles::values, &pieces);
	}
	UNROLL
	for (int m = 0; m < M; m++) {
		float factors[2];
		UNROLL
		for (int half = 0; half < 2; half++) {
			const int at = row + m * 16 + half * 8;
			const float sum = row_sum(total[m][half]);
			if (pair == 0 && at < length)
				lse[h.lse + at] = top[m][half] * s.scale + logf(sum);
			factors[half] = 1 / sum;
		}
		store_rows<HEAD>(out + h.out, s.width, row + m * 16, sums[m], factors, pair, length);
	}
}

template <int HEAD>
static void forward_by(dk_cuda_queue *q, bf16 *out, float *lse, const bf16 *qkv, int64_t batch,
                       attention_shape s)
{
	launch(q, "attention by tensor cores", forward_kernel<HEAD>, attention_blocks(batch, &s, forward_tile<HEAD>::OWN),
	       THREADS, 2 * key_value_tiles<HEAD>::bytes, out, lse, qkv, s);
}

bool dk_cuda_attention_bf16(dk_cuda_queue *q, bf16 *out, float *lse, const bf16 *qkv, int64_t batch,
                            attention_shape s)
{
	if (!in_pieces(out) || !in_pieces(qkv))
		return false;
	switch (s.head) {
	case 32: forward_by<32>(q, out, lse, qkv, batch, s); return true;
	case 64: forward_by<64>(q, out, lse, qkv, batch, s); return true;
	case 128: forward_by<128>(q, out, lse, qkv, batch, s); return true;
	default: return false;
	}
}
