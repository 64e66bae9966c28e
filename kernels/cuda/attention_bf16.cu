/*
 * Attention of bf16 by tensor cores, for heads of 32, 64 and 128: the same walk over
 * tiles as in attention.cu. A warp owns 16 rows, which meet the others 16 at a time.
 * Products are of 16 x 16 by 16 x 8 (mma.m16n8k16), whose operands lie over a warp's lanes
 * so: a lane has rows `group` and group + 8, and of 8 columns the pair that begins at
 * `pair`. Two such results side by side are the left operand of the next product, as they
 * lie.
 */
#include "cuda/attention.cuh"

enum {
	WARPS = 4, THREADS = WARPS * WARP, ROWS = 16, OWN = WARPS * ROWS, OTHERS = 64,
	PAD = 8 /* elements behind each row in shared memory: no two lanes meet in a bank */
};

/* ---- a warp's operands ---- */

#ifdef __CUDACC__
/* c [16, 8] += a [16, 16] b [16, 8] */
__device__ inline void multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* b [16, 8] from 16 rows in shared memory, of which lane l names the l-th (l < 16): their
   eight elements from there on. */
__device__ inline void load_columns(uint32_t b[2], const bf16 *row)
{
	const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);

	asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
	             : "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}
#endif

__device__ inline uint32_t pair_of(float first, float second)
{
	return to_bf16(first).bits | (uint32_t)to_bf16(second).bits << 16;
}

__device__ inline uint32_t pair_at(const bf16 *at)
{
	return *reinterpret_cast<const uint32_t *>(at);
}

/* a [16, 16] from rows in shared memory. */
__device__ inline void load_rows_of(uint32_t a[4], const bf16 *rows, int stride, int group, int pair)
{
	a[0] = pair_at(rows + group * stride + pair);
	a[1] = pair_at(rows + (group + 8) * stride + pair);
	a[2] = pair_at(rows + group * stride + pair + 8);
	a[3] = pair_at(rows + (group + 8) * stride + pair + 8);
}

/* Rows first .. of a matrix into shared memory, 16 bytes at a time; zero beyond its end. */
template <int HEAD>
__device__ void load_tile(bf16 *to, const bf16 *from, int64_t from_stride, int64_t first, int rows,
                          int64_t length)
{
	enum { AT_ONCE = 8, PACKS = HEAD / AT_ONCE };

	for (int i = (int)threadIdx.x; i < rows * PACKS; i += THREADS) {
		const int row = i / PACKS, column = i % PACKS * AT_ONCE;
		pack<bf16, AT_ONCE> p = {};
		if (first + row < length)
			p = *reinterpret_cast<const pack<bf16, AT_ONCE> *>(from + (first + row) * from_stride + column);
		*reinterpret_cast<pack<bf16, AT_ONCE> *>(to + row * (HEAD + PAD) + column) = p;
	}
}

/* products [2][4]: of 16 rows with 16 others, over HEAD columns. */
template <int HEAD>
__device__ void multiply_rows(float products[2][4], const bf16 *rows, const bf16 *others, int group,
                              int pair)
{
	for (int half = 0; half < 2; half++)
		for (int i = 0; i < 4; i++)
			products[half][i] = 0;
	UNROLL
	for (int d = 0; d < HEAD; d += 16) {
		uint32_t a[4], b[2];
		load_rows_of(a, rows + d, HEAD + PAD, group, pair);
		for (int half = 0; half < 2; half++) {
			const bf16 *other = others + (half * 8 + group) * (HEAD + PAD) + d + pair;
			b[0] = pair_at(other);
			b[1] = pair_at(other + 8);
			multiply_add(products[half], a, b);
		}
	}
}

/* sums [HEAD / 8][4] += factors, as multiply_rows() lays them, times 16 others */
template <int HEAD>
__device__ void accumulate(float sums[HEAD / 8][4], const float factors[2][4], const bf16 *others,
                           int lane)
{
	const uint32_t a[4] = {pair_of(factors[0][0], factors[0][1]), pair_of(factors[0][2], factors[0][3]),
		pair_of(factors[1][0], factors[1][1]), pair_of(factors[1][2], factors[1][3])};

	UNROLL
	for (int n = 0; n < HEAD / 8; n++) {
		uint32_t b[2];
		load_columns(b, others + lane % ROWS * (HEAD + PAD) + n * 8);
		multiply_add(sums[n], a, b);
	}
}

/* Of the lane's rows group and group + 8, times a factor for each. */
template <int HEAD>
__device__ void store_sums(bf16 *to, int64_t stride, int64_t row, const float sums[HEAD / 8][4],
                           const float factors[2], int pair, int64_t length)
{
	for (int n = 0; n < HEAD / 8; n++)
		for (int half = 0; half < 2; half++)
			if (row + half * 8 < length)
				*reinterpret_cast<uint32_t *>(to + (row + half * 8) * stride + n * 8 + pair) =
					pair_of(sums[n][half * 2] * factors[half], sums[n][half * 2 + 1] * factors[half]);
}

