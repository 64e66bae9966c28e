/* comm/ops/kernels for x86-64 with AVX2 and F16C; chosen at run time. */
#include "comm/ops/kernels_table.h"

#ifdef __x86_64__
#include <immintrin.h>

#define KERNEL __attribute__((target("avx2,f16c")))
#define KERNEL_F16C
#define KERNEL_TABLE ddp_kernels_avx2
#include "comm/ops/kernels_template.h"
#else
typedef int ddp_kernels_avx2_is_for_x86_64;
#endif
