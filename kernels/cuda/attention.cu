/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention by tiles, with the softmax kept up to date as keys pass (see
   cpu/attention.c): no matrix of length x length exists. Backward computes the scores
   twice, once for the gradients of keys and values, and once for those of queries, so
   that each gradient is one block's: no atomics, the same bits in each run.

   A block has a tile of rows of its own, cut over its warps, and meets the rows of the
   other side in tiles of one row for each lane. In products with these, a lane has one
   of the other rows; in sums over them, each WARPth column. */
#include "cuda/attention.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP, OTHERS = WARP };

/* If each lane has so many columns, a warp takes so many rows, and backward keeps so many factors of each at
   once. Then registers suffice, and so do the 99 KiB of shared memory that any GPU has. */
template <int COLUMNS> struct tile {
	enum {
		WIDTH = COLUMNS * WARP, STRIDE = WIDTH + 1, /* no two lanes meet in a bank */
		ROWS = COLUMNS > 4 ? 2 : 4, OWN = ROWS * WARPS,
		FACTORS = COLUMNS > 4 ? 1 : 2
	};
};

/* Rows first .. first + rows - 1 of a matrix into shared memory, zero beyond its end. */
template <int WIDTH, typename T>
__device__ void load_rows(float *to, int stride, const T *from, int64_t from_stride, int64_t first,
                          int rows, const attention_shape *s)
{
	for (int i = (int)threadIdx.x; i < rows * WIDTH; i += THREADS) {
		const int row = i / WIDTH, column = i % WIDTH;
		const bool there = first + row < s->length && column < s->head;
		to[row * stride + column] = there ? wide(from[(first + row) * from_stride + column]) : 0;
	}
}

/* products [ROWS] of the warp's rows with the lane's */
template <int ROWS, int WIDTH>
__device__ void multiply(float *products, const float *rows, const float *lane_row, int head)
{
	for (int r = 0; r < ROWS; r++)
		products[r] = 0;
	for (int d = 0; d < head; d++)
		for (int r = 0; r < ROWS; r++)
			products[r] += rows[r * WIDTH + d] * lane_row[d];
}

/* sums [ROWS, COLUMNS] += factors [ROWS, OTHERS] others [OTHERS, lane's columns] */
template <int ROWS, int COLUMNS>
__device__ void accumulate(float sums[ROWS][COLUMNS], const float *factors, const float *others,
                           int lane)
{
	for (int other = 0; other < OTHERS; other++)
		for (int c = 0; c < COLUMNS; c++) {
			const float value = others[other * tile<COLUMNS>::STRIDE + c * WARP + lane];
			for (int r = 0; r < ROWS; r++)
				sums[r][c] += factors[r * OTHERS + other] * value;
		}
}

template <int ROWS, int COLUMNS, typename T>
__device__ void store_rows(T *to, int64_t stride, int64_t first, const float sums[ROWS][COLUMNS],
                           const float *factors, int lane, const attention_shape *s)
{
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLUMNS; c++)
			if (first + r < s->length && c * WARP + lane < s->head)
				put(to + (first + r) * stride + c * WARP + lane, sums[r][c] * factors[r]);
}

