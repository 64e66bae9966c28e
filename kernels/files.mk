# SPDX-License-Identifier: Apache-2.0
# kernels: numeric kernels, linked into libddp and into the examples.
kernels_cflags = $(AM_CFLAGS) $(OPENMP_CFLAGS) -ffp-contract=off

noinst_LTLIBRARIES += kernels/libkernels.la
kernels_libkernels_la_SOURCES = kernels/kernels.c kernels/half.h kernels/kernels.h kernels/splitmix.h kernels/table.h kernels/update.h \
	kernels/cpu/attention.c \
	kernels/cpu/batch_norm.c \
	kernels/cpu/bf16.c \
	kernels/cpu/bf16.h \
	kernels/cpu/classifier.c \
	kernels/cpu/convert.c \
	kernels/cpu/convolution.c \
	kernels/cpu/cpu.h \
	kernels/cpu/elements.c \
	kernels/cpu/factors.c \
	kernels/cpu/gemm.c \
	kernels/cpu/layers.c \
	kernels/cpu/f16_queue.c \
	kernels/cpu/mixed.c \
	kernels/cpu/mixed.h \
	kernels/cpu/mixed_attention.c \
	kernels/cpu/mixed_classifier.c \
	kernels/cpu/mixed_layers.c \
	kernels/cpu/mixed_queue.c \
	kernels/cpu/numbers.h \
	kernels/cpu/optim.c \
	kernels/cpu/optim_whole.c \
	kernels/cpu/parallel.c \
	kernels/cpu/pooling.c \
	kernels/cpu/product.c \
	kernels/cpu/product.h \
	kernels/cpu/winograd.c \
	kernels/cpu/winograd.h
kernels_libkernels_la_CFLAGS = $(kernels_cflags) $(BLAS_CFLAGS)
kernels_libkernels_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS)
kernels_libkernels_la_LIBADD = kernels/libinner_base.la $(BLAS_LIBS) $(MATH_LIBS)

# The same for programs outside this tree: headers, and the kernels of this release to be linked into
# them. What they call on a queue of ddp_kernels_open() goes by the table, whose version is compared.
lib_LTLIBRARIES += kernels/libddpkernels.la
kernels_libddpkernels_la_SOURCES =
kernels_libddpkernels_la_LIBADD = kernels/libkernels.la
kernels_libddpkernels_la_LDFLAGS = -static
kernelsincludedir = $(includedir)/ddp
kernelsinclude_HEADERS = kernels/kernels.h kernels/table.h
pkgconfig_DATA += kernels/libddpkernels.pc

# Of programs alone, so that libddp does not load oneDNN; linked before libkernels.la.
noinst_LTLIBRARIES += kernels/libconvolution.la
kernels_libconvolution_la_SOURCES = kernels/cpu/convolution_onednn.c kernels/cpu/convolution_onednn.h
kernels_libconvolution_la_CFLAGS = $(kernels_cflags)
kernels_libconvolution_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS)
kernels_libconvolution_la_LIBADD = $(ONEDNN_LIBS)

# The inner loops once per instruction set.
inner_sources = \
	kernels/cpu/bf16.h kernels/cpu/inner.h kernels/cpu/vec.h \
	kernels/cpu/inner_bf16.c \
	kernels/cpu/inner_images.c \
	kernels/cpu/inner_optim.c \
	kernels/cpu/inner_rows.c \
	kernels/cpu/inner_softmax.c \
	kernels/cpu/inner_table.c

noinst_LTLIBRARIES += kernels/libinner_base.la
kernels_libinner_base_la_SOURCES = $(inner_sources)
kernels_libinner_base_la_CPPFLAGS = $(AM_CPPFLAGS) -DDK_ISA=base
kernels_libinner_base_la_CFLAGS = $(kernels_cflags)

if HAVE_AVX2_KERNELS
noinst_LTLIBRARIES += kernels/libinner_avx2.la
kernels_libinner_avx2_la_SOURCES = $(inner_sources)
kernels_libinner_avx2_la_CPPFLAGS = $(AM_CPPFLAGS) -DDK_ISA=avx2
kernels_libinner_avx2_la_CFLAGS = $(kernels_cflags) -mavx2 -mfma
kernels_libkernels_la_LIBADD += kernels/libinner_avx2.la
noinst_LTLIBRARIES += kernels/libwinograd_avx2.la
kernels_libwinograd_avx2_la_SOURCES = kernels/cpu/winograd_inner.c kernels/cpu/bf16.h kernels/cpu/winograd.h
kernels_libwinograd_avx2_la_CFLAGS = $(kernels_cflags) -mavx2 -mfma
kernels_libkernels_la_LIBADD += kernels/libwinograd_avx2.la
endif

