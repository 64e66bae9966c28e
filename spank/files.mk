# SPDX-License-Identifier: Apache-2.0
# spank: spank_ddp.so, a thin shell (the files of spank_spank_ddp_la_SOURCES) over a core that
# knows no Slurm.
noinst_LTLIBRARIES += spank/libspankcore.la
spank_libspankcore_la_SOURCES = \
	spank/base/bytes.h \
	spank/base/child.c spank/base/child.h \
	spank/base/end_signal.c spank/base/end_signal.h \
	spank/base/text.c spank/base/text.h \
	spank/base/release.c spank/base/release.h \
	spank/base/worker.c spank/base/worker.h \
	spank/options/options.c spank/options/options.h \
	spank/options/site.c spank/options/site.h \
	spank/identity/identity.c spank/identity/identity.h \
	spank/identity/master.c spank/identity/master.h \
	spank/identity/nodelist.c spank/identity/nodelist.h \
	spank/wire/progress_page.c spank/wire/progress_page.h \
	spank/wire/channel.c spank/wire/channel.h \
	spank/wire/deal.c spank/wire/deal.h \
	spank/wire/judge.c spank/wire/judge.h \
	spank/wire/relay.c spank/wire/relay.h \
	spank/wire/report.c spank/wire/report.h \
	spank/wire/timeline.h \
	spank/launch/check.c spank/launch/check.h \
	spank/launch/names.c spank/launch/names.h \
	spank/launch/preflight.c spank/launch/preflight.h \
	spank/launch/prepare.c spank/launch/prepare.h \
	spank/launch/srun_options.c spank/launch/srun_options.h \
	spank/launch/variables.c spank/launch/variables.h \
	spank/witness/agent.c spank/witness/agent.h \
	spank/witness/dump.c spank/witness/dump.h \
	spank/witness/folder.c spank/witness/folder.h \
	spank/witness/pump.c spank/witness/pump.h \
	spank/witness/rings.c spank/witness/rings.h \
	spank/witness/witness.c spank/witness/witness.h \
	spank/node/ends.c spank/node/ends.h \
	spank/node/flight.c spank/node/flight.h \
	spank/node/generation.c spank/node/generation.h \
	spank/node/link.c spank/node/link.h \
	spank/node/node.c spank/node/node.h \
	spank/node/stall.c spank/node/stall.h \
	spank/node/stall_watch.c spank/node/stall_watch.h \
	spank/node/supervise.c spank/node/supervise.h \
	spank/slurmctld/requeue_judge.c spank/slurmctld/requeue_judge.h \
	spank/srun/dealer.c spank/srun/dealer.h \
	spank/srun/links.c spank/srun/links.h \
	spank/srun/pace_step.c spank/srun/pace_step.h \
	spank/srun/peers.c spank/srun/peers.h \
	spank/srun/plan.c spank/srun/plan.h \
	spank/srun/presence.c spank/srun/presence.h \
	spank/srun/relay_srun.c spank/srun/relay_srun.h \
	spank/srun/requests.c spank/srun/requests.h \
	spank/srun/roster.c spank/srun/roster.h \
	spank/srun/stall_step.c spank/srun/stall_step.h \
	spank/srun/step.c spank/srun/step.h \
	spank/srun/succession.c spank/srun/succession.h

# ddp-status: what the ranks of a running job do. It calls Slurm's commands.
bin_PROGRAMS += spank/status/ddp-status
# What slurmd's logs tell of failures.
dist_bin_SCRIPTS += spank/status/ddp-failures
noinst_LTLIBRARIES += spank/status/libstatus.la
spank_status_libstatus_la_SOURCES = spank/status/row.c spank/status/row.h spank/status/sources.h \
	spank/status/cluster.c \
	spank/status/local.c \
	spank/status/probe.c \
	spank/status/process.c spank/status/process.h \
	spank/status/prometheus.c spank/status/prometheus.h
spank_status_libstatus_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
# Optimized code needs no floor() of the library.
spank_status_libstatus_la_LIBADD = spank/libspankcore.la $(JANSSON_LIBS) -lm
spank_status_ddp_status_SOURCES = spank/status/main.c
spank_status_ddp_status_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
spank_status_ddp_status_LDADD = spank/status/libstatus.la

if HAVE_SLURM
spank_LTLIBRARIES = spank/spank_ddp.la
spank_spank_ddp_la_SOURCES = spank/plugin.c spank/plugin.h \
	spank/srun.c spank/stepd.c spank/task.c \
	spank/slurmctld/query.c spank/slurmctld/query.h \
	spank/slurmctld/comment.c spank/slurmctld/comment.h \
	spank/slurmctld/requeue.c spank/slurmctld/requeue.h \
	spank/srun/relaunch.c spank/srun/relaunch.h
spank_spank_ddp_la_CFLAGS = $(AM_CFLAGS) $(SLURM_CFLAGS)
# libc only: Slurm looks symbols up in a plugin's libraries, too.
spank_spank_ddp_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,--as-needed -Wl,-z,nodelete -Wl,--version-script=$(top_srcdir)/spank/spank_ddp.map
spank_spank_ddp_la_LIBADD = spank/libspankcore.la
spank_spank_ddp_la_DEPENDENCIES = spank/libspankcore.la spank/spank_ddp.map

install-data-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.la
endif
# Behind the programs, which Automake installs at another time than data. The scripts are not compiled, and learn here what
# build they are of.
install-exec-hook:
	rm -f $(DESTDIR)$(pkglibdir)/libnccl-profiler-ddp.la $(DESTDIR)$(pkglibdir)/libnccl-net-ddpucx.la
	version=$$($(top_srcdir)/build-version) && sed -i "s/^\(VERSION.* = \"\)$(PACKAGE_VERSION)\"/\1$$version\"/" \
		$(DESTDIR)$(bindir)/ddp-failures $(DESTDIR)$(bindir)/ddp-report
# Without the .la, libtool does not know what to take away.
uninstall-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.so $(DESTDIR)$(pkglibdir)/libnccl-profiler-ddp.so \
		$(DESTDIR)$(pkglibdir)/libnccl-net-ddpucx.so
EXTRA_DIST += spank/spank_ddp.map
