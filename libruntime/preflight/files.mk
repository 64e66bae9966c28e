# SPDX-License-Identifier: Apache-2.0
# libruntime/preflight: ddp-preflight, a program that uses libddp's public functions.
bin_PROGRAMS += libruntime/preflight/ddp-preflight
# Without main(), so that unit tests reach it.
noinst_LTLIBRARIES += libruntime/preflight/libpreflight.la
libruntime_preflight_libpreflight_la_SOURCES = \
	libruntime/preflight/facts.c libruntime/preflight/facts.h \
	libruntime/preflight/finding.c libruntime/preflight/finding.h \
	libruntime/preflight/judge_facts.c libruntime/preflight/judge_facts.h \
	libruntime/preflight/judge_links.c libruntime/preflight/judge_links.h \
	libruntime/preflight/judge_ranks.c libruntime/preflight/judge_ranks.h \
	libruntime/preflight/measure.c libruntime/preflight/measure.h \
	libruntime/preflight/report.c libruntime/preflight/report.h \
	libruntime/preflight/schedule.c libruntime/preflight/schedule.h \
	libruntime/preflight/statistics.c libruntime/preflight/statistics.h \
	libruntime/preflight/survey.c libruntime/preflight/survey.h
libruntime_preflight_libpreflight_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
libruntime_preflight_ddp_preflight_SOURCES = libruntime/preflight/main.c
libruntime_preflight_ddp_preflight_LDADD = libruntime/preflight/libpreflight.la libruntime/libddp.la kernels/libkernels.la \
	$(JANSSON_LIBS) $(MATH_LIBS)
