# examples: programs that use ddp.h and nothing else of the library.
noinst_PROGRAMS += examples/allreduce
examples_allreduce_SOURCES = examples/allreduce.c
examples_allreduce_LDADD = libruntime/libddp.la

gpt_model_sources = \
	examples/models/gpt.c examples/models/gpt.h \
	examples/models/gpt_inside.h \
	examples/models/gpt_pass.c

noinst_PROGRAMS += examples/gpt/gpt
examples_gpt_gpt_SOURCES = $(gpt_model_sources) \
	examples/gpt/generate.c examples/gpt/generate.h \
	examples/gpt/main.c \
	examples/gpt/options.c examples/gpt/options.h \
	examples/gpt/report.c examples/gpt/report.h
examples_gpt_gpt_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/examples
examples_gpt_gpt_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
examples_gpt_gpt_LDFLAGS = $(AM_LDFLAGS) -no-install
examples_gpt_gpt_LDADD = libruntime/libddp.la kernels/libkernels.la $(JANSSON_LIBS)

# Their sources go with the documentation, to start one's own program from.
nobase_dist_doc_DATA = examples/allreduce.c examples/pytorch/train.py \
	$(examples_gpt_gpt_SOURCES)
