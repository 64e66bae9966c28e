# SPDX-License-Identifier: Apache-2.0
# tests: those in unit/ (one process) and ranks/ (several) are run by `make check`;
# each prints TAP. tests/run runs these in several builds, and the tests in cluster/ on
# real clusters.
# Which tests there are, their first lines say (tests/support/tags).
include $(top_srcdir)/tests/programs.mk
TESTS += $(test_scripts)
EXTRA_DIST += $(test_scripts) tests/abi/abi.sh tests/abi/libddp.abi
.PHONY: abi abi-update
abi: libruntime/libddp.la
	@CC='$(CC)' $(top_srcdir)/tests/abi/abi.sh list $(top_srcdir)/libruntime/include libruntime/.libs/libddp.so | \
		diff -u $(top_srcdir)/tests/abi/libddp.abi -
abi-update: libruntime/libddp.la
	@CC='$(CC)' $(top_srcdir)/tests/abi/abi.sh update $(top_srcdir)/libruntime/include libruntime/.libs/libddp.so $(PACKAGE_VERSION)
EXTRA_DIST += tests/run tests/cluster tests/support/tap tests/support/builds.sh tests/support/checks.sh tests/support/check-ucx \
	tests/support/clusters.sh tests/support/example.sh tests/support/quick-libtool tests/support/results.sh tests/support/slowness.sh tests/support/tags \
	tests/support/check-gpu tests/support/check-packages tests/support/check-slurm tests/support/check-waits tests/support/coverage tests/support/tidy tests/support/tidy.h
# A folder brings what was built in it, too.
dist-hook:
	$(top_srcdir)/build-version --commit >$(distdir)/build-commit
	cd $(distdir)/tests/cluster && rm -rf .deps .libs .dirstamp *.o *.d *.lo wireup_probe$(EXEEXT) training_probe$(EXEEXT) \
		scale_probe$(EXEEXT) storm_probe$(EXEEXT) silence_probe$(EXEEXT) \
		link_probe$(EXEEXT) record_probe$(EXEEXT)

# A test that hangs ends as a failure.
TEST_SECONDS = 300
LOG_COMPILER = $(top_srcdir)/tests/support/tap
AM_LOG_FLAGS = $(TEST_SECONDS)
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh --comments
AM_TESTS_ENVIRONMENT = CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT;
# UCX starts a thread when it is loaded (VFS). A rank that is forked while this thread allocates has
# libucm's lock held by nobody, and ucp_init() waits for it for ever (UCX 1.23).
AM_TESTS_ENVIRONMENT += UCX_VFS_ENABLE=n; export UCX_VFS_ENABLE;
# Several ranks of several threads share few cores: threads that wait by spinning take most of them.
AM_TESTS_ENVIRONMENT += OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY;
if SANITIZED
AM_TESTS_ENVIRONMENT += sanitizer='$(SANITIZER_CFLAGS)'; export sanitizer;
# UCX's hook in madvise runs on threads at whose end TSan is done with them.
AM_TESTS_ENVIRONMENT += UCX_MEM_MMAP_HOOK_MODE=none; export UCX_MEM_MMAP_HOOK_MODE;
endif

# What tests/run asks of this build.
print-prefix:
	@echo $(prefix)
