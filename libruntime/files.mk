# SPDX-License-Identifier: Apache-2.0
# libruntime: libddp.so and its public headers, floor by floor.
include_HEADERS += libruntime/include/ddp.h
ddpincludedir = $(includedir)/ddp
ddpinclude_HEADERS = \
	libruntime/include/ddp/base.h libruntime/include/ddp/version.h libruntime/include/ddp/job.h \
	libruntime/include/ddp/comm.h libruntime/include/ddp/optim.h libruntime/include/ddp/model.h \
	libruntime/include/ddp/step.h libruntime/include/ddp/data.h \
	libruntime/include/ddp/state.h libruntime/include/ddp/train.h
public_headers = libruntime/include/ddp.h $(ddpinclude_HEADERS)
dist_bin_SCRIPTS += libruntime/watch/ddp-report
# What `ddp-report --record` loads.
reportdir = $(datadir)/slurm-ddp
dist_report_DATA = libruntime/watch/ddp_record.py
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA += libruntime/libddp.pc

base_sources = \
	libruntime/base/clock.h libruntime/base/fence.h \
	libruntime/base/hash.h libruntime/base/hex.h libruntime/base/thread.h \
	libruntime/base/crc32c.c libruntime/base/crc32c.h \
	libruntime/base/descriptors.c libruntime/base/descriptors.h \
	libruntime/base/error.c libruntime/base/error.h \
	libruntime/base/log.c libruntime/base/log.h \
	libruntime/base/options.c libruntime/base/options.h \
	libruntime/base/c_locale.c libruntime/base/c_locale.h \
	libruntime/base/outlier.c libruntime/base/outlier.h \
	libruntime/base/pages.h \
	libruntime/base/path.c libruntime/base/path.h \
	libruntime/base/segment.c libruntime/base/segment.h \
	libruntime/base/signals.h \
	libruntime/base/text.c libruntime/base/text.h \
	libruntime/base/wait.h \
	libruntime/base/walk.c libruntime/base/walk.h

job_sources = \
	libruntime/job/job.c libruntime/job/job.h \
	libruntime/job/environment.c libruntime/job/environment.h \
	libruntime/job/nodes.c libruntime/job/nodes.h spank/base/text.c spank/identity/nodelist.c \
	libruntime/job/pmix_client.c libruntime/job/pmix_client.h \
	libruntime/job/spawn.c libruntime/job/spawn.h

wireup_sources = \
	libruntime/wireup/wireup.c libruntime/wireup/wireup.h libruntime/wireup/open.h \
	libruntime/wireup/acceptor.c libruntime/wireup/acceptor.h \
	libruntime/wireup/agreement.c libruntime/wireup/agreement.h \
	libruntime/wireup/auth.c libruntime/wireup/auth.h \
	libruntime/wireup/by_store.c libruntime/wireup/by_store.h \
	libruntime/wireup/file_store.c libruntime/wireup/file_store.h \
	libruntime/wireup/frame.c libruntime/wireup/frame.h \
	libruntime/wireup/node_table.c libruntime/wireup/node_table.h \
	libruntime/wireup/pmix.c \
	libruntime/wireup/resolve.c libruntime/wireup/resolve.h \
	libruntime/wireup/socket.c libruntime/wireup/socket.h \
	libruntime/wireup/star.h libruntime/wireup/star_centre.c libruntime/wireup/star_leaf.c \
	libruntime/wireup/star_links.c libruntime/wireup/star_links.h \
	libruntime/wireup/tcp.c \
	libruntime/wireup/torchrun.c libruntime/wireup/torchrun.h

device_sources = \
	libruntime/device/backend.h \
	libruntime/device/cpu.c \
	libruntime/device/device.c libruntime/device/device.h \
	libruntime/device/kernel_queue.c libruntime/device/kernel_queue.h \
	libruntime/device/module.c libruntime/device/module.h