template <typename T, int COLUMNS>
__global__ void __launch_bounds__(THREADS)
attention_forward_kernel(T *out, float *lse, const T *qkv, attention_shape s)
{
	typedef tile<COLUMNS> t;
	enum { ROWS = t::ROWS };
	float *queries = static_cast<float *>(launch_memory()); /* [OWN, WIDTH] */
	float *keys = queries + t::OWN * t::WIDTH;              /* [OTHERS, STRIDE] */
	float *values = keys + OTHERS * t::STRIDE;
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	float *mine = values + OTHERS * t::STRIDE + warp * ROWS * OTHERS; /* [ROWS, OTHERS] */
	const attention_head h = find_head(&s);
	const int64_t first = (int64_t)blockIdx.x * t::OWN, row = first + warp * ROWS;
	float sums[ROWS][COLUMNS] = {}, top[ROWS], total[ROWS] = {}, scores[ROWS];

	for (int r = 0; r < ROWS; r++)
		top[r] = -INFINITY;
	qkv += h.qkv;
	load_rows<t::WIDTH>(queries, t::WIDTH, qkv, 3 * s.width, first, t::OWN, &s);
	for (int64_t key = 0; key < first + t::OWN && key < s.length; key += OTHERS) {
		__syncthreads(); /* the last tile was used */
		load_rows<t::WIDTH>(keys, t::STRIDE, qkv + s.width, 3 * s.width, key, OTHERS, &s);
		load_rows<t::WIDTH>(values, t::STRIDE, qkv + 2 * s.width, 3 * s.width, key, OTHERS, &s);
		__syncthreads();
		multiply<ROWS, t::WIDTH>(scores, queries + warp * ROWS * t::WIDTH, keys + lane * t::STRIDE, s.head);
		for (int r = 0; r < ROWS; r++) {
			const float score = key + lane <= row + r ? scores[r] * s.scale : -INFINITY;
			const float highest = fmaxf(top[r], warp_max(score)); /* of at least one key */
			const float probability = expf(score - highest);
			const float shrink = expf(top[r] - highest);
			total[r] = total[r] * shrink + probability; /* of the lane's keys */
			top[r] = highest;
			mine[r * OTHERS + lane] = probability;
			for (int c = 0; c < COLUMNS; c++)
				sums[r][c] *= shrink;
		}
		__syncwarp();
		accumulate<ROWS, COLUMNS>(sums, mine, values, lane);
	}
	for (int r = 0; r < ROWS; r++) {
		total[r] = warp_sum(total[r]);
		if (lane == 0 && row + r < s.length)
			lse[h.lse + row + r] = top[r] + logf(total[r]);
		total[r] = 1 / total[r];
	}
	store_rows<ROWS, COLUMNS>(out + h.out, s.width, row, sums, total, lane, &s);
}

/* delta [batch, heads, length] = dout . out, of each row: a warp's */
template <typename T>
__global__ void attention_delta_kernel(float *delta, const T *dout, const T *out, attention_shape s)
{
	const attention_head h = find_head(&s);
	const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
	const int lane = (int)threadIdx.x % WARP;
	float sum = 0;

	if (row >= s.length)
		return;
	for (int d = lane; d < s.head; d += WARP)
		sum += wide(dout[h.out + row * s.width + d]) * wide(out[h.out + row * s.width + d]);
	sum = warp_sum(sum);
	if (lane == 0)
		delta[h.lse + row] = sum;
}

/* The gradients of a tile of queries, from all keys up to it; or, if KEYS, of a tile of
   keys and values, from all queries from it on. The products of both sides are those of
   queries with keys, and of out's gradients with values. */
