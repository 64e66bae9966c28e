/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/test_capture.h"

#include "base/error.h"

static _Thread_local struct {
	bool on;
	const char *refused;
} capture;

void ddp_test_capture_begin(void)
{
	capture.on = true;
	capture.refused = NULL;
}

const char *ddp_test_capture_end(void)
{
	capture.on = false;
	return capture.refused;
}

ddp_status ddp_test_refuse_in_capture(const char *what)
{
	if (what == NULL || !capture.on)
		return DDP_OK;
	if (capture.refused == NULL)
		capture.refused = what;
	return ddp_fail(DDP_ERR_STATE, "while the thread captures a graph, %s", what);
}
