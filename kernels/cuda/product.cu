/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt. It has columns where we have rows: a row-major product is
   its product of the transposed matrices in the other order, of the same memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __CUDACC__
#include <cublasLt.h>
#endif

#include "cuda/functions.cuh"

enum { WORKSPACE_BYTES = 32 << 20, PLANS = 512 /* more than a ResNet-50 has forms */ };
/* GELU wants addresses that are multiples of so many bytes, and rows of so many elements. */
enum { GELU_ALIGNMENT = 16, GELU_STRIDE = 8 };

/* Keeps the algorithm that was found for a form of product, so that the search runs once only. */
struct plan {
	dk_product_args form; /* without its addresses */
	unsigned alignment;   /* of all of them, in bytes */
	bool refused;         /* with GELU: cuBLASLt has no algorithm */
	cublasLtMatmulDesc_t description;
	cublasLtMatrixLayout_t first, second, result;
	cublasLtMatmulAlgo_t algorithm;
};

struct dk_product {
	cublasLtHandle_t handle;
	void *workspace;
	int plans; /* so many are made; the oldest makes room */
	plan kept[PLANS];
};

static bool check(dk_cuda_queue *q, cublasStatus_t status, const char *what)
{
	if (status == CUBLAS_STATUS_SUCCESS)
		return true;
	if (q->failure[0] == '\0')
		snprintf(q->failure, sizeof(q->failure), "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
	return false;
}

bool dk_cuda_product_open(dk_cuda_queue *q)
{
	q->product = static_cast<dk_product *>(calloc(1, sizeof(*q->product)));
	if (q->product == NULL) {
		snprintf(q->failure, sizeof(q->failure), "the host is out of memory for matrix products");
		return false;
	}
	return check(q, cublasLtCreate(&q->product->handle), "start") &&
	       dk_cuda_check(q, cudaMalloc(&q->product->workspace, WORKSPACE_BYTES), "memory for matrix products");
}

static void forget(plan *p)
{
	if (p->description != NULL)
		cublasLtMatmulDescDestroy(p->description);
	for (cublasLtMatrixLayout_t layout : {p->first, p->second, p->result})
		if (layout != NULL)
			cublasLtMatrixLayoutDestroy(layout);
	*p = plan();
}

void dk_cuda_product_close(dk_cuda_queue *q)
{
	if (q->product == NULL)
		return;
	for (int i = 0; i < PLANS; i++)
		forget(&q->product->kept[i]);
	cudaFree(q->product->workspace);
	if (q->product->handle != NULL)
		cublasLtDestroy(q->product->handle);
	free(q->product);
}

/* The bytes to which all matrices and the bias are aligned, 16 at most. */
static unsigned alignment_of(const dk_product_args *p)
{
	const uintptr_t bits = reinterpret_cast<uintptr_t>(p->a) | reinterpret_cast<uintptr_t>(p->b) |
	                       reinterpret_cast<uintptr_t>(p->c) | reinterpret_cast<uintptr_t>(p->d) |
	                       reinterpret_cast<uintptr_t>(p->bias) | reinterpret_cast<uintptr_t>(p->before) |
	                       GELU_ALIGNMENT;

	return (unsigned)(bits & -bits);
}

static bool same_form(const plan *made, const dk_product_args *p, unsigned alignment)
{
	const dk_product_args *f = &made->form;

	return made->description != NULL && made->alignment == alignment &&
	       f->transpose_a == p->transpose_a && f->transpose_b == p->transpose_b && f->m == p->m &&
	       f->n == p->n && f->k == p->k && f->lda == p->lda && f->ldb == p->ldb && f->ldc == p->ldc &&
	       (f->beta != 0) == (p->beta != 0) && (f->bias != NULL) == (p->bias != NULL) && f->wide == p->wide &&
	       f->gelu == p->gelu;
}

template <typename V>
static bool describe(dk_cuda_queue *q, plan *made, cublasLtMatmulDescAttributes_t what, V value)
{
	return check(q, cublasLtMatmulDescSetAttribute(made->description, what, &value, sizeof(value)),
	             "description of a product");
}

/* A matrix of so many rows in memory, each of so many elements. */
static bool lay_out(dk_cuda_queue *q, cublasLtMatrixLayout_t *layout, bool narrow, int64_t rows,
                    int64_t columns, int64_t stride)
{
	const cudaDataType_t type = narrow ? CUDA_R_16BF : CUDA_R_32F;

	return check(q, cublasLtMatrixLayoutCreate(layout, type, (uint64_t)columns, (uint64_t)rows, stride),
	             "layout of a matrix");
}

static bool choose_algorithm(dk_cuda_queue *q, plan *made)
{
	cublasLtMatmulPreference_t preference;
	cublasLtMatmulHeuristicResult_t found;
	const size_t workspace = WORKSPACE_BYTES;
	const cublasLtMatmulPreferenceAttributes_t alignments[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	int count = 0;
	const uint32_t alignment = made->alignment;

	if (!check(q, cublasLtMatmulPreferenceCreate(&preference), "choice of an algorithm"))
		return false;
	bool good = check(q, cublasLtMatmulPreferenceSetAttribute(preference,
	                  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)), "workspace");
	for (cublasLtMatmulPreferenceAttributes_t which : alignments)
		good = good && check(q, cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment,
		                                                             sizeof(alignment)), "alignment");
	if (good) {
		cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(q->product->handle, made->description, made->first,
			made->second, made->result, made->result, preference, 1, &found, &count);
		if (status == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS))
			status = CUBLAS_STATUS_NOT_SUPPORTED;
		made->refused = status != CUBLAS_STATUS_SUCCESS && made->form.gelu != DK_NO_GELU;
		good = made->refused || check(q, status, "choice of an algorithm");
	}
	cublasLtMatmulPreferenceDestroy(preference);
	if (good && !made->refused)
		made->algorithm = found.algo;
	return good;
}

