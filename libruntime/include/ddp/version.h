/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ddp/version.h: the release that a program is compiled with. ddp_version() says which one it runs with.
 */
#ifndef DDP_VERSION_H
#define DDP_VERSION_H

/* configure.ac takes the release's version from these lines. */
#define DDP_VERSION_MAJOR 0
#define DDP_VERSION_MINOR 3
#define DDP_VERSION_PATCH 0

/* The version as a number that grows from release to release: 0.3.0 is 300, and 1.12.3 is 11203. */
#define DDP_VERSION (DDP_VERSION_MAJOR * 10000 + DDP_VERSION_MINOR * 100 + DDP_VERSION_PATCH)

#endif
