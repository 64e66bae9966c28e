# SPDX-License-Identifier: Apache-2.0
# tests/bench: benchmarks, built with everything else so that they stay whole,
# run by hand: `make bench-allreduce BENCH_ARGS=--quick`. A build with sanitizers
# is none to measure, and makes only the one that test_harness runs.
bench_programs = tests/bench/rank_ddp tests/bench/rank_startup tests/bench/rank_train \
	tests/bench/rank_wire tests/bench/rank_modes tests/bench/rank_sgemm tests/bench/rank_cost tests/bench/rank_storage tests/bench/rank_survive \
	tests/bench/gpu_kernels \
	tests/bench/gpu_nccl
noinst_PROGRAMS += tests/bench/rank_plain
if SANITIZED
EXTRA_PROGRAMS += $(bench_programs)
CLEANFILES += $(bench_programs)
else
noinst_PROGRAMS += $(bench_programs)
endif

bench_rank = tests/bench/rank.c tests/bench/rank.h

# Never a libtool wrapper: it would start a shell for each rank.
tests_bench_rank_ddp_SOURCES = tests/bench/rank_ddp.c $(bench_rank)
tests_bench_rank_ddp_LDADD = libruntime/libddp.la
tests_bench_rank_ddp_LDFLAGS = $(AM_LDFLAGS) -no-install
tests_bench_rank_startup_SOURCES = tests/bench/rank_startup.c tests/bench/rank_startup.h
tests_bench_rank_startup_LDADD = libruntime/libddp.la
tests_bench_rank_startup_LDFLAGS = $(AM_LDFLAGS) -no-install
tests_bench_rank_train_SOURCES = tests/bench/rank_train.c $(bench_rank)
tests_bench_rank_train_LDADD = libruntime/libddp.la
tests_bench_rank_train_LDFLAGS = $(AM_LDFLAGS) -no-install

tests_bench_rank_plain_SOURCES = tests/bench/rank_plain.c $(bench_rank)
tests_bench_rank_plain_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -Wno-unknown-pragmas
tests_bench_rank_plain_LDADD =
tests_bench_rank_wire_SOURCES = tests/bench/rank_wire.c $(bench_rank)
tests_bench_rank_wire_LDADD =

tests_bench_rank_modes_SOURCES = tests/bench/rank_modes.c $(bench_rank) $(gpt_model_sources)
tests_bench_rank_modes_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_bench_rank_modes_LDADD = libruntime/libddp.la kernels/libkernels.la
tests_bench_rank_modes_LDFLAGS = $(AM_LDFLAGS) -no-install

tests_bench_rank_sgemm_SOURCES = tests/bench/rank_sgemm.c
tests_bench_rank_sgemm_LDADD = kernels/libkernels.la
tests_bench_rank_storage_SOURCES = tests/bench/rank_storage.c $(bench_rank)
tests_bench_rank_storage_LDADD = libruntime/libddp.la
tests_bench_rank_storage_LDFLAGS = $(AM_LDFLAGS) -no-install
tests_bench_rank_survive_SOURCES = tests/bench/rank_survive.c
tests_bench_rank_survive_LDADD = libruntime/libddp.la
tests_bench_rank_survive_LDFLAGS = $(AM_LDFLAGS) -no-install
tests_bench_rank_cost_SOURCES = tests/bench/rank_cost.c $(bench_rank)
tests_bench_rank_cost_LDADD = libruntime/libddpcore.la

# Each MPI's own compiler makes its ranks when a benchmark needs them (harness/mpi.py).
EXTRA_DIST += tests/bench/peers tests/bench/rank_mpi.c tests/bench/rank_startup_mpi.c tests/bench/harness/mpi.py

bench_environment = BENCH_PROGRAMS=$(abs_builddir)/tests/bench PYTHONDONTWRITEBYTECODE=1 \
	DDP_PLUGIN=$$(ls $(abs_builddir)/spank/.libs/spank_ddp.so 2>/dev/null)
bench_environment += BENCH_GPT=$(abs_builddir)/examples/gpt/gpt BENCH_VISION=$(abs_builddir)/examples/vision
BENCH_ARGS =
bench_names = all backend wireup allreduce algorithms startup recovery overlap gpt-step gpu vision-step \
	checkpoint-step storage ddp-overhead spank-cost scale

.PHONY: bench-allreduce bench-startup bench-overlap
bench-allreduce: tests/bench/rank_plain $(bench_programs)
	$(bench_environment) $(srcdir)/tests/bench/allreduce $(BENCH_ARGS)
.PHONY: bench-algorithms
bench-algorithms: tests/bench/rank_cost
	$(bench_environment) $(srcdir)/tests/bench/algorithms $(BENCH_ARGS)
bench-startup: tests/bench/rank_plain $(bench_programs)
	$(bench_environment) $(srcdir)/tests/bench/startup $(BENCH_ARGS)
.PHONY: bench-wireup
bench-wireup: $(bench_programs)
	$(bench_environment) $(srcdir)/tests/bench/wireup $(BENCH_ARGS)
