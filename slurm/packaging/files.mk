# SPDX-License-Identifier: Apache-2.0
# slurm/packaging: what turns this tree into packages, and the module file.
EXTRA_DIST += \
	slurm/packaging/build-deb slurm/packaging/build-rpm \
	slurm/packaging/debian/changelog slurm/packaging/debian/control \
	slurm/packaging/debian/copyright slurm/packaging/debian/rules \
	slurm/packaging/debian/source/format slurm/packaging/debian/not-installed \
	slurm/packaging/debian/libddp1.install slurm/packaging/debian/libddp1.symbols \
	slurm/packaging/debian/libddp-dev.install \
	slurm/packaging/debian/python3-slurm-ddp.install slurm/packaging/debian/python3-slurm-ddp-torch.install \
	slurm/packaging/debian/python3-slurm-ddp.prerm slurm/packaging/debian/python3-slurm-ddp-torch.prerm \
	slurm/packaging/debian/slurm-ddp-plugin.postinst slurm/packaging/debian/slurm-ddp-plugin.postrm \
	slurm/packaging/debian/slurm-ddp-plugin.prerm \
	slurm/packaging/debian/slurm-ddp-doc.install \
	slurm/packaging/debian/slurm-ddp-plugin.dirs \
	slurm/packaging/debian/slurm-ddp-plugin.install \
	slurm/packaging/debian/slurm-ddp-tools.install \
	slurm/packaging/easybuild/slurm-ddp-0.3.0.eb slurm/packaging/reframe/slurm_ddp.py slurm/packaging/spack/package.py \
	slurm/packaging/modulefiles/libddp.in \
	slurm/packaging/rpm/slurm-ddp.spec slurm/packaging/rpm/slurm-ddp.rpmlintrc

moduledir = $(pkgdatadir)/modulefiles
module_DATA = slurm/packaging/modulefiles/libddp
CLEANFILES += slurm/packaging/modulefiles/libddp

# By make and not by configure, which does not expand ${prefix} in libdir.
slurm/packaging/modulefiles/libddp: $(srcdir)/slurm/packaging/modulefiles/libddp.in Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)sed -e 's|@''PACKAGE_VERSION@|$(PACKAGE_VERSION)|g' \
		-e 's|@''libdir@|$(libdir)|g' -e 's|@''includedir@|$(includedir)|g' \
		-e 's|@''mandir@|$(mandir)|g' -e 's|@''bindir@|$(bindir)|g' $(srcdir)/slurm/packaging/modulefiles/libddp.in > $@

batchdir = $(docdir)/batch
dist_batch_SCRIPTS = \
	slurm/batch/accelerate.sh slurm/batch/array.sh slurm/batch/checkpoint.sh slurm/batch/container.sh slurm/batch/cpu.sh \
	slurm/batch/jax.sh \
	slurm/batch/libddp.sh slurm/batch/lightning.sh slurm/batch/python.sh slurm/batch/pytorch.sh \
	slurm/batch/requeue.sh slurm/batch/scaling.sh slurm/batch/torchrun.sh
