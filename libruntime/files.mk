# libruntime: libddp.so and its public header, floor by floor.
include_HEADERS += libruntime/ddp.h
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = libruntime/libddp.pc

base_sources = \
	libruntime/base/clock.h libruntime/base/fence.h \
	libruntime/base/hash.h libruntime/base/hex.h libruntime/base/thread.h \
	libruntime/base/error.c libruntime/base/error.h \
	libruntime/base/log.c libruntime/base/log.h \
	libruntime/base/pages.h \
	libruntime/base/text.c libruntime/base/text.h \
	libruntime/base/wait.h

job_sources = \
	libruntime/job/job.h libruntime/job/discover.c libruntime/job/json.c \
	libruntime/job/environment.c libruntime/job/environment.h \
	libruntime/job/pmix_client.c libruntime/job/pmix_client.h \
	libruntime/job/spawn.c libruntime/job/spawn.h

wireup_sources = \
	libruntime/wireup/wireup.c libruntime/wireup/wireup.h libruntime/wireup/open.h \
	libruntime/wireup/agreement.c libruntime/wireup/agreement.h \
	libruntime/wireup/auth.c libruntime/wireup/auth.h \
	libruntime/wireup/frame.c libruntime/wireup/frame.h \
	libruntime/wireup/pmix.c \
	libruntime/wireup/pmix_probe.c libruntime/wireup/pmix_probe.h \
	libruntime/wireup/resolve.c libruntime/wireup/self.c \
	libruntime/wireup/socket.c libruntime/wireup/socket.h \
	libruntime/wireup/star.h libruntime/wireup/star_leaf.c \
	libruntime/wireup/star_centre.c libruntime/wireup/star_centre.h \
	libruntime/wireup/star_door.c libruntime/wireup/star_links.c \
	libruntime/wireup/tcp.c

comm_sources = \
	libruntime/comm/await.c libruntime/comm/await.h \
	libruntime/comm/blocks.h \
	libruntime/comm/comm.c libruntime/comm/comm.h \
	libruntime/comm/execute.h \
	libruntime/comm/futex.h \
	libruntime/comm/internal.h \
	libruntime/comm/group.c libruntime/comm/group.h \
	libruntime/comm/inter.h \
	libruntime/comm/inter_copy.c libruntime/comm/inter_doubling.c \
	libruntime/comm/inter_gather.c \
	libruntime/comm/inter_local.c libruntime/comm/inter_pieces.c \
	libruntime/comm/inter_reduce.c libruntime/comm/inter_reduce.h \
	libruntime/comm/inter_segments.c \
	libruntime/comm/inter_store.c libruntime/comm/inter_store.h \
	libruntime/comm/inter_tune.c \
	libruntime/comm/kernels.c libruntime/comm/kernels.h \
	libruntime/comm/kernels_avx2.c libruntime/comm/kernels_table.h \
	libruntime/comm/kernels_narrow_template.h libruntime/comm/kernels_template.h \
	libruntime/comm/liveness.c libruntime/comm/liveness.h \
	libruntime/comm/locality.c libruntime/comm/locality.h \
	libruntime/comm/meeting.c libruntime/comm/meeting.h \
	libruntime/comm/memory.c libruntime/comm/memory.h \
	libruntime/comm/merge.c libruntime/comm/merge.h \
	libruntime/comm/names.c \
	libruntime/comm/node.c libruntime/comm/node.h \
	libruntime/comm/node_copy.c \
	libruntime/comm/node_reduce.c libruntime/comm/node_run.h \
	libruntime/comm/open.c libruntime/comm/open.h \
	libruntime/comm/net.h libruntime/comm/net_log.h \
	libruntime/comm/pairs.c libruntime/comm/pairs.h \
	libruntime/comm/request.c \
	libruntime/comm/shrink.c \
	libruntime/comm/verdict.c libruntime/comm/verdict.h

