# SPDX-License-Identifier: Apache-2.0
# examples: programs that use ddp.h and nothing else of the library.
noinst_PROGRAMS += examples/allreduce
examples_allreduce_SOURCES = examples/allreduce.c
examples_allreduce_LDADD = examples/libprogress.la libruntime/libddp.la

# What they share: options, what rank 0 shows of a training, and what a rank says that fails.
noinst_LTLIBRARIES += examples/libprogress.la
examples_libprogress_la_SOURCES = examples/option_table.c examples/option_table.h \
	examples/progress.c examples/progress.h examples/rank.c examples/rank.h

graph_sources = examples/models/graphs.c examples/models/graphs.h
gpt_model_sources = \
	examples/models/gpt.c examples/models/gpt.h examples/models/gpt_ddp.h \
	examples/models/gpt_inside.h \
	examples/models/gpt_pass.c $(graph_sources)

noinst_PROGRAMS += examples/gpt/gpt
examples_gpt_gpt_SOURCES = $(gpt_model_sources) \
	examples/gpt/main.c \
	examples/gpt/options.c examples/gpt/options.h \
	examples/gpt/report.c examples/gpt/report.h
examples_gpt_gpt_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_gpt_gpt_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
examples_gpt_gpt_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_gpt_gpt_LDADD = examples/libprogress.la libruntime/libddp.la kernels/libkernels.la $(JANSSON_LIBS)

noinst_PROGRAMS += examples/scaling
examples_scaling_SOURCES = examples/files.h examples/scaling.c $(gpt_model_sources)
examples_scaling_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_scaling_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_scaling_LDADD = examples/libprogress.la libruntime/libddp.la kernels/libkernels.la

noinst_PROGRAMS += examples/linear
examples_linear_SOURCES = examples/linear.c
examples_linear_LDADD = examples/libprogress.la libruntime/libddp.la $(MATH_LIBS)

noinst_PROGRAMS += examples/parallel/parallel
examples_parallel_parallel_SOURCES = examples/parallel/main.c examples/parallel/part.c examples/parallel/part.h
examples_parallel_parallel_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_parallel_parallel_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_parallel_parallel_LDADD = examples/libprogress.la libruntime/libddp.la kernels/libkernels.la

noinst_PROGRAMS += examples/broken
examples_broken_SOURCES = examples/broken.c
examples_broken_LDADD = examples/libprogress.la libruntime/libddp.la $(MATH_LIBS)

# What the examples that train on images share.
noinst_LTLIBRARIES += examples/vision/libvision.la
vision_sources = \
	examples/models/net.c examples/models/net.h \
	examples/models/net_inside.h \
	examples/models/net_pass.c \
	examples/models/resnet.c examples/models/resnet.h \
	examples/vision/options.c examples/vision/options.h \
	examples/vision/vision.c examples/vision/vision.h
examples_vision_libvision_la_SOURCES = $(vision_sources) $(graph_sources)
examples_vision_libvision_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples

vision_ldadd = examples/vision/libvision.la examples/libprogress.la libruntime/libddp.la kernels/libconvolution.la kernels/libkernels.la
vision_programs = examples/vision/mnist_mlp examples/vision/mnist_cnn examples/vision/cifar_net \
	examples/vision/resnet examples/vision/synthetic
noinst_PROGRAMS += $(vision_programs)
examples_vision_mnist_mlp_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_vision_mnist_mlp_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_vision_mnist_mlp_LDADD = $(vision_ldadd)
examples_vision_mnist_cnn_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_vision_mnist_cnn_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_vision_mnist_cnn_LDADD = $(vision_ldadd)
examples_vision_cifar_net_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_vision_cifar_net_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_vision_cifar_net_LDADD = $(vision_ldadd)
examples_vision_resnet_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_vision_resnet_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_vision_resnet_LDADD = $(vision_ldadd)
examples_vision_synthetic_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_vision_synthetic_LDADD = $(MATH_LIBS)

# Their sources go with the documentation, to start one's own program from.
nobase_dist_doc_DATA = examples/allreduce.c examples/pytorch/train.py \
	$(examples_libprogress_la_SOURCES) $(examples_gpt_gpt_SOURCES) examples/broken.c examples/linear.c \
	examples/scaling.c $(examples_parallel_parallel_SOURCES) $(vision_sources) \
	examples/vision/mnist_mlp.c examples/vision/mnist_cnn.c examples/vision/cifar_net.c \
	examples/vision/resnet.c examples/vision/synthetic.c examples/files.h examples/models/random.h examples/threads.h