print-examples:
	@for program in $(bin_PROGRAMS) $(noinst_PROGRAMS); do \
		case $$program in examples/*) echo $$program ;; esac; done
# What check-packages asks.
print-tests:
	@for test in $(TESTS); do echo $$test; done
# The long forms of what `make check` does shortly.
check-comm: tests/ranks/test_comm_random tests/ranks/test_comm_stalls tests/ranks/test_comm_credit
	DDP_TEST_BATCHES=400 tests/ranks/test_comm_random
	DDP_TEST_STOPS=200 tests/ranks/test_comm_stalls
	DDP_TEST_MIB=8192 tests/ranks/test_comm_credit
check-engine: tests/ranks/test_engine
	DDP_TEST_CASES=200 tests/ranks/test_engine
# Steps, PowerSGD and the optimizers beside PyTorch's; PYTHON is one that has torch.
check-torch: libruntime/libddp.la
	$(PYTHON) $(top_srcdir)/tests/ranks/ddp_torch.py
	$(PYTHON) $(top_srcdir)/tests/ranks/optim_torch.py --figures
	$(PYTHON) $(top_srcdir)/tests/ranks/powersgd_torch.py --figures
EXTRA_DIST += tests/support/checks.py tests/support/libddp.py
# Takes each wait for an event out once, and wants a test to fail then.
check-waits: tests/ranks/test_device_model tests/ranks/test_device_ways tests/ranks/test_comm_device \
		tests/ranks/test_optimizers tests/ranks/test_powersgd tests/ranks/test_survive \
		tests/ranks/test_engine tests/ranks/test_nccl_messages tests/unit/test_device tests/unit/test_kernel_device \
		tests/unit/test_kernel_graph_cuda tests/unit/test_kernel_queue_cuda tests/support/module_of_another_version.la \
		tests/device/libddp_fake_gpu.la
	$(top_srcdir)/tests/support/check-waits $(top_srcdir)
# 256 ranks on 16 nodes of a throw-away cluster; needs root.
check-scale: all tests/cluster/scale_probe
	TEST_NODES=16 TEST_REPORT=$(abs_builddir)/scale.report $(top_srcdir)/tests/run --no-install --build . cluster/comm_scale
	@cat scale.report
# ddp-preflight names each fault in each of 100 runs, and nothing in 100 runs beside 8 busy processes; needs root.
# TEST_SECONDS replaces the time that the test has of itself.
check-preflight: all
	PREFLIGHT_RUNS=$${PREFLIGHT_RUNS:-100} PREFLIGHT_LOAD=$${PREFLIGHT_LOAD:-8} TEST_SECONDS=20000 \
		$(top_srcdir)/tests/run --no-install --build . cluster/preflight
# Trainings on a throw-away cluster, hurt at random; needs root. STORM_ARGS='--rounds 300 --seed 7'
check-storm: all
	STORM_REPORT=$(abs_builddir)/storm.report $(top_srcdir)/tests/run --no-install --build . cluster/storm
	@cat storm.report
# Trainings with restart= on such a cluster, whose ranks and nodes fail at random; needs root.
# FAILURES_ARGS='--failures 100 --seed 7'; CALM_SECONDS=3600 CALM_LOAD=40: how long no restart may come on a busy machine.
check-failures: all
	FAILURES_REPORT=$(abs_builddir)/failures.report $(top_srcdir)/tests/run --no-install --build . cluster/failures
	@cat failures.report
# clang-tidy on what users run; NAMES='spank libruntime/comm/net' chooses.
CLANG_TIDY = clang-tidy
if HAVE_CUDA
tidy_without =
else
tidy_without = device/cuda/
endif
tidy:
	@WITHOUT='$(tidy_without)' $(top_srcdir)/tests/support/tidy '$(CLANG_TIDY)' "$$(nproc)" $(top_srcdir) -std=gnu11 $(DEFS) \
		$(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) -I$(top_srcdir)/examples $(PMIX_CFLAGS) $(UCX_CFLAGS) \
		$(CRYPTO_CFLAGS) $(JANSSON_CFLAGS) $(BLAS_CFLAGS) $(SLURM_CFLAGS) $(CUDA_CFLAGS)
# Which lines the tests of one process and of ranks run, by folders; NAMES='test_job test_engine' chooses tests.
coverage:
	@$(top_srcdir)/tests/support/coverage $(top_srcdir) "$$(nproc)" $(MAKE)
# The tests of the communicator and of NCCL's network on a current UCX, which pip downloads:
# UCX_WHEEL='NAME==VERSION'.
check-ucx:
	@tests=; for program in $(check_PROGRAMS); do \
		case $$program in tests/*/test_comm_*|*/test_netplugin*) tests="$$tests $$program" ;; esac; done; \
	$(top_srcdir)/tests/support/check-ucx $(top_srcdir) $$tests
# Failures survived, on another release of SLURM.
SLURM_TESTS = spank_identity spank_failure spank_blame spank_stop spank_requeue spank_stall spank_witness spank_absent \
	spank_silence spank_agents spank_restart spank_restart_nodes silence restart_training spank_cgroups
check-slurm:
	@$(top_srcdir)/tests/support/check-slurm $(top_srcdir) $(SLURM_TESTS)
# Packages and units whole, and make check as an ordinary user beside a read-only source; PARTS='user rpm' chooses.
check-packages: all
	@$(MAKE) --no-print-directory dist
	@$(top_srcdir)/tests/support/check-packages $(top_srcdir) $(distdir).tar.gz $(PARTS)
