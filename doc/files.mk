# SPDX-License-Identifier: Apache-2.0
# doc: guides, man pages, and the reference of libddp.
picturesdir = $(docdir)/pictures
dist_pictures_DATA = doc/pictures/job.svg doc/pictures/step.svg doc/pictures/all_reduce.svg doc/pictures/restart.svg doc/pictures/survive.svg
dist_doc_DATA += doc/architecture.md doc/admin-guide.md doc/rollout.md doc/user-guide.md doc/benchmarks.md doc/benchmarks.svg doc/benchmarks-short.svg doc/python.md doc/jax.md doc/verified.md doc/versions.md doc/reported.md
dist_man_MANS += doc/srun-ddp.7 doc/libddp.3 doc/spank_ddp.8 doc/ddp-status.1 doc/ddp-report.1 doc/ddp-preflight.1 doc/ddp-failures.1

# What doc/benchmarks.md and its plots are made of, by tests/bench/all.
EXTRA_DIST += doc/benchmarks.json

# Made of the comments of the public headers.
EXTRA_DIST += doc/api-reference
if HAVE_PYTHON
doc_DATA = doc/api.html
endif
CLEANFILES += doc/api.html doc/api.html.new
api-reference: doc/api.html
doc/api.html: $(top_srcdir)/doc/api-reference $(public_headers)
	@$(MKDIR_P) doc
	$(AM_V_GEN)(cd $(top_srcdir) && $(PYTHON) doc/api-reference $(public_headers)) >$@.new && mv $@.new $@
.PHONY: api-reference
