# SPDX-License-Identifier: Apache-2.0
# libruntime/nccl_plugins: what NCCL loads into programs with and without libddp. Of libddp
# each plugin has some files of its own, and shows nothing of them.

# The plugin of NCCL's that keeps the page of programs without libddp. It goes with the
# SPANK plugin, which has NCCL load it, and needs libc only.
pkglib_LTLIBRARIES += libruntime/nccl_plugins/profiler/libnccl-profiler-ddp.la
libruntime_nccl_plugins_profiler_libnccl_profiler_ddp_la_SOURCES = \
	libruntime/nccl_plugins/profiler/plugin.c libruntime/nccl_plugins/profiler/abi.h \
	libruntime/watch/page.c libruntime/watch/recorder.c libruntime/base/log.c libruntime/base/c_locale.c libruntime/base/text.c
libruntime_nccl_plugins_profiler_libnccl_profiler_ddp_la_CFLAGS = $(AM_CFLAGS) -fvisibility=hidden
libruntime_nccl_plugins_profiler_libnccl_profiler_ddp_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,-z,nodelete -export-symbols-regex '^ncclProfiler_v[0-9]+$$'

# libnccl-net-ddpucx.so, NCCL's network over UCX: configure --enable-nccl-net.
if HAVE_NCCL_NET
noinst_LTLIBRARIES += libruntime/nccl_plugins/net/libnetplugin.la
libruntime_nccl_plugins_net_libnetplugin_la_SOURCES = \
	libruntime/nccl_plugins/net/abi.h \
	libruntime/nccl_plugins/net/connection.c libruntime/nccl_plugins/net/connection.h \
	libruntime/nccl_plugins/net/control.c libruntime/nccl_plugins/net/control.h \
	libruntime/nccl_plugins/net/device.c libruntime/nccl_plugins/net/device.h \
	libruntime/nccl_plugins/net/gpudirect.c libruntime/nccl_plugins/net/gpudirect.h \
	libruntime/nccl_plugins/net/handle.c libruntime/nccl_plugins/net/handle.h \
	libruntime/nccl_plugins/net/handshake.c libruntime/nccl_plugins/net/handshake.h \
	libruntime/nccl_plugins/net/listener.c libruntime/nccl_plugins/net/listener.h \
	libruntime/nccl_plugins/net/message.c libruntime/nccl_plugins/net/message.h \
	libruntime/nccl_plugins/net/plugin.c \
	libruntime/nccl_plugins/net/report.c libruntime/nccl_plugins/net/report.h \
	libruntime/nccl_plugins/net/transfer.c libruntime/nccl_plugins/net/transfer.h \
	libruntime/nccl_plugins/net/worker.c libruntime/nccl_plugins/net/worker.h \
	libruntime/base/c_locale.c libruntime/base/descriptors.c libruntime/base/error.c libruntime/base/log.c \
	libruntime/base/text.c \
	libruntime/comm/net/auth.c libruntime/comm/net/calls.c libruntime/comm/net/guard.c libruntime/comm/net/listener.c \
	libruntime/comm/net/log.c \
	libruntime/job/environment.c \
	libruntime/wireup/acceptor.c libruntime/wireup/auth.c libruntime/wireup/socket.c
libruntime_nccl_plugins_net_libnetplugin_la_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS) $(CRYPTO_CFLAGS)
libruntime_nccl_plugins_net_libnetplugin_la_LIBADD = $(UCX_LIBS) $(CRYPTO_LIBS)

# UCX's thread, and its hooks in the C library, outlive what NCCL may unload.
pkglib_LTLIBRARIES += libruntime/nccl_plugins/net/libnccl-net-ddpucx.la
libruntime_nccl_plugins_net_libnccl_net_ddpucx_la_SOURCES =
libruntime_nccl_plugins_net_libnccl_net_ddpucx_la_LIBADD = libruntime/nccl_plugins/net/libnetplugin.la
libruntime_nccl_plugins_net_libnccl_net_ddpucx_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,-z,nodelete -Wl,--version-script=$(top_srcdir)/libruntime/nccl_plugins/net/netplugin.map
libruntime_nccl_plugins_net_libnccl_net_ddpucx_la_DEPENDENCIES = \
	libruntime/nccl_plugins/net/libnetplugin.la libruntime/nccl_plugins/net/netplugin.map
endif
EXTRA_DIST += libruntime/nccl_plugins/net/netplugin.map
