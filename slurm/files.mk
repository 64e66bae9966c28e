# slurm: the throw-away cluster, the demo, and what a site installs.
EXTRA_DIST += slurm/cluster slurm/cluster.inside slurm/demo slurm/install-deps

dist_plugstack_DATA = slurm/plugstack.conf.d/spank_ddp.conf