comm_sources = \
	libruntime/comm/ops/blocks.h \
	libruntime/comm/ops/combine_nodes.c libruntime/comm/ops/combine_nodes.h \
	libruntime/comm/ops/kernels.c libruntime/comm/ops/kernels.h \
	libruntime/comm/ops/kernels_avx2.c libruntime/comm/ops/kernels_avx512.c \
	libruntime/comm/ops/kernels_avx512fp16.c \
	libruntime/comm/ops/kernels_narrow_template.h \
	libruntime/comm/ops/kernels_table.h \
	libruntime/comm/ops/kernels_template.h \
	libruntime/comm/ops/names.c libruntime/comm/ops/names.h \
	libruntime/comm/core/allocation.c libruntime/comm/core/allocation.h \
	libruntime/comm/core/backend.h \
	libruntime/comm/core/comm.h \
	libruntime/comm/core/completion.c libruntime/comm/core/completion.h \
	libruntime/comm/core/doorbell.c libruntime/comm/core/doorbell.h \
	libruntime/comm/core/failure.c libruntime/comm/core/failure.h \
	libruntime/comm/core/fingerprint.c libruntime/comm/core/fingerprint.h \
	libruntime/comm/core/lines.h \
	libruntime/comm/core/liveness.c libruntime/comm/core/liveness.h \
	libruntime/comm/core/offsets.c libruntime/comm/core/offsets.h \
	libruntime/comm/core/pool.c libruntime/comm/core/pool.h \
	libruntime/comm/core/roster.c libruntime/comm/core/roster.h \
	libruntime/comm/core/silence.c libruntime/comm/core/silence.h \
	libruntime/comm/net/net.h \
	libruntime/comm/net/nics.c libruntime/comm/net/nics.h \
	libruntime/comm/p2p/match.c libruntime/comm/p2p/match.h \
	libruntime/comm/p2p/p2p.c libruntime/comm/p2p/p2p.h \
	libruntime/comm/p2p/ring.c libruntime/comm/p2p/ring.h \
	libruntime/comm/wait/await.c libruntime/comm/wait/await.h \
	libruntime/comm/wait/cores.c libruntime/comm/wait/cores.h \
	libruntime/comm/wait/message.c libruntime/comm/wait/message.h \
	libruntime/comm/wait/verdict.c libruntime/comm/wait/verdict.h \
	libruntime/comm/shm/borrow.c libruntime/comm/shm/borrow.h \
	libruntime/comm/shm/memory.c libruntime/comm/shm/memory.h \
	libruntime/comm/shm/node.c libruntime/comm/shm/node.h \
	libruntime/comm/shm/node_copy.c libruntime/comm/shm/node_copy.h \
	libruntime/comm/shm/node_reduce.c libruntime/comm/shm/node_reduce.h \
	libruntime/comm/hier/hier.h \
	libruntime/comm/hier/all_gather.c \
	libruntime/comm/hier/algorithms.c libruntime/comm/hier/algorithms.h \
	libruntime/comm/hier/direct.c \
	libruntime/comm/hier/broadcast.c \
	libruntime/comm/hier/local.c libruntime/comm/hier/local.h \
	libruntime/comm/hier/pairwise.c \
	libruntime/comm/hier/plan.c libruntime/comm/hier/plan.h \
	libruntime/comm/hier/recursive_doubling.c \
	libruntime/comm/hier/recursive_halving.c \
	libruntime/comm/hier/reduce.c \
	libruntime/comm/hier/reduction.h \
	libruntime/comm/hier/slices.c libruntime/comm/hier/slices.h \
	libruntime/comm/hier/store.c libruntime/comm/hier/store.h \
	libruntime/comm/hier/tree.c libruntime/comm/hier/tree.h \
	libruntime/comm/hier/tune.c libruntime/comm/hier/tune.h \
	libruntime/comm/adopt.c libruntime/comm/adopt.h \
	libruntime/comm/agree.c libruntime/comm/agree.h \
	libruntime/comm/allocate.c libruntime/comm/allocate.h \
	libruntime/comm/api.c libruntime/comm/api.h \
	libruntime/comm/attend.c libruntime/comm/attend.h \
	libruntime/comm/check.c libruntime/comm/check.h \
	libruntime/comm/execute.c libruntime/comm/execute.h \
	libruntime/comm/follow.c libruntime/comm/follow.h \
	libruntime/comm/host.c libruntime/comm/host.h \
	libruntime/comm/on_device.c libruntime/comm/on_device.h \
	libruntime/comm/request.c libruntime/comm/request.h \
	libruntime/comm/self.c \
	libruntime/comm/nccl/abi.h \
	libruntime/comm/nccl/collective.c \
	libruntime/comm/nccl/handle.c libruntime/comm/nccl/handle.h \
	libruntime/comm/nccl/lane.h \
	libruntime/comm/nccl/load.c libruntime/comm/nccl/load.h \
	libruntime/comm/nccl/memory.c \
	libruntime/comm/nccl/message.c \
	libruntime/comm/nccl/nccl.c libruntime/comm/nccl/nccl.h \
	libruntime/comm/nccl/reduction.c \
	libruntime/comm/group/agreement.c libruntime/comm/group/agreement.h \
	libruntime/comm/group/build.c libruntime/comm/group/build.h \
	libruntime/comm/group/carry.c libruntime/comm/group/carry.h \
	libruntime/comm/group/members.c \
	libruntime/comm/group/proposal.c libruntime/comm/group/proposal.h \
	libruntime/comm/group/shrink.c \
	libruntime/comm/group/split.c \
	libruntime/comm/group/world.c libruntime/comm/group/world.h