template <typename T, int COLUMNS, bool KEYS>
__global__ void __launch_bounds__(THREADS)
attention_backward_kernel(T *dqkv, const T *dout, const T *qkv, const float *lse,
                          const float *delta, attention_shape s)
{
	typedef tile<COLUMNS> t;
	enum { ROWS = t::ROWS };
	float *own = static_cast<float *>(launch_memory()); /* [OWN, WIDTH]: queries, or keys */
	float *own_out = own + t::OWN * t::WIDTH;           /* of dout, or values */
	float *others = own_out + t::OWN * t::WIDTH;        /* [OTHERS, STRIDE]: the other way */
	float *others_out = others + OTHERS * t::STRIDE;
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	/* [FACTORS, ROWS, OTHERS] */
	float *mine = others_out + OTHERS * t::STRIDE + warp * t::FACTORS * ROWS * OTHERS;
	const attention_head h = find_head(&s);
	const int64_t first = (int64_t)blockIdx.x * t::OWN, row = first + warp * ROWS;
	float sums[ROWS][COLUMNS] = {}, value_sums[ROWS][COLUMNS] = {};
	float scores[ROWS], dprobabilities[ROWS], probabilities[ROWS], ones[ROWS];
	const int64_t stride = 3 * s.width;
	const T *queries = qkv + h.qkv, *keys = queries + s.width, *values = keys + s.width;

	dout += h.out;
	dqkv += h.qkv;
	lse += h.lse;
	delta += h.lse;
	load_rows<t::WIDTH>(own, t::WIDTH, KEYS ? keys : queries, stride, first, t::OWN, &s);
	load_rows<t::WIDTH>(own_out, t::WIDTH, KEYS ? values : dout, KEYS ? stride : s.width, first, t::OWN, &s);
	const int64_t begin = KEYS ? first : 0;
	const int64_t end = KEYS || first + t::OWN > s.length ? s.length : first + t::OWN;
	for (int64_t other = begin; other < end; other += OTHERS) {
		__syncthreads(); /* the last tile was used */
		load_rows<t::WIDTH>(others, t::STRIDE, KEYS ? queries : keys, stride, other, OTHERS, &s);
		load_rows<t::WIDTH>(others_out, t::STRIDE, KEYS ? dout : values, KEYS ? s.width : stride, other,
		                    OTHERS, &s);
		__syncthreads();
		multiply<ROWS, t::WIDTH>(scores, own + warp * ROWS * t::WIDTH, others + lane * t::STRIDE, s.head);
		multiply<ROWS, t::WIDTH>(dprobabilities, own_out + warp * ROWS * t::WIDTH,
		                         others_out + lane * t::STRIDE, s.head);
		for (int r = 0; r < ROWS; r++) {
			const int64_t query = KEYS ? other + lane : row + r, key = KEYS ? row + r : other + lane;
			const bool seen = key <= query && query < s.length;
			const float probability = seen ? expf(scores[r] * s.scale - lse[query]) : 0;
			const float dscore = seen ? probability * (dprobabilities[r] - delta[query]) * s.scale : 0;
			mine[r * OTHERS + lane] = dscore;
			if (t::FACTORS > 1)
				mine[(ROWS + r) * OTHERS + lane] = probability;
			else
				probabilities[r] = probability;
		}
		__syncwarp();
		accumulate<ROWS, COLUMNS>(sums, mine, others, lane);
		if (KEYS && t::FACTORS == 1) {
			__syncwarp(); /* all lanes have used `mine` */
			for (int r = 0; r < ROWS; r++)
				mine[r * OTHERS + lane] = probabilities[r];
			__syncwarp();
		}
		if (KEYS)
			accumulate<ROWS, COLUMNS>(value_sums, mine + (t::FACTORS - 1) * ROWS * OTHERS,
			                          others_out, lane);
	}
	for (int r = 0; r < ROWS; r++)
		ones[r] = 1;
	store_rows<ROWS, COLUMNS>(dqkv + (KEYS ? s.width : 0), stride, row, sums, ones, lane, &s);
	if (KEYS)
		store_rows<ROWS, COLUMNS>(dqkv + 2 * s.width, stride, row, value_sums, ones, lane, &s);
}

/* ---- launches ---- */

/* bf16 goes to the tensor cores, where they can take it. */
static bool by_tensor_cores(dk_cuda_queue *q, bf16 *out, float *lse, const bf16 *qkv, int64_t batch,
                            attention_shape s)
{
	return dk_cuda_attention_bf16(q, out, lse, qkv, batch, s);
}

static bool by_tensor_cores(dk_cuda_queue *, float *, float *, const float *, int64_t, attention_shape)
{
	return false;
}

static bool by_tensor_cores(dk_cuda_queue *q, bf16 *dqkv, const bf16 *dout, const bf16 *qkv,
                            const bf16 *out, const float *lse, float *scratch, int64_t batch, attention_shape s)
{
	return dk_cuda_attention_bf16_backward(q, dqkv, dout, qkv, out, lse, scratch, batch, s);
}

static bool by_tensor_cores(dk_cuda_queue *, float *, const float *, const float *, const float *,
                            const float *, float *, int64_t, attention_shape)
{
	return false;
}

static attention_shape shape_of(int64_t length, int64_t heads, int64_t width)
{
	const attention_shape s = {length, width, (int)heads, (int)(width / heads),
		1 / sqrtf((float)(width / heads))};

	return s;
}

template <int COLUMNS> static size_t shared_bytes(int own_tiles, int factors)
{
	typedef tile<COLUMNS> t;

	return sizeof(float) * (size_t)(own_tiles * t::OWN * t::WIDTH + 2 * OTHERS * t::STRIDE +
	                                factors * t::OWN * OTHERS);
}

template <int COLUMNS, typename T>
static void forward_by(dk_cuda_queue *q, T *out, float *lse, const T *qkv, int64_t batch,
                       attention_shape s)
{
	launch(q, "attention", attention_forward_kernel<T, COLUMNS>, attention_blocks(batch, &s, tile<COLUMNS>::OWN),
	       THREADS, shared_bytes<COLUMNS>(1, 1), out, lse, qkv, s);
}