if HAVE_AVX512_KERNELS
noinst_LTLIBRARIES += kernels/libinner_avx512.la
kernels_libinner_avx512_la_SOURCES = $(inner_sources)
kernels_libinner_avx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DDK_ISA=avx512
kernels_libinner_avx512_la_CFLAGS = $(kernels_cflags) -mavx512f
kernels_libkernels_la_LIBADD += kernels/libinner_avx512.la
noinst_LTLIBRARIES += kernels/libwinograd_avx512.la
kernels_libwinograd_avx512_la_SOURCES = kernels/cpu/winograd_inner.c kernels/cpu/bf16.h kernels/cpu/winograd.h
kernels_libwinograd_avx512_la_CPPFLAGS = $(AM_CPPFLAGS) -DDK_WINOGRAD_AVX512
kernels_libwinograd_avx512_la_CFLAGS = $(kernels_cflags) -mavx512f
kernels_libkernels_la_LIBADD += kernels/libwinograd_avx512.la
noinst_LTLIBRARIES += kernels/libproduct_avx512.la
kernels_libproduct_avx512_la_SOURCES = kernels/cpu/product_avx512.c kernels/cpu/bf16.h kernels/cpu/product.h kernels/cpu/transpose_avx512.h
kernels_libproduct_avx512_la_CFLAGS = $(kernels_cflags) -mavx512f
kernels_libkernels_la_LIBADD += kernels/libproduct_avx512.la
endif

if HAVE_AVX512_BF16_KERNELS
noinst_LTLIBRARIES += kernels/libbf16_avx512.la
kernels_libbf16_avx512_la_SOURCES = kernels/cpu/bf16_avx512.c kernels/cpu/bf16.h kernels/cpu/transpose_avx512.h
kernels_libbf16_avx512_la_CFLAGS = $(kernels_cflags) -mavx512f -mavx512bw -mavx512vl -mavx512bf16
kernels_libkernels_la_LIBADD += kernels/libbf16_avx512.la
endif

if HAVE_AMX_KERNELS
noinst_LTLIBRARIES += kernels/libbf16_amx.la
kernels_libbf16_amx_la_SOURCES = kernels/cpu/bf16_amx.c kernels/cpu/bf16.h
kernels_libbf16_amx_la_CFLAGS = $(kernels_cflags) -mamx-tile -mamx-bf16
kernels_libkernels_la_LIBADD += kernels/libbf16_amx.la
endif

# Kernels for GPUs. Tests compile them for the host, too (tests/files.mk).
cuda_kernel_sources = \
	kernels/cuda/attention.cu \
	kernels/cuda/attention_bf16.cu \
	kernels/cuda/attention_bf16_backward.cu \
	kernels/cuda/batch_norm.cu \
	kernels/cuda/classifier.cu \
	kernels/cuda/convolution.cu \
	kernels/cuda/elements.cu \
	kernels/cuda/embedding.cu \
	kernels/cuda/factors.cu \
	kernels/cuda/graph.cu \
	kernels/cuda/layers.cu \
	kernels/cuda/optim.cu \
	kernels/cuda/optim_whole.cu \
	kernels/cuda/pooling.cu \
	kernels/cuda/product.cu \
	kernels/cuda/queue.cu
cuda_kernel_headers = kernels/cuda/attention.cuh kernels/cuda/device.cuh kernels/cuda/functions.cuh \
	kernels/cuda/gpu.h kernels/cuda/optim.cuh kernels/cuda/row_sums.cuh kernels/cuda/tensor_cores.cuh kernels/cuda/window.cuh kernels/half.h \
	kernels/kernels.h kernels/splitmix.h kernels/table.h kernels/update.h
# In tests without a GPU, tests have another one.
cuda_library_sources = kernels/cuda/gpu.cu
EXTRA_DIST += $(cuda_kernel_sources) $(cuda_kernel_headers)
EXTRA_DIST += $(cuda_library_sources)

# A module of its own: it needs cuBLASLt, which is large; a GPU's memory, queues and
# communication do not.
if HAVE_CUDA_KERNELS
cuda_kernelsdir = $(pkglibdir)
cuda_kernels_DATA = kernels/libddp_kernels_cuda.so
NVCCFLAGS = -O3
NVCC_ARCHS = -gencode arch=compute_80,code=sm_80 -gencode 'arch=compute_90,code=[sm_90,compute_90]'
cuda_kernel_objects = $(cuda_kernel_sources:.cu=.o) $(cuda_library_sources:.cu=.o)
$(cuda_kernel_objects): $(cuda_kernel_headers)
SUFFIXES = .cu
.cu.o:
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(NVCC) -std=c++17 $(NVCCFLAGS) $(NVCC_ARCHS) -Xcompiler -fPIC,-fvisibility=hidden -I$(top_srcdir)/kernels -c -o $@ $<
kernels/libddp_kernels_cuda.so: $(cuda_kernel_objects)
	$(AM_V_GEN)$(NVCC) -shared -o $@ $(cuda_kernel_objects) -lcublasLt
CLEANFILES += kernels/libddp_kernels_cuda.so $(cuda_kernel_objects)
endif
