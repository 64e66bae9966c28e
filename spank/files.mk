# SPDX-License-Identifier: Apache-2.0
# spank: spank_ddp.so, a thin shell (the files of spank_spank_ddp_la_SOURCES) over a core that
# knows no Slurm.
noinst_LTLIBRARIES += spank/libspankcore.la
spank_libspankcore_la_SOURCES = \
	spank/base/bytes.c spank/base/bytes.h \
	spank/base/child.c spank/base/child.h \
	spank/base/contained.c spank/base/contained.h \
	spank/base/end_signal.c spank/base/end_signal.h \
	spank/base/error.c spank/base/error.h \
	spank/base/handle.c spank/base/handle.h \
	spank/base/owner.c spank/base/owner.h \
	spank/base/pause.c spank/base/pause.h \
	spank/base/proc.c spank/base/proc.h \
	spank/base/release.c spank/base/release.h \
	spank/base/sink.c spank/base/sink.h \
	spank/base/siphash.c spank/base/siphash.h \
	spank/base/title.c spank/base/title.h \
	spank/base/worker.c spank/base/worker.h \
	spank/options.c spank/options.h \
	spank/user_list.c spank/user_list.h \
	spank/site.c spank/site.h \
	spank/request.c spank/request.h \
	spank/identity/address.c spank/identity/address.h \
	spank/identity/gpu.c spank/identity/gpu.h \
	spank/identity/identity.c spank/identity/identity.h \
	spank/identity/master.c spank/identity/master.h \
	spank/identity/nodelist.c spank/identity/nodelist.h \
	spank/identity/nodelist_write.c spank/identity/nodelist_write.h \
	spank/identity/port.c spank/identity/port.h \
	spank/launch/check.c spank/launch/check.h \
	spank/launch/container.c spank/launch/container.h \
	spank/launch/daemon.c spank/launch/daemon.h \
	spank/launch/names.c spank/launch/names.h \
	spank/launch/preflight_step.c spank/launch/preflight_step.h \
	spank/launch/prepare.c spank/launch/prepare.h \
	spank/launch/srun_environment.c spank/launch/srun_environment.h \
	spank/launch/srun_options.c spank/launch/srun_options.h \
	spank/launch/table.c spank/launch/table.h \
	spank/launch/variables.c spank/launch/variables.h \
	spank/failure/blame.c spank/failure/blame.h \
	spank/failure/channel.c spank/failure/channel.h \
	spank/failure/doing.c spank/failure/doing.h \
	spank/failure/event.c spank/failure/event.h \
	spank/failure/frame.c spank/failure/frame.h \
	spank/failure/judge.c spank/failure/judge.h \
	spank/failure/opening.c spank/failure/opening.h \
	spank/failure/pace_note.c spank/failure/pace_note.h \
	spank/failure/relay.c spank/failure/relay.h \
	spank/failure/slots.c spank/failure/slots.h \
	spank/failure/stall_note.c spank/failure/stall_note.h \
	spank/failure/timeline.h \
	spank/failure/node/blame_node.c spank/failure/node/blame_node.h \
	spank/failure/node/ends.c spank/failure/node/ends.h \
	spank/failure/node/flight.c spank/failure/node/flight.h \
	spank/failure/node/journal.c spank/failure/node/journal.h \
	spank/failure/node/lease.c spank/failure/node/lease.h \
	spank/failure/node/link.c spank/failure/node/link.h \
	spank/failure/node/memory.c spank/failure/node/memory.h \
	spank/failure/node/node.c spank/failure/node/node.h \
	spank/failure/node/pace.c spank/failure/node/pace.h \
	spank/failure/node/program.c spank/failure/node/program.h \
	spank/failure/node/relay_node.c spank/failure/node/relay_node.h \
	spank/failure/node/report.c spank/failure/node/report.h \
	spank/failure/node/stall.c spank/failure/node/stall.h \
	spank/failure/node/stall_watch.c spank/failure/node/stall_watch.h \
	spank/failure/node/supervise.c spank/failure/node/supervise.h \
	spank/failure/node/unseen.c spank/failure/node/unseen.h \
	spank/failure/node/witness.c spank/failure/node/witness.h \
	spank/failure/srun/controller.c spank/failure/srun/controller.h \
	spank/failure/srun/first_failure.c spank/failure/srun/first_failure.h \
	spank/failure/srun/heard.c spank/failure/srun/heard.h \
	spank/failure/srun/launched.c spank/failure/srun/launched.h \
	spank/failure/srun/links.c spank/failure/srun/links.h \
	spank/failure/srun/listener.c spank/failure/srun/listener.h \
	spank/failure/srun/losses.c spank/failure/srun/losses.h \
	spank/failure/srun/pace_step.c spank/failure/srun/pace_step.h \
	spank/failure/srun/peers.c spank/failure/srun/peers.h \
	spank/failure/srun/presence.c spank/failure/srun/presence.h \
	spank/failure/srun/releases.c spank/failure/srun/releases.h \
	spank/failure/srun/relay_srun.c spank/failure/srun/relay_srun.h \
	spank/failure/srun/requests.c spank/failure/srun/requests.h \
	spank/failure/srun/requeue_judge.c spank/failure/srun/requeue_judge.h \
	spank/failure/srun/silence.c spank/failure/srun/silence.h \
	spank/failure/srun/stall_step.c spank/failure/srun/stall_step.h \
	spank/failure/srun/stall_words.c spank/failure/srun/stall_words.h \
	spank/failure/srun/step.c spank/failure/srun/step.h \
	spank/failure/srun/voice.c spank/failure/srun/voice.h \
	spank/output/pump.c spank/output/pump.h \
	spank/output/redirect.c spank/output/redirect.h \
	spank/record/dump.c spank/record/dump.h \
	spank/record/folder.c spank/record/folder.h \
	spank/record/rings.c spank/record/rings.h \
	spank/record/stack.c spank/record/stack.h \
	spank/record/text.c spank/record/text.h \
	spank/record/threads.c spank/record/threads.h \
	spank/restart/agent.c spank/restart/agent.h \
	spank/restart/deal.c spank/restart/deal.h \
	spank/restart/dealer.c spank/restart/dealer.h \
	spank/restart/descend.c spank/restart/descend.h \
	spank/restart/generation.c spank/restart/generation.h \
	spank/restart/history.c spank/restart/history.h \
	spank/restart/plan.c spank/restart/plan.h \
	spank/restart/renumber.c spank/restart/renumber.h \
	spank/restart/roster.c spank/restart/roster.h \
	spank/restart/succession.c spank/restart/succession.h

