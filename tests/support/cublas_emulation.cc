/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "cuda/functions.cuh"

bool cublas_emulation_refuses_gelu, cublas_emulation_fails_gelu;
int cublas_emulation_gelus;

struct cublas_description {
	cublasComputeType_t compute;
	int32_t transpose_a, transpose_b;
	uint32_t epilogue;
	const void *bias;
	void *aux;
	int64_t aux_stride;
};

struct cublas_layout {
	cudaDataType_t type;
	int64_t rows, columns, stride; /* a column is dense */
};

struct cublas_preference {
	uint32_t alignments[4];
};

enum { ALIGNED = 256 /* bytes: as cuBLASLt takes addresses to be, unless it is told */ };
enum { AUX_ALIGNED = 16, AUX_STRIDE = 8 };

const char *cublasLtGetStatusString(cublasStatus_t status)
{
	return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
	*handle = NULL;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
	if (scale != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	*description = new cublas_description{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL,
		NULL, 0};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description)
{
	delete description;
	return CUBLAS_STATUS_SUCCESS;
}

template <typename V> static cublasStatus_t set(V *to, const void *value, size_t bytes)
{
	if (bytes != sizeof(*to))
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, value, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t what, const void *value,
                                              size_t bytes)
{
	switch (what) {
	case CUBLASLT_MATMUL_DESC_TRANSA: return set(&description->transpose_a, value, bytes);
	case CUBLASLT_MATMUL_DESC_TRANSB: return set(&description->transpose_b, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&description->epilogue, value, bytes);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&description->bias, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return set(&description->aux, value, bytes);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return set(&description->aux_stride, value, bytes);
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride)
{
	if (rows == 0 || columns == 0 || stride < (int64_t)rows)
		return CUBLAS_STATUS_INVALID_VALUE;
	*layout = new cublas_layout{type, (int64_t)rows, (int64_t)columns, stride};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	*preference = new cublas_preference{{ALIGNED, ALIGNED, ALIGNED, ALIGNED}};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
	size_t workspace;

	return what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? set(&workspace, value, bytes)
	                                                         : set(&preference->alignments[what], value, bytes);
}

/* Products of one type, into that or, of bf16, into f32; TF32 is of f32. */
static bool possible(const cublasLtMatmulAlgo_t *p)
{
	const cudaDataType_t a = p->layouts[0]->type, b = p->layouts[1]->type;
	const cudaDataType_t c = p->layouts[2]->type, d = p->layouts[3]->type;

	return a == b && c == d && (a == CUDA_R_16BF || d == CUDA_R_32F) &&
	       (a == CUDA_R_32F || p->description->compute == CUBLAS_COMPUTE_32F);
}

static bool has_bias(const cublas_description *description)
{
	return (description->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
}

static bool has_gelu(const cublas_description *description)
{
	return description->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
	       description->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* The matrix of what GELU is, or was, applied to. */
static bool aux_fits(const cublas_description *description, const cublas_layout *d)
{
	return description->aux_stride % AUX_STRIDE == 0 && description->aux_stride >= d->rows &&
	       description->aux != NULL && reinterpret_cast<uintptr_t>(description->aux) % AUX_ALIGNED == 0;
}

/* Of NULL, the most. */
static uintptr_t alignment_of(const void *address)
{
	const uintptr_t bits = reinterpret_cast<uintptr_t>(address) | ALIGNED;

	return bits & -bits;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
	cublasLtMatmulAlgo_t chosen = {description, {a, b, c, d}, {0, 0, 0, 0}, alignment_of(description->bias),
		alignment_of(description->aux)};

	if (most < 1 || !possible(&chosen))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (has_gelu(description) && (d->type != CUDA_R_16BF || !aux_fits(description, d)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (has_gelu(description) && cublas_emulation_refuses_gelu) {
		*count = 0;
		return CUBLAS_STATUS_SUCCESS;
	}
	memcpy(chosen.alignments, preference->alignments, sizeof(chosen.alignments));
	results->algo = chosen;
	results->state = CUBLAS_STATUS_SUCCESS;
	*count = 1;
	return CUBLAS_STATUS_SUCCESS;
}

/* To TF32's 10 bits, to the nearest. */
static float rounded(float x)
{
	return __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1fffu);
}

static double gelu_of(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));

	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/* What is written of a sum. */
template <typename D>
static float finished(const cublas_description *description, float sum, int64_t row, int64_t column)
{
	if (has_bias(description))
		sum += wide(static_cast<const D *>(description->bias)[row]);
	if (!has_gelu(description))
		return sum;
	D *aux = static_cast<D *>(description->aux) + column * description->aux_stride + row;
	if (description->epilogue == CUBLASLT_EPILOGUE_DGELU)
		return (float)(sum * gelu_slope(wide(*aux)));
	put(aux, sum);
	return (float)gelu_of(sum);
}

/* op(a)[row, k] by op(b)[k, column], in f32, of columns that are dense. */
template <typename T, typename D>
static void multiply(const cublasLtMatmulAlgo_t *p, const T *a, const T *b, float beta, const D *c, D *d)
{
	const cublas_layout *x = p->layouts[0], *y = p->layouts[1], *to = p->layouts[3];
	const bool across_x = p->description->transpose_a == CUBLAS_OP_T;
	const bool across_y = p->description->transpose_b == CUBLAS_OP_T;
	const bool rounds = p->description->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
	const int64_t depth = across_x ? x->rows : x->columns;

	for (int64_t column = 0; column < to->columns; column++)
		for (int64_t row = 0; row < to->rows; row++) {
			const int64_t at = column * to->stride + row;
			float sum = 0;
			for (int64_t k = 0; k < depth; k++) {
				const float left = wide(a[across_x ? row * x->stride + k : k * x->stride + row]);
				const float right = wide(b[across_y ? k * y->stride + column : column * y->stride + k]);
				sum += rounds ? rounded(left) * rounded(right) : left * right;
			}
			if (beta != 0)
				sum += beta * wide(c[at]);
			put(d + at, finished<D>(p->description, sum, row, column));
		}
}

/* As it was told at the call, whatever its description becomes before it is done. */
struct product {
	cublas_description description;
	cublas_layout layouts[4];

	explicit product(const cublasLtMatmulAlgo_t *p)
		: description(*p->description),
		  layouts{*p->layouts[0], *p->layouts[1], *p->layouts[2], *p->layouts[3]}
	{
	}

	void compute(const void *a, const void *b, float beta, const void *c, void *d) const
	{
		product own = *this;
		const cublasLtMatmulAlgo_t p = {&own.description, {&own.layouts[0], &own.layouts[1], &own.layouts[2],
		                                &own.layouts[3]}, {0, 0, 0, 0}, 0, 0};

		if (layouts[0].type == CUDA_R_32F)
			multiply(&p, static_cast<const float *>(a), static_cast<const float *>(b), beta,
			         static_cast<const float *>(c), static_cast<float *>(d));
		else if (layouts[3].type == CUDA_R_32F)
			multiply(&p, static_cast<const bf16 *>(a), static_cast<const bf16 *>(b), beta,
			         static_cast<const float *>(c), static_cast<float *>(d));
		else
			multiply(&p, static_cast<const bf16 *>(a), static_cast<const bf16 *>(b), beta,
			         static_cast<const bf16 *>(c), static_cast<bf16 *>(d));
	}
};

static bool fits(const cublasLtMatmulAlgo_t *p)
{
	const cublas_layout *a = p->layouts[0], *b = p->layouts[1], *c = p->layouts[2], *d = p->layouts[3];
	const bool across_a = p->description->transpose_a == CUBLAS_OP_T;
	const bool across_b = p->description->transpose_b == CUBLAS_OP_T;

	return (across_a ? a->columns : a->rows) == d->rows && (across_b ? b->rows : b->columns) == d->columns &&
	       (across_a ? a->rows : a->columns) == (across_b ? b->columns : b->rows) && c->rows == d->rows &&
	       c->columns == d->columns;
}

/* Matrices are aligned as it was told before, and the others as those of the description were then. */
static bool chosen_for(const cublasLtMatmulAlgo_t *p, cublasLtMatmulDesc_t description,
                       const cublasLtMatrixLayout_t layouts[4], const void *const addresses[4])
{
	if (p->description != description ||
	    (has_bias(description) && alignment_of(description->bias) < p->bias_alignment) ||
	    (has_gelu(description) && (alignment_of(description->aux) < p->aux_alignment ||
	                               !aux_fits(description, layouts[3]))))
		return false;
	for (int i = 0; i < 4; i++)
		if (p->layouts[i] != layouts[i] || reinterpret_cast<uintptr_t>(addresses[i]) % p->alignments[i] != 0)
			return false;
	return true;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *,
                              size_t, cudaStream_t stream)
{
	const cublasLtMatrixLayout_t layouts[4] = {a_layout, b_layout, c_layout, d_layout};
	const void *const addresses[4] = {a, b, c, d};
	const float times = *static_cast<const float *>(beta);

	if (!chosen_for(algorithm, description, layouts, addresses) || !fits(algorithm) ||
	    *static_cast<const float *>(alpha) != 1)
		return CUBLAS_STATUS_INVALID_VALUE;
	if (has_gelu(description) && cublas_emulation_fails_gelu)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	cublas_emulation_gelus += has_gelu(description);
	const product as_told(algorithm);
	cuda_emulation_work(stream, [=] { as_told.compute(a, b, times, c, d); });
	return CUBLAS_STATUS_SUCCESS;
}
