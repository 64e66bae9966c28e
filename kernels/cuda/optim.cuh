/* optim: what the updates of optim.cu and optim_whole.cu share. */
#ifndef DK_CUDA_OPTIM_CUH
#define DK_CUDA_OPTIM_CUH

#include "cuda/device.cuh"

/* Each rounds, which a multiply-add does not. */
__device__ inline float times(float a, float b)
{
	return __fmul_rn(a, b);
}

__device__ inline float plus(float a, float b)
{
	return __fadd_rn(a, b);
}

struct adamw_consts {
	float grad_scale, decay, beta1, one_beta1, beta2, one_beta2;
	float root_correction2, epsilon, minus_step_size, coupled;
};

adamw_consts dk_cuda_adamw_consts(const dk_adamw_args *args);

#endif
