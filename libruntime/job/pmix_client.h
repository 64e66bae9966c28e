/* SPDX-License-Identifier: Apache-2.0 */
/* pmix_client: this process's one connection to the step's PMIx server. */
#pragma once

#include "job/job.h"

/* Whether a PMIx server has started this process, and this build can talk to it. */
bool ddp_pmix_present(void);

/* Connects, unless that was done before, and tells rank and sizes. PMIx knows
   one connection per process, so this is process-wide; call from the thread
   that calls ddp_init(). */
ddp_status ddp_pmix_attach(ddp_job *job);

/* The namespace of the step's processes, once attached. */
const char *ddp_pmix_namespace(void);

/* Says good-bye to the server, if connected. */
void ddp_pmix_detach(void);