# All that needs a GPU, which make check skips without one; the output stays in gpu-results.
gpu_programs = tests/unit/test_device tests/ranks/test_comm_nccl \
	tests/ranks/test_nccl_messages tests/ranks/test_nccl_reductions
# Of kernels: those that compute-sanitizer runs, too.
gpu_kernels = tests/unit/test_kernel_device tests/unit/test_kernel_graph tests/unit/test_kernel_images_device \
	tests/unit/test_kernel_queue tests/unit/test_model_graph tests/unit/test_optimizers_device
if HAVE_CUDA_KERNELS
gpu_programs += $(gpu_kernels)
endif
# Those in shell, which run a build's programs.
gpu_scripts =
if HAVE_CUDA_KERNELS
gpu_scripts += $(top_srcdir)/tests/gpu/train.sh
endif
if HAVE_NCCL_NET
gpu_scripts += $(top_srcdir)/tests/gpu/netplugin.sh
endif
if HAVE_CUDA
noinst_PROGRAMS += tests/gpu/nccl_sums
tests_gpu_nccl_sums_SOURCES = tests/gpu/nccl_sums.c libruntime/base/error.c libruntime/base/c_locale.c libruntime/comm/nccl/load.c
tests_gpu_nccl_sums_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_gpu_nccl_sums_LDADD = $(CUDA_LIBS)
endif
gpu_tests = $(gpu_programs) $(gpu_scripts)
EXTRA_DIST += tests/gpu/kit.sh tests/gpu/lib.sh tests/gpu/netplugin.sh tests/gpu/run.sh \
	tests/gpu/torch_sums.py tests/gpu/train.sh
gpu_builds = all $(gpu_programs) tests/support/module_of_another_version.la
check-gpu:
	@$(top_srcdir)/tests/support/check-gpu --here
	@$(MAKE) --no-print-directory $(gpu_builds)
	@$(top_srcdir)/tests/support/check-gpu $(gpu_tests)
# The same and bench-gpu as a folder, for a machine that has a GPU and nothing to build with.
gpu-kit:
	@$(MAKE) --no-print-directory $(gpu_builds)
	@$(top_srcdir)/tests/gpu/kit.sh gpu-kit $(gpu_tests)
mostlyclean-local:
	rm -rf coverage packages.work ucx-current gpu-kit gpu-results gpu-results.tar.gz scale.report storm.report failures.report
.PHONY: print-prefix print-examples print-tests check-comm check-engine check-failures check-gpu check-packages check-preflight check-scale check-slurm check-storm check-torch \
	check-ucx check-waits coverage gpu-kit tidy

include $(top_srcdir)/tests/bench/files.mk

# The fake GPU: device/cuda over CUDA's runtime on the host's threads, kernels and NCCL in one module, which is
# linked with none of libddp. -rpath makes libtool link it as a module. Tests on clusters need it, too, without
# `make check`.
noinst_LTLIBRARIES += tests/device/libddp_fake_gpu.la
tests_device_libddp_fake_gpu_la_SOURCES = \
	tests/device/fake_gpu.h tests/device/gpu.c \
	tests/device/host_image_kernels.c \
	tests/device/host_kernels.c \
	tests/device/host_task.c tests/device/host_task.h \
	tests/device/include/cuda.h tests/device/include/cuda_runtime_api.h \
	tests/device/memory.c tests/device/memory.h \
	tests/device/nccl_standin.c tests/device/nccl_standin.h \
	tests/device/nccl_standin_move.c tests/device/nccl_standin_move.h \
	tests/device/order.c tests/device/order.h \
	tests/device/runtime.c tests/device/runtime.h \
	tests/device/stream.c \
	libruntime/device/cuda/cuda.c
tests_device_libddp_fake_gpu_la_CPPFLAGS = -I$(top_srcdir)/tests/device/include $(AM_CPPFLAGS)
tests_device_libddp_fake_gpu_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off
tests_device_libddp_fake_gpu_la_LIBADD = kernels/libkernels.la $(MATH_LIBS)
tests_device_libddp_fake_gpu_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared -rpath $(abs_builddir) \
	-export-symbols-regex '^(ddp_device_module|dk_cuda_table|fake_gpu|nccl_standin|nccl[A-Z].*)$$'

