# SPDX-License-Identifier: Apache-2.0
# python/torch: slurm-ddp-torch, which pip compiles against the torch that is installed.
torch_dir = libruntime/python/torch
EXTRA_DIST += $(torch_dir)/MANIFEST.in $(torch_dir)/README.md $(torch_dir)/pyproject.toml $(torch_dir)/setup.py \
	$(torch_dir)/csrc/backend.cpp $(torch_dir)/csrc/backend.h $(torch_dir)/csrc/blocks.cpp $(torch_dir)/csrc/context.cpp \
	$(torch_dir)/csrc/context.h $(torch_dir)/csrc/finisher.cpp $(torch_dir)/csrc/gil.h $(torch_dir)/csrc/groups.cpp $(torch_dir)/csrc/live_group.cpp \
	$(torch_dir)/csrc/live_group.h $(torch_dir)/csrc/memory.cpp $(torch_dir)/csrc/module.cpp \
	$(torch_dir)/csrc/monitored.cpp $(torch_dir)/csrc/operation.cpp $(torch_dir)/csrc/operation.h $(torch_dir)/csrc/reductions.cpp \
	$(torch_dir)/csrc/sparse.cpp $(torch_dir)/csrc/types.cpp $(torch_dir)/csrc/types.h $(torch_dir)/csrc/whole.cpp \
	$(torch_dir)/slurm_ddp_torch/__init__.py $(torch_dir)/slurm_ddp_torch/wire.py \
	$(torch_dir)/tests/bench.py $(torch_dir)/tests/build.sh $(torch_dir)/tests/can_build $(torch_dir)/tests/check.sh $(torch_dir)/tests/ranks.py $(torch_dir)/tests/suite.py \
	$(torch_dir)/tests/test_ends.py $(torch_dir)/tests/test_failures.py $(torch_dir)/tests/test_forks.py \
	$(torch_dir)/tests/test_frameworks.py \
	$(torch_dir)/tests/test_operations.py $(torch_dir)/tests/test_parallel.py $(torch_dir)/tests/test_recovery.py \
	$(torch_dir)/tests/test_training.py

# TORCH is a Python that has torch. It runs PyTorch's own tests of backends, too.
check-python: libruntime/libddp.la
	$(top_srcdir)/$(torch_dir)/tests/check.sh . $(TORCH) 2 4
.PHONY: check-python

# Where tests have compiled it.
clean-torch:
	rm -rf libruntime/python/torch/built
.PHONY: clean-torch
