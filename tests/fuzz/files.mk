# SPDX-License-Identifier: Apache-2.0
# tests/fuzz: libFuzzer targets, tests/fuzz/fuzz_NAME.c with seeds in
# tests/fuzz/seeds. Each target names the sources it needs in a line
# " * fuzz-sources: ..." and libraries in " * fuzz-libs: ...", so that adding
# one takes no change here. `make fuzz-short` is for CI, `make fuzz` is long.
FUZZ_SHORT_SECONDS = 1
FUZZ_RUNS = 10000000
FUZZ_CC = clang

EXTRA_DIST += tests/fuzz/run tests/fuzz/seeds tests/fuzz/fuzz_images.c \
	tests/fuzz/fuzz_netplugin.c tests/fuzz/fuzz_safetensors.c tests/fuzz/fuzz_spank_deal.c tests/fuzz/fuzz_spank_nodelist.c \
	tests/fuzz/fuzz_spank_frame.c tests/fuzz/fuzz_spank_options.c tests/fuzz/fuzz_spank_record.c tests/fuzz/fuzz_spank_report.c \
	tests/fuzz/fuzz_tokens.c tests/fuzz/fuzz_wireup.c

fuzz_run = FUZZ_CC="$(FUZZ_CC)" FUZZ_BUILD=tests/fuzz $(srcdir)/tests/fuzz/run

# NAMES="a b" chooses targets; all else.
fuzz-short:
	$(fuzz_run) --seconds $(FUZZ_SHORT_SECONDS) $(NAMES)
fuzz:
	$(fuzz_run) --runs $(FUZZ_RUNS) $(NAMES)

clean-local: clean-fuzz clean-torch
clean-fuzz:
	rm -rf tests/fuzz/bin tests/fuzz/corpus
.PHONY: fuzz fuzz-short clean-fuzz