if HAVE_CMOCKA
# The main() of programs whose cases are TEST()s.
check_LTLIBRARIES += tests/support/libtest.la
tests_support_libtest_la_SOURCES = tests/support/test.c tests/support/test.h
CASES = tests/support/libtest.la $(CMOCKA_LIBS)
# What several tests use, compiled once.
check_LTLIBRARIES += tests/support/libsupport.la
tests_support_libsupport_la_SOURCES = \
	tests/support/comm_case.c \
	tests/support/comm_cases.c tests/support/comm_cases.h \
	tests/support/comm_ranks.c tests/support/comm_ranks.h \
	tests/support/comm_shrink.c tests/support/comm_shrink.h \
	tests/support/context_ranks.c tests/support/context_ranks.h \
	tests/support/device_checks.h \
	tests/support/device_ranks.c tests/support/device_ranks.h \
	tests/support/fake_gpu.c \
	tests/support/flood.c tests/support/flood.h \
	tests/support/folder.c tests/support/folder.h \
	tests/support/halves.h \
	tests/support/hung.c tests/support/hung.h \
	tests/support/kernel_sets.h \
	tests/support/options.h \
	tests/support/kernel_values.h \
	tests/support/model_side.c tests/support/model_side.h \
	tests/support/optimizer_cases.h \
	tests/support/ranks.c tests/support/ranks.h \
	tests/support/sanitizers.h \
	tests/support/scenario.c tests/support/scenario.h \
	tests/support/scenario_model.c \
	tests/support/small_net.h \
	tests/support/spank_task.c tests/support/spank_task.h \
	tests/support/step_ranks.c tests/support/step_ranks.h \
	tests/support/tcp_ranks.c tests/support/tcp_ranks.h \
	tests/support/test_module.c \
	tests/support/training.c tests/support/training.h
EXTRA_tests_support_libsupport_la_DEPENDENCIES = tests/device/libddp_fake_gpu.la

# What test_device loads: -rpath makes libtool link it as a module.
check_LTLIBRARIES += tests/support/module_of_another_version.la
tests_support_module_of_another_version_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-rpath $(abs_builddir)

# A program whose source is the one file of its name needs its line below, no more:
# it is linked with these, and loads only what it uses of them.
LDADD = tests/support/test_module.lo tests/support/libsupport.la spank/status/libstatus.la \
	libruntime/libddpcore.la $(CASES) $(JANSSON_LIBS)

check_PROGRAMS += $(test_programs)

tests_ranks_test_nccl_reductions_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
tests_ranks_test_comm_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc -Wl,--wrap=calloc \
	-Wl,--wrap=ddp_net_recv
tests_ranks_test_checkpoint_SOURCES = tests/ranks/test_checkpoint.c \
	tests/support/checkpoint_jobs.c tests/support/checkpoint_jobs.h
tests_ranks_test_checkpoint_load_SOURCES = tests/ranks/test_checkpoint_load.c tests/support/checkpoint_jobs.c
tests_ranks_test_checkpoint_load_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc -Wl,--wrap=calloc
tests_ranks_test_checkpoint_beside_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=fsync -Wl,--wrap=pthread_create
tests_ranks_test_device_model_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_place_read -Wl,--wrap=ddp_wait_timed
tests_ranks_test_device_ways_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_spans_union -Wl,--wrap=ddp_place_alloc \
	-Wl,--wrap=dk_largest_at -Wl,--wrap=dk_squares_at
tests_ranks_test_engine_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_bucket_plan_make
tests_ranks_test_local_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_reducer_run
tests_ranks_test_model_SOURCES = tests/ranks/test_model.c tests/support/three_params.c tests/support/three_params.h
tests_ranks_test_model_refusals_SOURCES = tests/ranks/test_model_refusals.c tests/support/three_params.c
tests_ranks_test_model_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_broadcast -Wl,--wrap=ddp_memory_copies
tests_ranks_test_optimizers_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_issue -Wl,--wrap=ddp_wait_timed
tests_ranks_test_survive_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_survival_begin_update \
	-Wl,--wrap=ddp_model_set_user_state -Wl,--wrap=ddp_level_resume -Wl,--wrap=ddp_outbox_end
tests_ranks_test_shards_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_reducer_issue
tests_ranks_test_training_ends_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=sigaction
tests_unit_test_links_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=openat
tests_unit_test_optim_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=dk_update
tests_unit_test_store_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=pread
tests_unit_test_store_faults_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=write -Wl,--wrap=fsync -Wl,--wrap=close \
	-Wl,--wrap=rename -Wl,--wrap=unlink -Wl,--wrap=opendir
