# Tests of job, wire-up and context.
tests_unit_test_spawn_SOURCES = tests/unit/test_spawn.c
tests_unit_test_spawn_CFLAGS = $(unit_cflags)
tests_unit_test_spawn_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_job
tests_unit_test_job_SOURCES = tests/unit/test_job.c
tests_unit_test_job_CFLAGS = $(unit_cflags)
tests_unit_test_job_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_agreement
tests_unit_test_agreement_SOURCES = tests/unit/test_agreement.c
tests_unit_test_agreement_CFLAGS = $(unit_cflags)
tests_unit_test_agreement_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_tcp_strangers
tests_unit_test_tcp_wireup_SOURCES = tests/unit/test_tcp_wireup.c
tests_unit_test_tcp_wireup_CFLAGS = $(unit_cflags)
tests_unit_test_tcp_wireup_LDADD = $(unit_libs)
tests_unit_test_tcp_strangers_SOURCES = tests/unit/test_tcp_strangers.c
tests_unit_test_tcp_strangers_CFLAGS = $(unit_cflags)
tests_unit_test_tcp_strangers_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_tcp_threads
tests_unit_test_tcp_threads_SOURCES = tests/unit/test_tcp_threads.c
tests_unit_test_tcp_threads_CFLAGS = $(unit_cflags)
tests_unit_test_tcp_threads_LDADD = $(unit_libs)

check_PROGRAMS += tests/unit/test_context
tests_unit_test_context_SOURCES = tests/unit/test_context.c
tests_unit_test_context_CFLAGS = $(unit_cflags)
tests_unit_test_context_LDADD = $(unit_libs)

# For tests on clusters: a rank that only wires up.
noinst_PROGRAMS += tests/cluster/wireup_probe
tests_cluster_wireup_probe_SOURCES = tests/cluster/wireup_probe.c
tests_cluster_wireup_probe_LDADD = libruntime/libddpcore.la
noinst_PROGRAMS += tests/cluster/training_probe
tests_cluster_training_probe_SOURCES = tests/cluster/training_probe.c
tests_cluster_training_probe_LDADD = libruntime/libddpcore.la