/* Over the four lanes that share rows. */
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

/* ---- forward ---- */

/* Takes the scores of 16 keys into the running softmax; they become probabilities. */
template <int HEAD>
__device__ void soften(float scores[2][4], float sums[HEAD / 8][4], float top[2], float total[2],
                       int64_t row, int64_t key, float scale)
{
	for (int half = 0; half < 2; half++) { /* the lane's row group, then group + 8 */
		float highest = top[half];
		for (int i = 0; i < 4; i++) {
			float *score = &scores[i / 2][half * 2 + i % 2];
			*score = key + i / 2 * 8 + i % 2 <= row + half * 8 ? *score * scale : -INFINITY;
			highest = fmaxf(highest, *score);
		}
		highest = row_max(highest);
		/* Where no key was seen yet, there is nothing to shrink. */
		const float shrink = highest == -INFINITY ? 1 : expf(top[half] - highest);
		top[half] = highest;
		total[half] *= shrink;
		for (int i = 0; i < 4; i++) {
			float *score = &scores[i / 2][half * 2 + i % 2];
			*score = *score == -INFINITY ? 0 : expf(*score - highest);
			total[half] += *score;
		}
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
	bf16 *queries = static_cast<bf16 *>(launch_memory()); /* [OWN, HEAD + PAD] */
	bf16 *keys = queries + OWN * (HEAD + PAD);            /* [OTHERS, HEAD + PAD] */
	bf16 *values = keys + OTHERS * (HEAD + PAD);
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	const int group = lane / 4, pair = lane % 4 * 2;
	const attention_head h = find_head(&s);
	const int64_t first = (int64_t)blockIdx.x * OWN, warp_row = first + warp * ROWS;
	float sums[HEAD / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {}, scores[2][4];

	qkv += h.qkv;
	load_tile<HEAD>(queries, qkv, 3 * s.width, first, OWN, s.length);
	for (int64_t key = 0; key < first + OWN && key < s.length; key += OTHERS) {
		__syncthreads(); /* the last tile was used */
		load_tile<HEAD>(keys, qkv + s.width, 3 * s.width, key, OTHERS, s.length);
		load_tile<HEAD>(values, qkv + 2 * s.width, 3 * s.width, key, OTHERS, s.length);
		__syncthreads();
		for (int k = 0; k < OTHERS && key + k <= warp_row + ROWS - 1; k += 16) {
			multiply_rows<HEAD>(scores, queries + warp * ROWS * (HEAD + PAD), keys + k * (HEAD + PAD), group,
			                    pair);
			soften<HEAD>(scores, sums, top, total, warp_row + group, key + k + pair, s.scale);
			accumulate<HEAD>(sums, scores, values + k * (HEAD + PAD), lane);
		}
	}
	for (int half = 0; half < 2; half++) {
		const int64_t row = warp_row + group + half * 8;
		total[half] = row_sum(total[half]);
		if (pair == 0 && row < s.length)
			lse[h.lse + row] = top[half] + logf(total[half]);
		total[half] = 1 / total[half];
	}
	store_sums<HEAD>(out + h.out, s.width, warp_row + group, sums, total, pair, s.length);
}

/* ---- backward: see attention.cu ---- */

template <int HEAD, bool KEYS>
__global__ void __launch_bounds__(THREADS)
backward_kernel(bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const float *lse, const float *delta,
                attention_shape s)
{
	enum { STRIDE = HEAD + PAD };
	bf16 *own = static_cast<bf16 *>(launch_memory()); /* [OWN, STRIDE]: queries, or keys */
	bf16 *own_out = own + OWN * STRIDE;               /* of dout, or values */
	bf16 *others = own_out + OWN * STRIDE;            /* [OTHERS, STRIDE]: the other way */
	bf16 *others_out = others + OTHERS * STRIDE;
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	const int group = lane / 4, pair = lane % 4 * 2;
	const attention_head h = find_head(&s);
	const int64_t first = (int64_t)blockIdx.x * OWN, warp_row = first + warp * ROWS;
	const int64_t row = warp_row + group, stride = 3 * s.width;
	const bf16 *queries = qkv + h.qkv, *keys = queries + s.width, *values = keys + s.width;
	float sums[HEAD / 8][4] = {}, value_sums[HEAD / 8][4] = {};
	float scores[2][4], dscores[2][4];
	const float ones[2] = {1, 1};

	dout += h.out;
	dqkv += h.qkv;
	lse += h.lse;
	delta += h.lse;
	load_tile<HEAD>(own, KEYS ? keys : queries, stride, first, OWN, s.length);
	load_tile<HEAD>(own_out, KEYS ? values : dout, KEYS ? stride : s.width, first, OWN, s.length);
	const int64_t begin = KEYS ? first : 0;
	const int64_t end = KEYS || first + OWN > s.length ? s.length : first + OWN;
	for (int64_t tile = begin; tile < end; tile += OTHERS) {
		__syncthreads(); /* the last tile was used */
		load_tile<HEAD>(others, KEYS ? queries : keys, stride, tile, OTHERS, s.length);
		load_tile<HEAD>(others_out, KEYS ? dout : values, KEYS ? s.width : stride, tile, OTHERS, s.length);
		__syncthreads();
		for (int k = 0; k < OTHERS; k += 16) {
			/* Neither side sees anything of the other above the diagonal. */
			if (KEYS ? tile + k + 15 < warp_row : tile + k > warp_row + ROWS - 1)
				continue;
			multiply_rows<HEAD>(scores, own + warp * ROWS * STRIDE, others + k * STRIDE, group, pair);
			multiply_rows<HEAD>(dscores, own_out + warp * ROWS * STRIDE, others_out + k * STRIDE, group, pair);
			for (int i = 0; i < 8; i++) {
				const int64_t mine = row + i % 4 / 2 * 8, other = tile + k + i / 4 * 8 + pair + i % 2;
				const int64_t query = KEYS ? other : mine, key = KEYS ? mine : other;
				const bool seen = key <= query && query < s.length;
				float *score = &scores[i / 4][i % 4], *dscore = &dscores[i / 4][i % 4];
				*score = seen ? expf(*score * s.scale - lse[query]) : 0;
				*dscore = seen ? *score * (*dscore - delta[query]) * s.scale : 0;
			}
			accumulate<HEAD>(sums, dscores, others + k * STRIDE, lane);
			if (KEYS)
				accumulate<HEAD>(value_sums, scores, others_out + k * STRIDE, lane);
		}
	}
	store_sums<HEAD>(dqkv + (KEYS ? s.width : 0), stride, row, sums, ones, pair, s.length);
	if (KEYS)
		store_sums<HEAD>(dqkv + 2 * s.width, stride, row, value_sums, ones, pair, s.length);
}

/* ---- launches ---- */

static size_t shared_bytes(int own_tiles, int head)
{
	return sizeof(bf16) * (size_t)((own_tiles * OWN + 2 * OTHERS) * (head + PAD));
}

static bool aligned(const void *address)
{
	return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

template <int HEAD>
static void forward_by(dk_cuda_queue *q, bf16 *out, float *lse, const bf16 *qkv, dim3 blocks,
                       attention_shape s)
{
	launch(q, "attention by tensor cores", forward_kernel<HEAD>, blocks, THREADS, shared_bytes(1, HEAD), out,
	       lse, qkv, s);
}

bool dk_cuda_attention_bf16(dk_cuda_queue *q, bf16 *out, float *lse, const bf16 *qkv, int64_t batch,
                            attention_shape s)
{
	const dim3 blocks = attention_blocks(batch, &s, OWN);

	if (!aligned(out) || !aligned(qkv))
		return false;
	switch (s.head) {
	case 32: forward_by<32>(q, out, lse, qkv, blocks, s); return true;
	case 64: forward_by<64>(q, out, lse, qkv, blocks, s); return true;
	case 128: forward_by<128>(q, out, lse, qkv, blocks, s); return true;
	default: return false;
	}
}

template <int HEAD>
static void backward_by(dk_cuda_queue *q, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                        const float *lse, const float *delta, dim3 blocks, attention_shape s)
{
	launch(q, "attention's gradient by tensor cores", backward_kernel<HEAD, true>, blocks, THREADS,
	       shared_bytes(2, HEAD), dqkv, dout, qkv, lse, delta, s);
	launch(q, "attention's gradient by tensor cores", backward_kernel<HEAD, false>, blocks, THREADS,
	       shared_bytes(2, HEAD), dqkv, dout, qkv, lse, delta, s);
}

bool dk_cuda_attention_bf16_backward(dk_cuda_queue *q, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                                     const float *lse, const float *delta, int64_t batch,
                                     attention_shape s)
{
	const dim3 blocks = attention_blocks(batch, &s, OWN);

	if (!aligned(dqkv) || !aligned(dout) || !aligned(qkv))
		return false;
	switch (s.head) {
	case 32: backward_by<32>(q, dqkv, dout, qkv, lse, delta, blocks, s); return true;
	case 64: backward_by<64>(q, dqkv, dout, qkv, lse, delta, blocks, s); return true;
	case 128: backward_by<128>(q, dqkv, dout, qkv, lse, delta, blocks, s); return true;
	default: return false;
	}
}
