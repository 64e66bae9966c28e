# SPDX-License-Identifier: Apache-2.0
# slurm: the throw-away cluster, the demo, and what a site installs.
EXTRA_DIST += slurm/cluster slurm/cluster.inside slurm/demo slurm/install-deps

# A sample to read, and no configuration file: the site's line is in a file of the site's own, which no
# upgrade touches.
dist_doc_DATA += slurm/spank_ddp.conf

# For administrators who collect figures by Prometheus.
monitoringdir = $(docdir)/monitoring
dist_monitoring_DATA = slurm/monitoring/slurm-ddp-status.timer slurm/monitoring/slurm-ddp-dashboard.json \
	slurm/monitoring/slurm-ddp.rules.yml
# The unit names ddp-status where it is installed, by make, as configure does not expand ${exec_prefix} in bindir.
monitoring_DATA = slurm/monitoring/slurm-ddp-status.service
EXTRA_DIST += slurm/monitoring/slurm-ddp-status.service.in
CLEANFILES += slurm/monitoring/slurm-ddp-status.service

slurm/monitoring/slurm-ddp-status.service: $(srcdir)/slurm/monitoring/slurm-ddp-status.service.in Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)sed 's|@''bindir@|$(bindir)|g' $(srcdir)/slurm/monitoring/slurm-ddp-status.service.in > $@