params_sources = \
	libruntime/params/layout.c libruntime/params/layout.h

reduce_sources = \
	libruntime/reduce/agree.c libruntime/reduce/agree.h \
	libruntime/reduce/arena.c \
	libruntime/reduce/buddy.c libruntime/reduce/buddy.h \
	libruntime/reduce/buffers.c \
	libruntime/reduce/bucket.c libruntime/reduce/bucket.h \
	libruntime/reduce/compare.c libruntime/reduce/compare.h \
	libruntime/reduce/consensus.c libruntime/reduce/consensus.h \
	libruntime/reduce/grads.c \
	libruntime/reduce/hypers.c libruntime/reduce/hypers.h \
	libruntime/reduce/merge.c libruntime/reduce/merge.h \
	libruntime/reduce/model.c libruntime/reduce/model.h \
	libruntime/reduce/model_state.c libruntime/reduce/model_state.h \
	libruntime/reduce/on_device.c \
	libruntime/reduce/options.c libruntime/reduce/options.h \
	libruntime/reduce/outbox.c libruntime/reduce/outbox.h \
	libruntime/reduce/place.c libruntime/reduce/place.h \
	libruntime/reduce/reducer.c libruntime/reduce/reducer.h \
	libruntime/reduce/replan.c libruntime/reduce/replan.h \
	libruntime/reduce/rows.c \
	libruntime/reduce/fit.c libruntime/reduce/fit.h libruntime/reduce/survival.c libruntime/reduce/survival.h \
	libruntime/reduce/join.c libruntime/reduce/join.h libruntime/reduce/level.c libruntime/reduce/level.h \
	libruntime/reduce/squares.c \
	libruntime/reduce/step.c libruntime/reduce/step.h \
	libruntime/reduce/strategy.h \
	libruntime/reduce/strategy_all_reduce.c libruntime/reduce/strategy_all_reduce.h \
	libruntime/reduce/strategy_compress.c \
	libruntime/reduce/strategy_hook.c \
	libruntime/reduce/strategy_node.c libruntime/reduce/strategy_node.h \
	libruntime/reduce/strategy_hybrid.c \
	libruntime/reduce/strategy_local.c libruntime/reduce/strategy_powersgd.c \
	libruntime/reduce/strategy_scatter.c \
	libruntime/reduce/tensors.c libruntime/reduce/tensors.h \
	libruntime/reduce/timeline.c \
	libruntime/reduce/undo.c libruntime/reduce/undo.h \
	libruntime/reduce/unit.c libruntime/reduce/unit.h \
	libruntime/reduce/uses.c

optim_sources = \
	libruntime/optim/adafactor.c libruntime/optim/adam.c libruntime/optim/muon.c \
	libruntime/optim/optim.c libruntime/optim/optim.h \
	libruntime/optim/rule.h libruntime/optim/sgd.c \
	libruntime/optim/scaler.c libruntime/optim/scaler.h libruntime/optim/schedule.c

data_sources = \
	libruntime/data/file.c libruntime/data/file.h \
	libruntime/data/images.c \
	libruntime/data/loader.c libruntime/data/loader.h \
	libruntime/data/sampler.c libruntime/data/sampler.h \
	libruntime/data/tokens.c \
	libruntime/data/transform.c

state_sources = \
	libruntime/state/checkpoint.c \
	libruntime/state/leader.c libruntime/state/leader.h \
	libruntime/state/lock.c libruntime/state/lock.h \
	libruntime/state/metadata.c libruntime/state/metadata.h \
	libruntime/state/params.c \
	libruntime/state/safetensors.c libruntime/state/safetensors.h \
	libruntime/state/safetensors_write.c libruntime/state/safetensors_write.h \
	libruntime/state/save.c libruntime/state/save.h \
	libruntime/state/store.c libruntime/state/store.h \
	libruntime/state/transfer.c libruntime/state/transfer.h \
	libruntime/state/user.c libruntime/state/user.h

watch_sources = \
	libruntime/watch/metrics.c libruntime/watch/metrics.h \
	libruntime/watch/page.c libruntime/watch/page.h \
	libruntime/watch/progress.h libruntime/watch/record.h \
	libruntime/watch/recorder.c libruntime/watch/recorder.h \
	libruntime/watch/stacks.c libruntime/watch/stacks.h \
	libruntime/watch/trace.c libruntime/watch/trace.h \
	libruntime/watch/watch.c libruntime/watch/watch.h

