/* SPDX-License-Identifier: Apache-2.0 */
/* cublas_emulation: stands for cuBLASLt, as far as kernels/cuda uses it, by plain loops. What
   cuBLASLt leaves undefined or cannot do is refused: other combinations of types, an
   algorithm that was chosen for another product, and addresses less aligned than it was told;
   with GELU, any but bf16, and a matrix of what it was applied to that is not as is documented. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasLtEpilogue_t {
	CUBLASLT_EPILOGUE_DEFAULT = 1,
	CUBLASLT_EPILOGUE_BIAS = 4,
	CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
	CUBLASLT_EPILOGUE_DGELU = 192,
};
enum cublasLtMatmulDescAttributes_t {
	CUBLASLT_MATMUL_DESC_TRANSA,
	CUBLASLT_MATMUL_DESC_TRANSB,
	CUBLASLT_MATMUL_DESC_EPILOGUE,
	CUBLASLT_MATMUL_DESC_BIAS_POINTER,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
	CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
};
enum cublasLtMatmulPreferenceAttributes_t {
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
	CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
	CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
};

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublas_description *cublasLtMatmulDesc_t;
typedef struct cublas_layout *cublasLtMatrixLayout_t;
typedef struct cublas_preference *cublasLtMatmulPreference_t;

/* For which product it is: of A, B, C, D. */
struct cublasLtMatmulAlgo_t {
	cublasLtMatmulDesc_t description;
	cublasLtMatrixLayout_t layouts[4];
	uint32_t alignments[4];
	uintptr_t bias_alignment, aux_alignment;
};

struct cublasLtMatmulHeuristicResult_t {
	cublasLtMatmulAlgo_t algo;
	cublasStatus_t state;
};

/* No algorithm is found with GELU, or the product is refused that has one; and how many there were with it. */
extern bool cublas_emulation_refuses_gelu, cublas_emulation_fails_gelu;
extern int cublas_emulation_gelus;

const char *cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute,
		cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
		cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
		uint64_t columns, int64_t stride);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
		cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
		cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
		cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int most,
		cublasLtMatmulHeuristicResult_t *results, int *count);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
		const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
		cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
		cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
		const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
		cudaStream_t stream);
