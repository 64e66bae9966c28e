# Tests of spank/. Its core knows no Slurm, so they need none.
spank_libs = spank/libspankcore.la $(CMOCKA_LIBS) $(JANSSON_LIBS)
check_PROGRAMS += \
	tests/unit/test_spank_options tests/unit/test_spank_nodelist tests/unit/test_spank_port \
	tests/unit/test_spank_identity tests/unit/test_spank_variables \
	tests/unit/test_spank_check tests/unit/test_spank_gpu tests/unit/test_spank_node \
	tests/unit/test_spank_judge tests/unit/test_spank_step tests/unit/test_spank_witness \
	tests/unit/test_spank_srun_options tests/unit/test_spank_blame \
	tests/unit/test_spank_stall tests/unit/test_spank_stall_watch \
	tests/unit/test_spank_relay tests/unit/test_spank_report tests/unit/test_spank_supervise \
	tests/unit/test_spank_prepare
tests_unit_test_spank_options_SOURCES = tests/unit/test_spank_options.c
tests_unit_test_spank_options_CFLAGS = $(unit_cflags)
tests_unit_test_spank_options_LDADD = $(spank_libs)
tests_unit_test_spank_nodelist_SOURCES = tests/unit/test_spank_nodelist.c
tests_unit_test_spank_nodelist_CFLAGS = $(unit_cflags)
tests_unit_test_spank_nodelist_LDADD = $(spank_libs)
tests_unit_test_spank_port_SOURCES = tests/unit/test_spank_port.c
tests_unit_test_spank_port_CFLAGS = $(unit_cflags)
tests_unit_test_spank_port_LDADD = $(spank_libs)
tests_unit_test_spank_identity_SOURCES = tests/unit/test_spank_identity.c
tests_unit_test_spank_identity_CFLAGS = $(unit_cflags)
tests_unit_test_spank_identity_LDADD = $(spank_libs)
tests_unit_test_spank_variables_SOURCES = tests/unit/test_spank_variables.c \
	tests/unit/spank_task.c tests/unit/spank_task.h
tests_unit_test_spank_variables_CFLAGS = $(unit_cflags)
tests_unit_test_spank_variables_LDADD = $(spank_libs)
tests_unit_test_spank_check_SOURCES = tests/unit/test_spank_check.c \
	tests/unit/spank_task.c tests/unit/spank_task.h
tests_unit_test_spank_check_CFLAGS = $(unit_cflags) $(JANSSON_CFLAGS)
tests_unit_test_spank_check_LDADD = $(spank_libs)
tests_unit_test_spank_gpu_SOURCES = tests/unit/test_spank_gpu.c
tests_unit_test_spank_gpu_CFLAGS = $(unit_cflags)
tests_unit_test_spank_gpu_LDADD = $(spank_libs)
tests_unit_test_spank_node_SOURCES = tests/unit/test_spank_node.c
tests_unit_test_spank_node_CFLAGS = $(unit_cflags)
tests_unit_test_spank_node_LDADD = $(spank_libs)
tests_unit_test_spank_blame_SOURCES = tests/unit/test_spank_blame.c
tests_unit_test_spank_blame_CFLAGS = $(unit_cflags)
tests_unit_test_spank_blame_LDADD = $(spank_libs)
tests_unit_test_spank_stall_SOURCES = tests/unit/test_spank_stall.c
tests_unit_test_spank_stall_CFLAGS = $(unit_cflags)
tests_unit_test_spank_stall_LDADD = $(spank_libs)
tests_unit_test_spank_stall_watch_SOURCES = tests/unit/test_spank_stall_watch.c
tests_unit_test_spank_stall_watch_CFLAGS = $(unit_cflags)
tests_unit_test_spank_stall_watch_LDADD = $(spank_libs)
tests_unit_test_spank_judge_SOURCES = tests/unit/test_spank_judge.c
tests_unit_test_spank_judge_CFLAGS = $(unit_cflags)
tests_unit_test_spank_judge_LDADD = $(spank_libs)
tests_unit_test_spank_step_SOURCES = tests/unit/test_spank_step.c
tests_unit_test_spank_step_CFLAGS = $(unit_cflags)
tests_unit_test_spank_step_LDADD = $(spank_libs)
tests_unit_test_spank_witness_SOURCES = tests/unit/test_spank_witness.c
tests_unit_test_spank_witness_CFLAGS = $(unit_cflags)
tests_unit_test_spank_witness_LDADD = $(spank_libs)
tests_unit_test_spank_srun_options_SOURCES = tests/unit/test_spank_srun_options.c
tests_unit_test_spank_srun_options_CFLAGS = $(unit_cflags)
tests_unit_test_spank_srun_options_LDADD = $(spank_libs)
tests_unit_test_spank_relay_SOURCES = tests/unit/test_spank_relay.c
tests_unit_test_spank_relay_CFLAGS = $(unit_cflags)
tests_unit_test_spank_relay_LDADD = $(spank_libs)
tests_unit_test_spank_report_SOURCES = tests/unit/test_spank_report.c
tests_unit_test_spank_report_CFLAGS = $(unit_cflags)
tests_unit_test_spank_report_LDADD = $(spank_libs)
tests_unit_test_spank_supervise_SOURCES = tests/unit/test_spank_supervise.c
tests_unit_test_spank_supervise_CFLAGS = $(unit_cflags)
tests_unit_test_spank_supervise_LDADD = $(spank_libs)
tests_unit_test_spank_prepare_SOURCES = tests/unit/test_spank_prepare.c
tests_unit_test_spank_prepare_CFLAGS = $(unit_cflags)
tests_unit_test_spank_prepare_LDADD = $(spank_libs)
check_PROGRAMS += tests/unit/test_status
tests_unit_test_status_SOURCES = tests/unit/test_status.c
tests_unit_test_status_CFLAGS = $(unit_cflags) $(JANSSON_CFLAGS)
tests_unit_test_status_LDADD = spank/status/libstatus.la $(spank_libs)
EXTRA_DIST += tests/unit/test_spank_symbols.sh tests/unit/test_spank_docs.sh \
	tests/fuzz/fuzz_spank_options.c tests/fuzz/fuzz_spank_nodelist.c \
	tests/fuzz/fuzz_spank_report.c