train_sources = \
	libruntime/train/survive.c libruntime/train/survive.h libruntime/train/train.c

# What ddp_init() opens: it stands on the floors from job to watch.
context_sources = \
	libruntime/context.c libruntime/context.h libruntime/renewal.c libruntime/renewal.h

if HAVE_UCX
comm_sources += \
	libruntime/comm/net/auth.c libruntime/comm/net/auth.h \
	libruntime/comm/net/beat.c libruntime/comm/net/beat.h \
	libruntime/comm/net/beats.c libruntime/comm/net/beats.h \
	libruntime/comm/net/calls.c libruntime/comm/net/calls.h \
	libruntime/comm/net/guard.c libruntime/comm/net/guard.h \
	libruntime/comm/net/listener.c libruntime/comm/net/listener.h \
	libruntime/comm/net/log.c libruntime/comm/net/log.h \
	libruntime/comm/net/ucx.h \
	libruntime/comm/net/close.c libruntime/comm/net/connect.c libruntime/comm/net/failure.c \
	libruntime/comm/net/message.c libruntime/comm/net/net.c libruntime/comm/net/open.c libruntime/comm/net/receive.c
else
comm_sources += libruntime/comm/net/none.c
endif

# A convenience library, so that unit tests reach the hidden functions too.
noinst_LTLIBRARIES += libruntime/libddpcore.la
libruntime_libddpcore_la_SOURCES = \
	$(base_sources) $(job_sources) $(wireup_sources) $(device_sources) $(comm_sources) \
	$(params_sources) $(optim_sources) $(reduce_sources) $(data_sources) $(state_sources) \
	$(watch_sources) $(context_sources) $(train_sources)
# Fused or not, a sum's bits would depend on how the compiler cut its loop.
libruntime_libddpcore_la_CFLAGS = $(AM_CFLAGS) -ffp-contract=off \
	$(PMIX_CFLAGS) $(UCX_CFLAGS) $(CRYPTO_CFLAGS) $(JANSSON_CFLAGS)
libruntime_libddpcore_la_LIBADD = kernels/libkernels.la \
	$(PMIX_LIBS) $(UCX_LIBS) $(CRYPTO_LIBS) $(JANSSON_LIBS) $(MATH_LIBS)

lib_LTLIBRARIES += libruntime/libddp.la
libruntime_libddp_la_SOURCES =
libruntime_libddp_la_LIBADD = libruntime/libddpcore.la
# What libuct calls (comm/net/calls) must stay.
libruntime_libddp_la_LDFLAGS = $(AM_LDFLAGS) -version-info 1:0:0 \
	-Wl,-z,nodelete -Wl,--version-script=libruntime/libddp.map
libruntime_libddp_la_DEPENDENCIES = libruntime/libddpcore.la libruntime/libddp.map
# The functions that the public headers declare are exported, each by its name, and nothing else.
libruntime/libddp.map: $(public_headers)
	$(AM_V_GEN)$(MKDIR_P) libruntime && cd $(srcdir) && { \
		printf 'LIBDDP_1 {\n\tglobal:\n'; \
		sed -n 's/^DDP_API [^(]*\(ddp_[a-z0-9_]*\)(.*/		\1;/p' $(public_headers) | LC_ALL=C sort; \
		printf '\tlocal:\n\t\t*;\n};\n'; } >$(abs_builddir)/$@.tmp && mv $(abs_builddir)/$@.tmp $(abs_builddir)/$@
CLEANFILES += libruntime/libddp.map
# A change of the version makes configure anew.
CONFIGURE_DEPENDENCIES = $(srcdir)/libruntime/include/ddp/version.h

# What a node with GPUs needs besides; libddp loads it when a program asks for a GPU.
if HAVE_CUDA
pkglib_LTLIBRARIES += libruntime/device/cuda/libddp_cuda.la
libruntime_device_cuda_libddp_cuda_la_SOURCES = libruntime/device/cuda/cuda.c
libruntime_device_cuda_libddp_cuda_la_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)
libruntime_device_cuda_libddp_cuda_la_LIBADD = $(CUDA_LIBS)
libruntime_device_cuda_libddp_cuda_la_LDFLAGS = $(AM_LDFLAGS) -module -avoid-version -shared \
	-export-symbols-regex '^ddp_device_module$$'
endif
EXTRA_DIST += libruntime/comm/README.md
