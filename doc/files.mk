# doc: guides and man pages.
picturesdir = $(docdir)/pictures
dist_pictures_DATA = doc/pictures/job.svg doc/pictures/step.svg doc/pictures/all_reduce.svg
dist_doc_DATA += doc/architecture.md doc/admin-guide.md doc/user-guide.md doc/verified.md doc/reported.md
dist_man_MANS += doc/ddp.7 doc/libddp.3 doc/spank_ddp.8 doc/srun-ddp.1 doc/ddp-status.1 doc/ddp-report.1