EXTRA_DIST += tests/bench/wireup
.PHONY: bench-all
bench-all:
	@$(MAKE) --no-print-directory all
	$(bench_environment) $(srcdir)/tests/bench/all $(BENCH_ARGS)
EXTRA_DIST += tests/bench/all tests/bench/harness/comparison.py tests/bench/harness/words.py \
	tests/bench/harness/document.py tests/bench/harness/chart.py
.PHONY: bench-backend
bench-backend:
	@$(MAKE) --no-print-directory libruntime/libddp.la
	$(bench_environment) $(srcdir)/tests/bench/backend $(BENCH_ARGS)
EXTRA_DIST += tests/bench/backend
.PHONY: bench-recovery
bench-recovery: examples/gpt/gpt tests/bench/rank_survive spank/spank_ddp.la
	$(bench_environment) $(srcdir)/tests/bench/recovery $(BENCH_ARGS)
bench-overlap: tests/bench/rank_plain $(bench_programs)
	$(bench_environment) $(srcdir)/tests/bench/overlap $(BENCH_ARGS)

.PHONY: bench-gpt-step bench-ddp-overhead
bench-gpt-step: tests/bench/rank_plain $(bench_programs) examples/gpt/gpt
	$(bench_environment) $(srcdir)/tests/bench/gpt_step $(BENCH_ARGS)
tests_bench_gpu_kernels_SOURCES = tests/bench/gpu_kernels.c tests/bench/gpu_place.h tests/bench/gpu_place_host.c
tests_bench_gpu_kernels_CPPFLAGS = $(AM_CPPFLAGS)
tests_bench_gpu_kernels_LDADD = libruntime/libddpcore.la kernels/libkernels.la
if HAVE_CUDA_KERNELS
tests_bench_gpu_kernels_SOURCES += tests/bench/gpu_place_cuda.c
tests_bench_gpu_kernels_CPPFLAGS += $(CUDA_CFLAGS) -DHAVE_CUDA_KERNELS
tests_bench_gpu_kernels_LDADD += $(NVCC_LIBS) $(CUBLAS_LIBS)
endif
tests_bench_gpu_nccl_SOURCES = tests/bench/gpu_nccl.c
tests_bench_gpu_nccl_LDADD = libruntime/libddpcore.la
# On a GPU; the modules are those of this build.
EXTRA_DIST += tests/bench/gpu_place_cuda.c
EXTRA_DIST += tests/bench/gpu tests/bench/harness/gpu.py
.PHONY: bench-gpu
bench-gpu:
	@$(MAKE) --no-print-directory all
	DDP_CUDA_MODULE=$(abs_builddir)/libruntime/device/cuda/.libs/libddp_cuda.so \
	DDP_CUDA_KERNELS=$(abs_builddir)/kernels/libddp_kernels_cuda.so \
		$(bench_environment) $(srcdir)/tests/bench/gpu $(BENCH_ARGS)
.PHONY: bench-checkpoint-step
bench-checkpoint-step: examples/gpt/gpt
	$(bench_environment) $(srcdir)/tests/bench/checkpoint_step $(BENCH_ARGS)
.PHONY: bench-storage
bench-storage: tests/bench/rank_storage
	$(bench_environment) $(srcdir)/tests/bench/storage $(BENCH_ARGS)
EXTRA_DIST += tests/bench/storage tests/bench/rank_storage.py
bench-ddp-overhead: tests/bench/rank_plain $(bench_programs) examples/gpt/gpt
	$(bench_environment) $(srcdir)/tests/bench/ddp_overhead $(BENCH_ARGS)

EXTRA_DIST += tests/bench/checkpoint_step tests/bench/ddp_overhead tests/bench/gpt_step tests/bench/rank_gpt.py \
	tests/bench/rank_products.py \
	tests/bench/harness/gpt.py
EXTRA_DIST += tests/bench/README.md tests/bench/allreduce tests/bench/algorithms \
	tests/bench/overlap \
	tests/bench/startup tests/bench/recovery \
	tests/bench/rank_gloo.py tests/bench/rank_recovery.py tests/bench/rank_startup.py tests/bench/rank_train.py \
	tests/bench/harness/__init__.py tests/bench/harness/contenders.py tests/bench/harness/driver.py \
	tests/bench/harness/group.py \
	tests/bench/harness/measure.py \
	tests/bench/harness/recovery.py tests/bench/harness/report.py

EXTRA_DIST += tests/bench/vision_step tests/bench/rank_vision.py
.PHONY: bench-vision-step
bench-vision-step: $(vision_programs)
	$(bench_environment) $(srcdir)/tests/bench/vision_step $(BENCH_ARGS)

EXTRA_DIST += tests/bench/spank_cost
.PHONY: bench-spank-cost
bench-spank-cost: spank/spank_ddp.la
	$(bench_environment) $(srcdir)/tests/bench/spank_cost $(BENCH_ARGS)

EXTRA_DIST += tests/bench/scale
.PHONY: bench-scale
bench-scale: tests/bench/rank_startup tests/bench/rank_cost tests/bench/rank_storage tests/cluster/link_probe tests/cluster/wireup_probe
	$(bench_environment) $(srcdir)/tests/bench/scale $(BENCH_ARGS)
