/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/base/release.h"

#include "build_version.h"

const char *release_own(void)
{
	return BUILD_VERSION;
}
