/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The version of this build, such as "0.3.0+202611290907.g1a2b3c4d"; at most 31 bytes, as build-version says. */
const char *release_own(void);