tests_ranks_test_comm_net_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_unit_test_preflight_LDADD = libruntime/preflight/libpreflight.la $(LDADD)
tests_unit_test_preflight_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tests_ranks_test_comm_net_LDADD = $(LDADD) $(UCX_LIBS)
tests_ranks_test_comm_net_messages_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_comm_net_messages_LDADD = $(LDADD) $(UCX_LIBS)
attacker = tests/support/attacker.c tests/support/attacker.h
tests_ranks_test_comm_attacker_SOURCES = tests/ranks/test_comm_attacker.c $(attacker)
tests_ranks_test_comm_attacker_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_comm_attacker_LDADD = $(LDADD) $(UCX_LIBS)
tests_ranks_test_comm_attacker_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic-symbol=setsockopt \
	-Wl,--export-dynamic-symbol=send -Wl,--export-dynamic-symbol=listen
tests_ranks_test_comm_net_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_net_connect -Wl,--wrap=ddp_net_lost
tests_ranks_test_comm_shrink_net_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_agreement_round
tests_ranks_test_comm_shrink_net_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_comm_shrink_net_LDADD = $(LDADD) $(UCX_LIBS)
tests_ranks_test_comm_ucx_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_comm_ucx_LDADD = $(LDADD) $(UCX_LIBS)
netplugin_ranks = tests/support/nccl_driver.c tests/support/nccl_driver.h \
	tests/support/netplugin_ranks.c tests/support/netplugin_ranks.h
tests_ranks_test_netplugin_SOURCES = tests/ranks/test_netplugin.c $(netplugin_ranks)
tests_unit_test_ucx_sendv_SOURCES = tests/unit/test_ucx_sendv.c tests/support/nccl_driver.c tests/support/nccl_driver.h
tests_unit_test_ucx_sendv_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_unit_test_ucx_sendv_LDADD = $(LDADD) $(UCX_LIBS)
if HAVE_NCCL_NET
EXTRA_tests_unit_test_ucx_sendv_DEPENDENCIES = libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
endif
tests_ranks_test_netplugin_ends_SOURCES = tests/ranks/test_netplugin_ends.c $(netplugin_ranks)
tests_ranks_test_netplugin_ends_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_netplugin_ends_LDADD = $(LDADD) $(UCX_LIBS)
tests_ranks_test_netplugin_attacker_SOURCES = tests/ranks/test_netplugin_attacker.c $(netplugin_ranks) $(attacker)
tests_ranks_test_netplugin_attacker_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic-symbol=setsockopt \
	-Wl,--export-dynamic-symbol=send -Wl,--export-dynamic-symbol=listen -Wl,--export-dynamic-symbol=dladdr1
EXTRA_tests_ranks_test_netplugin_attacker_DEPENDENCIES = libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
tests_ranks_test_netplugin_cuda_SOURCES = tests/ranks/test_netplugin_cuda.c $(netplugin_ranks)
tests_ranks_test_netplugin_cuda_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_ranks_test_netplugin_cuda_LDFLAGS = $(AM_LDFLAGS) -Wl,--export-dynamic-symbol=ucp_context_query \
	-Wl,--export-dynamic-symbol=ucp_mem_map -Wl,--export-dynamic-symbol=ucp_tag_send_nbx \
	-Wl,--export-dynamic-symbol=ucp_tag_recv_nbx -Wl,--export-dynamic-symbol=ucp_get_nbx
EXTRA_tests_ranks_test_netplugin_cuda_DEPENDENCIES = libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
EXTRA_tests_ranks_test_netplugin_DEPENDENCIES = libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
EXTRA_tests_ranks_test_netplugin_ends_DEPENDENCIES = libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
tests_ranks_test_comm_threads_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=pthread_create -Wl,--wrap=ddp_execute_p2p
tests_unit_test_group_outlives_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=ddp_page_wait
tests_ranks_test_pages_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=sysconf -Wl,--wrap=mmap
tests_unit_test_gpudirect_SOURCES = tests/unit/test_gpudirect.c libruntime/nccl_plugins/net/gpudirect.c
tests_unit_test_gpt_model_SOURCES = tests/unit/test_gpt_model.c $(gpt_model_sources)
tests_unit_test_gpt_model_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples

