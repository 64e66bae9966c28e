/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that all ranks have in the same words are told by one of them. */
#pragma once

#include <stdbool.h>
#include <unistd.h>

#include <ddp.h>

/* Whether another rank tells of the last error. Then this one gives it a moment: a rank that exits
   has its launcher end the others. */
static inline bool told_by_another(void)
{
	if (!ddp_last_error_is_told())
		return false;
	sleep(1);
	return true;
}