# ddp-status: what the ranks of a running job do. It calls Slurm's commands.
bin_PROGRAMS += spank/status/ddp-status
# What slurmd's logs tell of failures.
dist_bin_SCRIPTS += spank/status/ddp-failures
noinst_LTLIBRARIES += spank/status/libstatus.la
spank_status_libstatus_la_SOURCES = spank/status/row.c spank/status/row.h \
	spank/status/cluster.c spank/status/cluster.h \
	spank/status/prometheus.c spank/status/prometheus.h \
	spank/status/local.c spank/status/local.h \
	spank/status/textfile.c spank/status/textfile.h \
	spank/status/process.c spank/status/process.h \
	spank/status/probe.c spank/status/probe.h
spank_status_libstatus_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
# Optimized code needs no floor() of the library.
spank_status_libstatus_la_LIBADD = spank/libspankcore.la $(JANSSON_LIBS) -lm
spank_status_ddp_status_SOURCES = spank/status/main.c
spank_status_ddp_status_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
spank_status_ddp_status_LDADD = spank/status/libstatus.la

if HAVE_SLURM
spank_LTLIBRARIES = spank/spank_ddp.la
spank_spank_ddp_la_SOURCES = spank/plugin.c \
	spank/ask.c spank/ask.h spank/comment.c spank/comment.h spank/srun.c spank/srun.h spank/stepd.c spank/stepd.h \
	spank/survive.c spank/survive.h spank/task.c spank/task.h \
	spank/kill.c spank/kill.h spank/preflight.c spank/preflight.h spank/shrink.c spank/shrink.h \
	spank/note.c spank/note.h spank/requeue.c spank/requeue.h spank/relaunch.c spank/relaunch.h \
	spank/settle.c spank/settle.h
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