net_only_sources = examples/models/net.c examples/models/net.h examples/models/net_inside.h \
	examples/models/net_pass.c examples/models/resnet.c examples/models/resnet.h
net_model_sources = $(net_only_sources) $(graph_sources)
tests_unit_test_net_model_SOURCES = tests/unit/test_net_model.c $(net_model_sources)
tests_unit_test_net_model_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_net_model_LDADD = kernels/libconvolution.la kernels/libkernels.la $(CASES)
tests_ranks_test_sync_batch_norm_SOURCES = tests/ranks/test_sync_batch_norm.c $(net_model_sources)
tests_ranks_test_sync_batch_norm_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_ranks_test_sync_batch_norm_LDADD = kernels/libconvolution.la $(LDADD)
tests_unit_test_convolution_onednn_LDADD = kernels/libconvolution.la kernels/libkernels.la $(CASES)
tests_ranks_test_device_net_SOURCES = tests/ranks/test_device_net.c $(net_model_sources)
tests_ranks_test_device_net_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_ranks_test_device_net_LDADD = kernels/libconvolution.la $(LDADD)
kernel_place = tests/support/kernel_place.c tests/support/kernel_place.h
kernel_cases = tests/support/kernel_cases.c tests/support/kernel_cases.h $(kernel_place)
kernel_layer = tests/support/kernel_layer.c tests/support/kernel_layer.h $(kernel_cases)
kernel_images = tests/unit/test_kernel_images.c $(kernel_layer)
kernel_layers = tests/unit/test_kernel_layers.c tests/support/attention_cases.c \
	tests/support/classifier_cases.c $(kernel_layer)
kernel_graph = tests/unit/test_kernel_graph.c $(kernel_cases)
kernel_queue = tests/unit/test_kernel_queue.c tests/support/model_case.c $(kernel_cases) \
	$(gpt_model_sources)
tests_unit_test_kernel_images_SOURCES = $(kernel_images) tests/support/kernel_place_host.c
tests_unit_test_kernel_images_LDADD = kernels/libkernels.la $(CASES)
tests_unit_test_kernel_layers_SOURCES = $(kernel_layers) tests/support/kernel_place_host.c
tests_unit_test_kernel_layers_LDADD = kernels/libkernels.la $(CASES)

# The same cases on a GPU: the fake one, or a real one (make check-gpu).
on_gpu = tests/support/test_module.lo tests/support/libsupport.la libruntime/libddpcore.la
tests_unit_test_kernel_device_SOURCES = $(kernel_layers) tests/support/kernel_place_device.c
tests_unit_test_kernel_device_LDADD = $(on_gpu) $(CASES)
tests_unit_test_kernel_images_device_SOURCES = $(kernel_images) tests/support/kernel_place_device.c
tests_unit_test_kernel_images_device_LDADD = $(on_gpu) $(CASES)
optimizers_queue = tests/unit/test_optimizers_queue.c $(kernel_place)
tests_unit_test_optimizers_device_SOURCES = $(optimizers_queue) tests/support/kernel_place_device.c
tests_unit_test_optimizers_device_LDADD = $(on_gpu) $(CASES)
model_graph = tests/unit/test_model_graph.c $(kernel_cases) $(gpt_model_sources) $(net_only_sources)
tests_unit_test_model_graph_SOURCES = $(model_graph) tests/support/kernel_place_device.c
tests_unit_test_model_graph_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_model_graph_LDADD = kernels/libconvolution.la $(on_gpu) $(CASES)
tests_unit_test_kernel_graph_SOURCES = $(kernel_graph) tests/support/kernel_place_device.c
tests_unit_test_kernel_graph_LDADD = $(on_gpu) $(CASES)
tests_unit_test_kernel_queue_SOURCES = $(kernel_queue) tests/support/kernel_place_device.c
tests_unit_test_kernel_queue_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_kernel_queue_LDADD = $(on_gpu) $(CASES)

