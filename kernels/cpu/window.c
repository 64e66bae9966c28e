/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

int64_t dk_window_places(const dk_window *w, int64_t length)
{
	return (length + 2 * w->padding - w->size) / w->stride + 1;
}
