# Tests of libruntime/data and libruntime/state.
check_PROGRAMS += tests/unit/test_sampler tests/unit/test_tokens tests/unit/test_loader \
	tests/unit/test_safetensors tests/unit/test_store tests/unit/test_checkpoint
tests_unit_test_sampler_SOURCES = tests/unit/test_sampler.c tests/unit/sampler_vectors.h
tests_unit_test_sampler_CFLAGS = $(unit_cflags)
tests_unit_test_sampler_LDADD = $(unit_libs)
tests_unit_test_tokens_SOURCES = tests/unit/test_tokens.c
tests_unit_test_tokens_CFLAGS = $(unit_cflags)
tests_unit_test_tokens_LDADD = $(unit_libs)
tests_unit_test_loader_SOURCES = tests/unit/test_loader.c
tests_unit_test_loader_CFLAGS = $(unit_cflags)
tests_unit_test_loader_LDADD = $(unit_libs)
tests_unit_test_safetensors_SOURCES = tests/unit/test_safetensors.c
tests_unit_test_safetensors_CFLAGS = $(unit_cflags) $(JANSSON_CFLAGS)
tests_unit_test_safetensors_LDADD = $(unit_libs)
tests_unit_test_store_SOURCES = tests/unit/test_store.c
tests_unit_test_store_CFLAGS = $(unit_cflags) $(JANSSON_CFLAGS)
tests_unit_test_store_LDADD = $(unit_libs)
tests_unit_test_checkpoint_SOURCES = tests/unit/test_checkpoint.c
tests_unit_test_checkpoint_CFLAGS = $(unit_cflags) $(JANSSON_CFLAGS)
tests_unit_test_checkpoint_LDADD = $(unit_libs)
TESTS += tests/unit/sampler_torch.py tests/readme.sh
EXTRA_DIST += README.md tests/readme.sh tests/unit/read_safetensors.py tests/unit/sampler_torch.py