reduce_sources = \
	libruntime/reduce/agree.c libruntime/reduce/agree.h \
	libruntime/reduce/bucket.c libruntime/reduce/bucket.h \
	libruntime/reduce/layout.c libruntime/reduce/layout.h \
	libruntime/reduce/model.c libruntime/reduce/model.h \
	libruntime/reduce/model_state.h \
	libruntime/reduce/options.c libruntime/reduce/options.h \
	libruntime/reduce/reducer.c libruntime/reduce/reducer.h \
	libruntime/reduce/rows.c libruntime/reduce/rows.h \
	libruntime/reduce/sharded.c libruntime/reduce/sharded.h \
	libruntime/reduce/step.c libruntime/reduce/update.c

optim_sources = \
	libruntime/optim/optim.c libruntime/optim/optim.h \
	libruntime/optim/schedule.c

data_sources = \
	libruntime/data/loader.c libruntime/data/loader.h \
	libruntime/data/mt19937.c libruntime/data/mt19937.h \
	libruntime/data/sampler.c libruntime/data/sampler.h \
	libruntime/data/tokens.c

state_sources = \
	libruntime/state/checkpoint.c libruntime/state/checkpoint.h \
	libruntime/state/crc32c.c libruntime/state/crc32c.h \
	libruntime/state/leader.c libruntime/state/leader.h \
	libruntime/state/safetensors.h \
	libruntime/state/safetensors_read.c libruntime/state/safetensors_write.c \
	libruntime/state/store.c libruntime/state/store.h

watch_sources = \
	libruntime/watch/metrics.c libruntime/watch/metrics.h \
	libruntime/watch/page.c libruntime/watch/page.h \
	libruntime/watch/progress.h \
	libruntime/watch/spans.c libruntime/watch/spans.h \
	libruntime/watch/trace.c libruntime/watch/trace.h \
	libruntime/watch/watch.c libruntime/watch/watch.h

train_sources = \
	libruntime/train/train.c

# What ddp_init() opens: it stands on the floors from job to watch.
context_sources = \
	libruntime/context.c libruntime/context.h

if HAVE_UCX
comm_sources += libruntime/comm/net_greet.c libruntime/comm/net_log.c \
	libruntime/comm/net_door.c libruntime/comm/net_door.h \
	libruntime/comm/net_secret.c libruntime/comm/net_secret.h \
	libruntime/comm/net_ucx.c libruntime/comm/net_ucx.h libruntime/comm/net_ucx_close.c \
	libruntime/comm/net_ucx_connect.c libruntime/comm/net_ucx_inquiry.c \
	libruntime/comm/net_ucx_open.c libruntime/comm/net_ucx_window.c
else
comm_sources += libruntime/comm/net_none.c
endif

# A convenience library, so that unit tests reach the hidden functions too.
noinst_LTLIBRARIES += libruntime/libddpcore.la
libruntime_libddpcore_la_SOURCES = \
	$(base_sources) $(job_sources) $(wireup_sources) $(comm_sources) \
	$(reduce_sources) $(optim_sources) $(data_sources) $(state_sources) \
	$(watch_sources) $(context_sources) $(train_sources)
# Fused or not, a sum's bits would depend on how the compiler cut its loop.
libruntime_libddpcore_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off \
	$(PMIX_CFLAGS) $(UCX_CFLAGS) $(CRYPTO_CFLAGS) $(JANSSON_CFLAGS)
libruntime_libddpcore_la_LIBADD = kernels/libkernels.la \
	$(PMIX_LIBS) $(UCX_LIBS) $(CRYPTO_LIBS) $(JANSSON_LIBS) $(MATH_LIBS)

lib_LTLIBRARIES += libruntime/libddp.la
libruntime_libddp_la_SOURCES =
libruntime_libddp_la_LIBADD = libruntime/libddpcore.la
libruntime_libddp_la_LDFLAGS = $(AM_LDFLAGS) -version-info 0:0:0 \
	-Wl,--version-script=$(top_srcdir)/libruntime/libddp.map
libruntime_libddp_la_DEPENDENCIES = libruntime/libddpcore.la libruntime/libddp.map
EXTRA_DIST += libruntime/libddp.map
