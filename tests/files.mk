# tests: unit tests (cmocka) run by `make check`; each prints TAP. tests/run
# runs these in several builds, and the tests in cluster/ on real clusters.
EXTRA_DIST += tests/run tests/support tests/cluster tests/unit/tap
# A folder brings what was built in it, too.
dist-hook:
	cd $(distdir)/tests/cluster && rm -rf .deps .libs .dirstamp *.o *.lo wireup_probe$(EXEEXT) training_probe$(EXEEXT)

# A test that hangs ends as a failure.
TEST_SECONDS = 180
LOG_COMPILER = $(top_srcdir)/tests/unit/tap
AM_LOG_FLAGS = $(TEST_SECONDS)
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh --comments
AM_TESTS_ENVIRONMENT = CMOCKA_MESSAGE_OUTPUT=TAP; export CMOCKA_MESSAGE_OUTPUT;
if SANITIZED
# UCX's hook in madvise runs on threads at whose end TSan is done with them.
AM_TESTS_ENVIRONMENT += UCX_MEM_MMAP_HOOK_MODE=none; export UCX_MEM_MMAP_HOOK_MODE;
endif

# What tests/run asks of this build.
print-prefix:
	@echo $(prefix)
print-examples:
	@for program in $(bin_PROGRAMS) $(noinst_PROGRAMS); do \
		case $$program in examples/*) echo $$program ;; esac; done
# The long forms of what `make check` does shortly.
check-comm: tests/fault/comm_soak tests/unit/test_comm_random tests/unit/test_comm_stalls \
	tests/unit/test_comm_window
	tests/fault/comm_soak 200
	DDP_TEST_BATCHES=400 tests/unit/test_comm_random
	DDP_TEST_STOPS=200 tests/unit/test_comm_stalls
	DDP_TEST_MIB=8192 tests/unit/test_comm_window
.PHONY: print-prefix print-examples check-comm

include $(top_srcdir)/tests/bench/files.mk

unit_cflags = $(AM_CFLAGS) $(CMOCKA_CFLAGS)
unit_libs = tests/unit/libsupport.la libruntime/libddpcore.la $(CMOCKA_LIBS)

if HAVE_CMOCKA
# What several tests use, compiled once.
check_LTLIBRARIES += tests/unit/libsupport.la
tests_unit_libsupport_la_SOURCES = \
	tests/unit/comm_cases.c tests/unit/comm_cases.h \
	tests/unit/comm_ranks.c tests/unit/comm_ranks.h \
	tests/unit/folder.c tests/unit/folder.h \
	tests/unit/hung.c tests/unit/hung.h \
	tests/unit/mlp.c tests/unit/mlp.h \
	tests/unit/ranks.c tests/unit/ranks.h \
	tests/unit/tcp_ranks.c tests/unit/tcp_ranks.h \
	tests/unit/training.c tests/unit/training.h
tests_unit_libsupport_la_CFLAGS = $(unit_cflags)

# make starts tests in this order. Those that take longest come first, so that
# none of them is left to run alone.
check_PROGRAMS += tests/unit/test_comm_random tests/unit/test_comm_shrink \
	tests/unit/test_kernel_layers tests/unit/test_tcp_wireup \
	tests/unit/test_comm_faults tests/unit/test_spawn tests/unit/test_comm_groups
if HAVE_UCX
check_PROGRAMS += tests/unit/test_comm_net tests/unit/test_comm_stalls tests/unit/test_comm_window
endif

check_PROGRAMS += tests/unit/test_error
tests_unit_test_error_SOURCES = tests/unit/test_error.c
tests_unit_test_error_CFLAGS = $(unit_cflags)
tests_unit_test_error_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_kernel_optim
tests_unit_test_kernel_optim_SOURCES = tests/unit/test_kernel_optim.c
tests_unit_test_kernel_optim_CFLAGS = $(unit_cflags)
tests_unit_test_kernel_optim_LDADD = kernels/libkernels.la $(CMOCKA_LIBS)

tests_unit_test_kernel_layers_SOURCES = tests/unit/test_kernel_layers.c tests/unit/kernel_values.h
tests_unit_test_kernel_layers_CFLAGS = $(unit_cflags)
tests_unit_test_kernel_layers_LDADD = kernels/libkernels.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_kernel_product
tests_unit_test_kernel_product_SOURCES = tests/unit/test_kernel_product.c tests/unit/kernel_values.h
tests_unit_test_kernel_product_CFLAGS = $(unit_cflags)
tests_unit_test_kernel_product_LDADD = kernels/libkernels.la $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/test_gpt_model
tests_unit_test_gpt_model_SOURCES = tests/unit/test_gpt_model.c $(gpt_model_sources)
tests_unit_test_gpt_model_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
tests_unit_test_gpt_model_CFLAGS = $(unit_cflags)
tests_unit_test_gpt_model_LDADD = kernels/libkernels.la $(CMOCKA_LIBS)

TESTS += tests/unit/test_gpt.sh
EXTRA_DIST += tests/unit/test_gpt.sh

check_PROGRAMS += tests/unit/test_bucket
tests_unit_test_bucket_SOURCES = tests/unit/test_bucket.c
tests_unit_test_bucket_CFLAGS = $(unit_cflags)
tests_unit_test_bucket_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_optim
tests_unit_test_optim_SOURCES = tests/unit/test_optim.c
tests_unit_test_optim_CFLAGS = $(unit_cflags)
tests_unit_test_optim_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_watch
tests_unit_test_watch_SOURCES = tests/unit/test_watch.c
tests_unit_test_watch_CFLAGS = $(unit_cflags)
tests_unit_test_watch_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_pages
tests_unit_test_pages_SOURCES = tests/unit/test_pages.c
tests_unit_test_pages_CFLAGS = $(unit_cflags)
tests_unit_test_pages_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=sysconf -Wl,--wrap=mmap
tests_unit_test_pages_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_model
tests_unit_test_model_SOURCES = tests/unit/test_model.c
tests_unit_test_model_CFLAGS = $(unit_cflags)
tests_unit_test_model_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_rows
tests_unit_test_rows_SOURCES = tests/unit/test_rows.c
tests_unit_test_rows_CFLAGS = $(unit_cflags)
tests_unit_test_rows_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_training tests/unit/test_training_ends
tests_unit_test_training_SOURCES = tests/unit/test_training.c
tests_unit_test_training_CFLAGS = $(unit_cflags)
tests_unit_test_training_LDADD = $(unit_libs)
tests_unit_test_training_ends_SOURCES = tests/unit/test_training_ends.c
tests_unit_test_training_ends_CFLAGS = $(unit_cflags)
tests_unit_test_training_ends_LDADD = $(unit_libs)

include $(top_srcdir)/tests/unit/job.mk

include $(top_srcdir)/tests/unit/data.mk
include $(top_srcdir)/tests/unit/spank.mk

tests_unit_test_comm_random_SOURCES = tests/unit/test_comm_random.c
tests_unit_test_comm_random_CFLAGS = $(unit_cflags)
tests_unit_test_comm_random_LDADD = $(unit_libs)
tests_unit_test_comm_groups_SOURCES = tests/unit/test_comm_groups.c
tests_unit_test_comm_groups_CFLAGS = $(unit_cflags)
tests_unit_test_comm_groups_LDADD = $(unit_libs)
check_PROGRAMS += tests/unit/test_comm_threads
tests_unit_test_comm_threads_SOURCES = tests/unit/test_comm_threads.c
tests_unit_test_comm_threads_CFLAGS = $(unit_cflags)
tests_unit_test_comm_threads_LDADD = $(unit_libs)
tests_unit_test_comm_shrink_SOURCES = tests/unit/test_comm_shrink.c
tests_unit_test_comm_shrink_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_unit_test_comm_shrink_CFLAGS = $(unit_cflags)
tests_unit_test_comm_shrink_LDADD = $(unit_libs) $(UCX_LIBS)
check_PROGRAMS += tests/unit/test_comm_blocks
tests_unit_test_comm_blocks_SOURCES = tests/unit/test_comm_blocks.c
tests_unit_test_comm_blocks_CFLAGS = $(unit_cflags)
tests_unit_test_comm_blocks_LDADD = $(unit_libs)
check_PROGRAMS += tests/unit/test_comm_kernels
tests_unit_test_comm_kernels_SOURCES = tests/unit/test_comm_kernels.c
tests_unit_test_comm_kernels_CFLAGS = $(unit_cflags)
tests_unit_test_comm_kernels_LDADD = $(unit_libs)
check_PROGRAMS += tests/fault/comm_soak
tests_fault_comm_soak_SOURCES = tests/fault/comm_soak.c
tests_fault_comm_soak_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
tests_fault_comm_soak_CFLAGS = $(unit_cflags)
tests_fault_comm_soak_LDADD = $(unit_libs)
tests_unit_test_comm_faults_SOURCES = tests/unit/test_comm_faults.c
tests_unit_test_comm_faults_CFLAGS = $(unit_cflags)
tests_unit_test_comm_faults_LDADD = $(unit_libs)
tests_unit_test_comm_window_SOURCES = tests/unit/test_comm_window.c
tests_unit_test_comm_window_CFLAGS = $(unit_cflags)
tests_unit_test_comm_window_LDADD = $(unit_libs)
tests_unit_test_comm_stalls_SOURCES = tests/unit/test_comm_stalls.c
tests_unit_test_comm_stalls_CFLAGS = $(unit_cflags)
tests_unit_test_comm_stalls_LDADD = $(unit_libs)
check_PROGRAMS += tests/unit/test_comm_progress
tests_unit_test_comm_progress_SOURCES = tests/unit/test_comm_progress.c
tests_unit_test_comm_progress_CFLAGS = $(unit_cflags)
tests_unit_test_comm_progress_LDADD = $(unit_libs)
check_PROGRAMS += tests/unit/test_comm_memory
tests_unit_test_comm_memory_SOURCES = tests/unit/test_comm_memory.c
tests_unit_test_comm_memory_CFLAGS = $(unit_cflags)
tests_unit_test_comm_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc -Wl,--wrap=calloc
tests_unit_test_comm_memory_LDADD = $(unit_libs)
check_PROGRAMS += tests/unit/test_comm_await
tests_unit_test_comm_await_SOURCES = tests/unit/test_comm_await.c
tests_unit_test_comm_await_CFLAGS = $(unit_cflags)
tests_unit_test_comm_await_LDADD = $(unit_libs)

if HAVE_UCX
tests_unit_test_comm_net_SOURCES = tests/unit/test_comm_net.c
tests_unit_test_comm_net_CPPFLAGS = $(AM_CPPFLAGS) $(UCX_CFLAGS)
tests_unit_test_comm_net_CFLAGS = $(unit_cflags)
tests_unit_test_comm_net_LDADD = $(unit_libs) $(UCX_LIBS)
endif

TESTS += $(check_PROGRAMS)
endif
TESTS += tests/unit/test_run.sh tests/unit/test_spank_symbols.sh tests/unit/test_spank_docs.sh
EXTRA_DIST += tests/unit/test_run.sh
