# spank: spank_ddp.so, a thin shell (the files of spank_spank_ddp_la_SOURCES) over a core that
# knows no Slurm.
noinst_LTLIBRARIES += spank/libspankcore.la
spank_libspankcore_la_SOURCES = \
	spank/identity/address.c spank/identity/address.h \
	spank/launch/check.c spank/launch/check.h \
	spank/launch/container.c spank/launch/container.h \
	spank/launch/daemon.c spank/launch/daemon.h \
	spank/launch/names.c spank/launch/names.h \
	spank/launch/table.c spank/launch/table.h \
	spank/launch/variables.c spank/launch/variables.h \
	spank/error.c spank/error.h \
	spank/identity/gpu.c spank/identity/gpu.h \
	spank/identity/identity.c spank/identity/identity.h \
	spank/launch/prepare.c spank/launch/prepare.h \
	spank/identity/master.c spank/identity/master.h \
	spank/identity/nodelist.c spank/identity/nodelist.h \
	spank/options.c spank/options.h \
	spank/identity/port.c spank/identity/port.h \
	spank/failure/srun_options.c spank/failure/srun_options.h \
	spank/failure/blame.c spank/failure/blame.h \
	spank/failure/blame_node.c spank/failure/blame_node.h \
	spank/failure/controller.c spank/failure/controller.h \
	spank/failure/doing.c spank/failure/doing.h \
	spank/failure/ends.c spank/failure/ends.h \
	spank/failure/judge.c spank/failure/judge.h spank/failure/timeline.h \
	spank/failure/memory.c spank/failure/memory.h \
	spank/failure/node.c spank/failure/node.h \
	spank/failure/step.c spank/failure/step.h \
	spank/failure/stall.c spank/failure/stall.h \
	spank/failure/stall_note.c spank/failure/stall_note.h \
	spank/failure/stall_step.c spank/failure/stall_step.h \
	spank/failure/stall_watch.c spank/failure/stall_watch.h \
	spank/failure/voice.c spank/failure/voice.h \
	spank/failure/witness.c spank/failure/witness.h \
	spank/contained.c spank/contained.h \
	spank/pause.c spank/pause.h spank/worker.c spank/worker.h \
	spank/failure/heard.c spank/failure/heard.h \
	spank/failure/journal.c spank/failure/journal.h \
	spank/failure/presence.c spank/failure/presence.h \
	spank/failure/launched.c spank/failure/launched.h \
	spank/failure/relay.c spank/failure/relay.h spank/failure/relay_node.c spank/failure/relay_srun.c \
	spank/failure/report.c spank/failure/report.h \
	spank/site.c spank/site.h \
	spank/sink.c spank/sink.h \
	spank/siphash.c spank/siphash.h \
	spank/failure/supervise.c spank/failure/supervise.h

# ddp-status: what the ranks of a running job do. It calls Slurm's commands.
bin_PROGRAMS += spank/status/ddp-status
noinst_LTLIBRARIES += spank/status/libstatus.la
spank_status_libstatus_la_SOURCES = spank/status/row.c spank/status/row.h \
	spank/status/process.c spank/status/process.h \
	spank/status/probe.c spank/status/probe.h
spank_status_libstatus_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
spank_status_libstatus_la_LIBADD = spank/libspankcore.la $(JANSSON_LIBS)
spank_status_ddp_status_SOURCES = spank/status/main.c \
	spank/status/cluster.c spank/status/cluster.h
spank_status_ddp_status_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
spank_status_ddp_status_LDADD = spank/status/libstatus.la

if HAVE_SLURM
spank_LTLIBRARIES = spank/spank_ddp.la
spank_spank_ddp_la_SOURCES = spank/plugin.c spank/plugin.h \
	spank/ask.c spank/ask.h spank/srun.c spank/srun.h spank/stepd.c spank/stepd.h \
	spank/task.c spank/task.h \
	spank/failure/kill.c spank/failure/kill.h
spank_spank_ddp_la_CFLAGS = $(AM_CFLAGS) $(SLURM_CFLAGS)
# libc only: Slurm looks symbols up in a plugin's libraries, too.
spank_spank_ddp_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,--as-needed -Wl,-z,nodelete -Wl,--version-script=$(top_srcdir)/spank/spank_ddp.map
spank_spank_ddp_la_LIBADD = spank/libspankcore.la
spank_spank_ddp_la_DEPENDENCIES = spank/libspankcore.la spank/spank_ddp.map

# Two, as Automake installs pkglibdir with programs, other folders with data, side by side.
install-data-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.la
install-exec-hook:
	rm -f $(DESTDIR)$(pkglibdir)/libnccl-profiler-ddp.la $(DESTDIR)$(pkglibdir)/libnccl-net-ddpucx.la
# Without the .la, libtool does not know what to take away.
uninstall-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.so $(DESTDIR)$(pkglibdir)/libnccl-profiler-ddp.so \
		$(DESTDIR)$(pkglibdir)/libnccl-net-ddpucx.so
endif
EXTRA_DIST += spank/spank_ddp.map
