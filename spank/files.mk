# spank: spank_ddp.so, a thin shell (plugin.c) over a core that knows no Slurm.
noinst_LTLIBRARIES += spank/libspankcore.la
spank_libspankcore_la_SOURCES = \
	spank/address.c spank/address.h \
	spank/check.c spank/check.h \
	spank/environment.c spank/environment.h \
	spank/fault.c spank/fault.h \
	spank/gpu.c spank/gpu.h \
	spank/identity.c spank/identity.h \
	spank/launch.c spank/launch.h \
	spank/master.c spank/master.h \
	spank/nodelist.c spank/nodelist.h \
	spank/options.c spank/options.h \
	spank/port.c spank/port.h \
	spank/relay.c spank/relay.h spank/relay_node.c spank/relay_srun.c \
	spank/report.c spank/report.h \
	spank/site.c spank/site.h \
	spank/sink.c spank/sink.h \
	spank/siphash.c spank/siphash.h \
	spank/supervise.c spank/supervise.h

if HAVE_SLURM
spank_LTLIBRARIES = spank/spank_ddp.la
spank_spank_ddp_la_SOURCES = spank/plugin.c spank/kill.c spank/kill.h \
	spank/component.c spank/component.h
spank_spank_ddp_la_CFLAGS = $(AM_CFLAGS) $(SLURM_CFLAGS)
# libc only: Slurm looks symbols up in a plugin's libraries, too.
spank_spank_ddp_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,--as-needed -Wl,-z,nodelete -Wl,--version-script=$(top_srcdir)/spank/spank_ddp.map
spank_spank_ddp_la_LIBADD = spank/libspankcore.la
spank_spank_ddp_la_DEPENDENCIES = spank/libspankcore.la spank/spank_ddp.map

install-data-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.la
# Without the .la, libtool does not know what to take away.
uninstall-hook:
	rm -f $(DESTDIR)$(spankdir)/spank_ddp.so
endif
EXTRA_DIST += spank/spank_ddp.map
