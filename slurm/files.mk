# SPDX-License-Identifier: Apache-2.0
# slurm: the throw-away cluster, the demo, and what a site installs.
EXTRA_DIST += slurm/cluster slurm/cluster.inside slurm/demo slurm/install-deps

# A sample to read, and no configuration file: the site's line is in a file of the site's own, which no
# upgrade touches.
dist_doc_DATA += slurm/spank_ddp.conf

# For administrators who collect figures by Prometheus.
monitoringdir = $(docdir)/monitoring
dist_monitoring_DATA = slurm/monitoring/slurm-ddp-status.service slurm/monitoring/slurm-ddp-status.timer \
	slurm/monitoring/slurm-ddp-dashboard.json slurm/monitoring/slurm-ddp.rules.yml