# And on kernels/cuda on the host.
if CUDA_EMULATION
emulated = tests/support/libcuda_emulated.a kernels/libkernels.la $(CASES) -lstdc++
tests_unit_test_kernel_cuda_SOURCES = $(kernel_layers)
tests_unit_test_kernel_cuda_LDADD = $(emulated)
tests_unit_test_kernel_images_cuda_SOURCES = $(kernel_images)
tests_unit_test_kernel_images_cuda_LDADD = $(emulated)
tests_unit_test_kernel_graph_cuda_SOURCES = $(kernel_graph)
tests_unit_test_kernel_graph_cuda_LDADD = $(emulated)
tests_unit_test_kernel_queue_cuda_SOURCES = $(kernel_queue)
tests_unit_test_kernel_queue_cuda_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_kernel_queue_cuda_LDADD = $(emulated)
tests_unit_test_model_graph_cuda_SOURCES = $(model_graph)
tests_unit_test_model_graph_cuda_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_model_graph_cuda_LDADD = kernels/libconvolution.la $(emulated)
tests_unit_test_optimizers_cuda_SOURCES = $(optimizers_queue)
tests_unit_test_optimizers_cuda_LDADD = tests/support/libcuda_emulated.a libruntime/libddpcore.la $(CASES) -lstdc++
else
tests_unit_test_kernel_cuda_SOURCES = tests/support/no_emulation.c
tests_unit_test_kernel_graph_cuda_SOURCES = tests/support/no_emulation.c
tests_unit_test_kernel_images_cuda_SOURCES = tests/support/no_emulation.c
tests_unit_test_kernel_queue_cuda_SOURCES = tests/support/no_emulation.c
tests_unit_test_model_graph_cuda_SOURCES = tests/support/no_emulation.c
tests_unit_test_optimizers_cuda_SOURCES = tests/support/no_emulation.c
endif
TESTS += $(check_PROGRAMS)

# test_locale.sh runs these, also where no other test needs them.
if !SANITIZED
locale_log = tests/unit/test_locale.sh.log
$(locale_log): tests/unit/test_error$(EXEEXT) tests/unit/test_store$(EXEEXT) tests/unit/test_watch$(EXEEXT) tests/unit/test_comm_nics$(EXEEXT) tests/ranks/test_checkpoint_load$(EXEEXT) \
	tests/ranks/test_model_refusals$(EXEEXT)
endif

endif

emulation_sources = tests/support/cublas_emulation.cc tests/support/cuda_emulation.cc tests/support/cuda_place.cc \
	tests/support/cuda_runtime_emulation.cc
EXTRA_DIST += $(emulation_sources) tests/support/cuda_emulation.h
EMULATION_CXXFLAGS = -std=gnu++17 -O1 -g1 -ffp-contract=off -Wall -Wextra -Wshadow $(SANITIZER_CFLAGS)
tests/support/libcuda_emulated.a: $(cuda_kernel_sources) $(cuda_kernel_headers) $(emulation_sources) \
		tests/support/cuda_emulation.h tests/support/kernel_place.h
	@rm -f $@ && $(MKDIR_P) tests/support/emulated
	$(AM_V_GEN)for source in $(cuda_kernel_sources) $(emulation_sources); do \
		object=tests/support/emulated/`basename $$source`.o; \
		$(EMULATION_CXX) $(AM_CPPFLAGS) $(EMULATION_CXXFLAGS) \
			-include $(top_srcdir)/tests/support/cuda_emulation.h -x c++ -c -o $$object \
			`test -f $$source || echo $(top_srcdir)/`$$source && $(AR) cr $@ $$object || exit 1; \
	done
CLEANFILES += tests/support/libcuda_emulated.a tests/support/emulated/*.o

EXTRA_DIST += README.md tests/python/support.py tests/unit/read_safetensors.py tests/unit/sampler_vectors.h

# For tests on clusters: ranks that only wire up, ranks that only train, and such as save, too.
noinst_PROGRAMS += tests/cluster/wireup_probe tests/cluster/training_probe tests/cluster/storm_probe tests/cluster/silence_probe \
	tests/cluster/link_probe tests/cluster/record_probe
tests_cluster_link_probe_LDADD = spank/libspankcore.la libruntime/libddpcore.la
tests_cluster_record_probe_LDADD = libruntime/libddpcore.la
tests_cluster_silence_probe_LDADD = libruntime/libddpcore.la
tests_cluster_storm_probe_LDADD = libruntime/libddpcore.la
tests_cluster_wireup_probe_LDADD = libruntime/libddpcore.la
tests_cluster_training_probe_LDADD = libruntime/libddpcore.la
EXTRA_PROGRAMS += tests/cluster/scale_probe
