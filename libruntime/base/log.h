/* Messages for the callback that the program set with ddp_set_log(). */
#ifndef DDP_BASE_LOG_H
#define DDP_BASE_LOG_H

#include "ddp.h"

void ddp_log(ddp_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
