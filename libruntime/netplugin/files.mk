# libruntime/netplugin: libnccl-net-ddpucx.so, NCCL's network over UCX. Of libddp it has
# some files of its own, and shows nothing of them.
if HAVE_UCX
noinst_LTLIBRARIES += libruntime/netplugin/libnetplugin.la
libruntime_netplugin_libnetplugin_la_SOURCES = \
	libruntime/netplugin/abi.h \
	libruntime/netplugin/connection.c libruntime/netplugin/connection.h \
	libruntime/netplugin/control.c libruntime/netplugin/control.h \
	libruntime/netplugin/device.c libruntime/netplugin/device.h \
	libruntime/netplugin/gpudirect.c libruntime/netplugin/gpudirect.h \
	libruntime/netplugin/handle.c libruntime/netplugin/handle.h \
	libruntime/netplugin/handshake.c libruntime/netplugin/handshake.h \
	libruntime/netplugin/listener.c libruntime/netplugin/listener.h \
	libruntime/netplugin/message.c libruntime/netplugin/message.h \
	libruntime/netplugin/plugin.c libruntime/netplugin/plugin.h \
	libruntime/netplugin/report.c libruntime/netplugin/report.h \
	libruntime/netplugin/transfer.c libruntime/netplugin/transfer.h \
	libruntime/netplugin/worker.c libruntime/netplugin/worker.h \
	libruntime/base/c_locale.c libruntime/base/descriptors.c libruntime/base/error.c libruntime/base/log.c \
	libruntime/base/text.c \
	libruntime/comm/net/calls.c libruntime/comm/net/listener.c libruntime/comm/net/proof.c libruntime/comm/net/secret.c \
	libruntime/comm/net/ucx_guard.c libruntime/comm/net/ucx_log.c libruntime/comm/net/ucx_sendv.c \
	libruntime/job/environment.c \
	libruntime/wireup/acceptor.c libruntime/wireup/auth.c libruntime/wireup/socket.c
libruntime_netplugin_libnetplugin_la_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS) $(CRYPTO_CFLAGS)
libruntime_netplugin_libnetplugin_la_LIBADD = $(UCX_LIBS) $(CRYPTO_LIBS)

# UCX's thread, and its hooks in the C library, outlive what NCCL may unload.
pkglib_LTLIBRARIES += libruntime/netplugin/libnccl-net-ddpucx.la
libruntime_netplugin_libnccl_net_ddpucx_la_SOURCES =
libruntime_netplugin_libnccl_net_ddpucx_la_LIBADD = libruntime/netplugin/libnetplugin.la
libruntime_netplugin_libnccl_net_ddpucx_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-Wl,-z,nodelete -Wl,--version-script=$(top_srcdir)/libruntime/netplugin/netplugin.map
libruntime_netplugin_libnccl_net_ddpucx_la_DEPENDENCIES = \
	libruntime/netplugin/libnetplugin.la libruntime/netplugin/netplugin.map
endif
EXTRA_DIST += libruntime/netplugin/netplugin.map
