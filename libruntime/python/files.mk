# SPDX-License-Identifier: Apache-2.0
# python: slurm_ddp, which srun --ddp=python puts to work from here, and of which pip makes a wheel.
python_dir = libruntime/python/slurm_ddp
slurm_ddp_modules = \
	$(python_dir)/slurm_ddp/__init__.py $(python_dir)/slurm_ddp/agreement.py $(python_dir)/slurm_ddp/auto.py \
	$(python_dir)/slurm_ddp/checkpoints.py $(python_dir)/slurm_ddp/damage.py $(python_dir)/slurm_ddp/failures.py \
	$(python_dir)/slurm_ddp/group_hooks.py $(python_dir)/slurm_ddp/huggingface.py $(python_dir)/slurm_ddp/jobs.py $(python_dir)/slurm_ddp/lightning.py \
	$(python_dir)/slurm_ddp/page.py $(python_dir)/slurm_ddp/progress.py $(python_dir)/slurm_ddp/record.py $(python_dir)/slurm_ddp/renewal.py \
	$(python_dir)/slurm_ddp/stack.py $(python_dir)/slurm_ddp/stopping.py $(python_dir)/slurm_ddp/survive.py \
	$(python_dir)/slurm_ddp/survivors.py $(python_dir)/slurm_ddp/torch_hooks.py
EXTRA_DIST += $(python_dir)/pyproject.toml $(python_dir)/backend.py $(python_dir)/slurm_ddp.pth $(python_dir)/README.md

# Not compiled: each Python on the nodes is of its own version.
pythonpackagedir = $(pkglibdir)/python/slurm_ddp
dist_pythonpackage_DATA = $(slurm_ddp_modules)
pythonsitedir = $(pkglibdir)/python/site
dist_pythonsite_DATA = $(python_dir)/site/sitecustomize.py

# For clusters without internet.
if HAVE_PYTHON
wheel = libruntime/python/slurm_ddp-$(PACKAGE_VERSION)-py3-none-any.whl
$(wheel): $(slurm_ddp_modules) $(python_dir)/backend.py $(python_dir)/slurm_ddp.pth $(python_dir)/README.md
	@$(MKDIR_P) libruntime/python
	$(AM_V_GEN)PYTHONDONTWRITEBYTECODE=1 $(PYTHON) $(srcdir)/$(python_dir)/backend.py libruntime/python >/dev/null
wheelsdir = $(datadir)/slurm-ddp/wheels
wheels_DATA = $(wheel)
CLEANFILES += $(wheel)
wheels: $(wheel)
.PHONY: wheels
endif