template <typename T>
static void attention(T *, dk_cuda_queue *q, void *to, float *lse, const void *from, int64_t batch,
                      int64_t length, int64_t heads, int64_t width)
{
	const attention_shape s = shape_of(length, heads, width);
	T *out = static_cast<T *>(to);
	const T *qkv = static_cast<const T *>(from);

	if (by_tensor_cores(q, out, lse, qkv, batch, s))
		return;
	/* Few have such heads in bf16: one form for all of them compiles faster. */
	if constexpr (sizeof(T) == sizeof(bf16))
		forward_by<8>(q, out, lse, qkv, batch, s);
	else if (s.head <= 2 * WARP)
		forward_by<2>(q, out, lse, qkv, batch, s);
	else if (s.head <= 4 * WARP)
		forward_by<4>(q, out, lse, qkv, batch, s);
	else
		forward_by<8>(q, out, lse, qkv, batch, s);
}

void dk_cuda_attention_forward(dk_queue *queue, float *out, float *lse, const float *qkv,
                               int64_t batch, int64_t length, int64_t heads, int64_t width)
{
	FOR_TYPE(queue, attention, own(queue), out, lse, qkv, batch, length, heads, width);
}

template <int COLUMNS, typename T>
static void backward_by(dk_cuda_queue *q, T *dqkv, const T *dout, const T *qkv, const float *lse,
                        const float *delta, int64_t batch, attention_shape s)
{
	const dim3 blocks = attention_blocks(batch, &s, tile<COLUMNS>::OWN);
	const size_t shared = shared_bytes<COLUMNS>(2, tile<COLUMNS>::FACTORS);

	launch(q, "attention's gradient", attention_backward_kernel<T, COLUMNS, true>, blocks, THREADS, shared,
	       dqkv, dout, qkv, lse, delta, s);
	launch(q, "attention's gradient", attention_backward_kernel<T, COLUMNS, false>, blocks, THREADS, shared,
	       dqkv, dout, qkv, lse, delta, s);
}

template <typename T>
static void samples_backward(dk_cuda_queue *q, T *dqkv, const T *dout, const T *qkv, const T *out,
                             const float *lse, float *scratch, int64_t batch, attention_shape s)
{
	float *delta = scratch; /* [batch, heads, length] */

	if (by_tensor_cores(q, dqkv, dout, qkv, out, lse, scratch, batch, s))
		return;
	launch(q, "attention's gradient", attention_delta_kernel<T>, attention_blocks(batch, &s, WARPS), THREADS, 0,
	       delta, dout, out, s);
	if constexpr (sizeof(T) == sizeof(bf16))
		backward_by<8>(q, dqkv, dout, qkv, lse, delta, batch, s);
	else if (s.head <= 2 * WARP)
		backward_by<2>(q, dqkv, dout, qkv, lse, delta, batch, s);
	else if (s.head <= 4 * WARP)
		backward_by<4>(q, dqkv, dout, qkv, lse, delta, batch, s);
	else
		backward_by<8>(q, dqkv, dout, qkv, lse, delta, batch, s);
}

/* Takes as many samples at once as there is scratch for. */
template <typename T>
static void attention_backward(T *, dk_cuda_queue *q, void *dqkv, const void *dout, const void *qkv,
                               const void *out, const float *lse, int64_t batch, int64_t length,
                               int64_t heads, int64_t width)
{
	const attention_shape s = shape_of(length, heads, width);
	const int64_t rows = heads * length;
	const int64_t numbers = sizeof(T) == sizeof(bf16) ? ATTENTION_SCRATCH * rows : rows;
	const int64_t most = q->scratch_size / numbers;
	float *scratch = dk_cuda_scratch(q, numbers);

	for (int64_t first = 0; scratch != NULL && first < batch; first += most) {
		const int64_t samples = most < batch - first ? most : batch - first, at = first * length * width;
		samples_backward(q, static_cast<T *>(dqkv) + 3 * at, static_cast<const T *>(dout) + at,
		                 static_cast<const T *>(qkv) + 3 * at, static_cast<const T *>(out) + at,
		                 lse + first * rows, scratch, samples, s);
	}
}

void dk_cuda_attention_backward(dk_queue *queue, float *dqkv, const float *dout, const float *qkv,
                                const float *out, const float *lse, int64_t batch, int64_t length,
                                int64_t heads, int64_t width)
{
	FOR_TYPE(queue, attention_backward, own(queue), dqkv, dout, qkv, out, lse, batch, length, heads,
	         width);
}