static uint32_t epilogue_of(const dk_product_args *p)
{
	switch (p->gelu) {
	case DK_GELU: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
	case DK_GELU_SLOPE: return CUBLASLT_EPILOGUE_DGELU;
	case DK_NO_GELU: break;
	}
	return p->bias != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Tells the plan where the epilogue's other operands lie. */
static bool point_to(dk_cuda_queue *q, plan *made, const void *bias, const void *before)
{
	return (made->form.bias == NULL || describe(q, made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)) &&
	       (made->form.gelu == DK_NO_GELU || describe(q, made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, before));
}

static bool make_plan(dk_cuda_queue *q, plan *made, const dk_product_args *p, unsigned alignment)
{
	const int32_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	const int32_t second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	const cublasComputeType_t by = q->base.type == DK_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	const bool narrow = dk_cuda_narrow(q);
	/* The choice of an algorithm reads nothing there, but takes its alignment for that of what will be. */
	const void *any = reinterpret_cast<const void *>(static_cast<uintptr_t>(alignment));

	made->form = *p;
	made->alignment = alignment;
	return check(q, cublasLtMatmulDescCreate(&made->description, by, CUDA_R_32F),
	             "description of a product") &&
	       describe(q, made, CUBLASLT_MATMUL_DESC_TRANSA, first) &&
	       describe(q, made, CUBLASLT_MATMUL_DESC_TRANSB, second) &&
	       describe(q, made, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p)) && point_to(q, made, any, any) &&
	       (p->gelu == DK_NO_GELU || describe(q, made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->ldc)) &&
	       lay_out(q, &made->first, narrow, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, p->ldb) &&
	       lay_out(q, &made->second, narrow, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, p->lda) &&
	       lay_out(q, &made->result, narrow && !p->wide, p->m, p->n, p->ldc) && choose_algorithm(q, made);
}

static plan *find_plan(dk_cuda_queue *q, const dk_product_args *p)
{
	dk_product *product = q->product;
	const unsigned alignment = alignment_of(p);

	for (int i = 0; i < PLANS; i++)
		if (same_form(&product->kept[i], p, alignment))
			return &product->kept[i];
	plan *made = &product->kept[product->plans++ % PLANS];
	forget(made);
	if (make_plan(q, made, p, alignment))
		return made;
	forget(made);
	return NULL;
}

/* On H100 and B200 others measured a gain by GELU at the end of cuBLASLt's products of bf16, though of weights
   as [outputs, inputs]; on an RTX 4090 it ran a kernel of its own behind the product, slower than ours. */
static bool takes_gelu(const dk_cuda_queue *q, const dk_product_args *p)
{
	return (q->capability == 9 || q->capability == 10) && dk_cuda_narrow(q) && p->ldc % GELU_STRIDE == 0 &&
	       alignment_of(p) == GELU_ALIGNMENT;
}

bool dk_cuda_product(dk_cuda_queue *q, const dk_product_args *p)
{
	const float one = 1;

	if (p->gelu != DK_NO_GELU && !takes_gelu(q, p))
		return false;
	if (q->failure[0] != '\0')
		return true;
	plan *made = find_plan(q, p);
	if (made != NULL && made->refused)
		return false;
	if (made == NULL || !point_to(q, made, p->bias, p->before))
		return true;
	const cublasStatus_t status = cublasLtMatmul(q->product->handle, made->description, &one, p->b, made->first,
		p->a, made->second, &p->beta, p->c, made->result, p->d, made->result, &made->algorithm,
		q->product->workspace, WORKSPACE_BYTES, q->stream);
	/* It looks at what it is given before it begins anything. */
	made->refused = p->gelu != DK_NO_GELU &&
	                (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE);
	if (made->refused)
		return false;
	check(q, status, "matrix product");
	return true;
}
