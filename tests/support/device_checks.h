/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of devices say of a call. */
#pragma once

#include <string.h>

#include "ddp.h"
#include "tests/support/test.h"

#define OK(call) \
	do { \
		ddp_status ok_status = (call); \
		if (ok_status != DDP_OK) \
			fail_msg("%s: %s: %s", #call, ddp_status_name(ok_status), ddp_last_error()); \
	} while (0)

/* It ends with this status, and `text` is in the sentence about it. */
#define FAILS(call, status, text) \
	do { \
		assert_int_equal(call, status); \
		if (strstr(ddp_last_error(), text) == NULL) \
			fail_msg("%s: no '%s' in: %s", #call, text, ddp_last_error()); \
	} while (0)
