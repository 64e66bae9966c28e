/*
 * The page in which a rank says what it is doing. The SPANK plugin makes one
 * per task (a memfd that the task inherits; DDP_PROGRESS_FD names it) and
 * reads it after the task's death for the failure report. The reader runs as
 * root and trusts nothing here: it copies the page once, checks the magic and
 * bounds every field. Without the plugin the page is private memory.
 */
#ifndef DDP_WATCH_PROGRESS_H
#define DDP_WATCH_PROGRESS_H

#include <stdint.h>

#define DDP_PROGRESS_MAGIC 0x31706464u /* "ddp1", little-endian */
#define DDP_PROGRESS_BYTES 4096

struct ddp_progress {
	uint32_t magic;
	uint32_t phase;            /* enum ddp_phase */
	int64_t step;              /* the step under way, from 1 */
	uint64_t updated_ns;       /* CLOCK_MONOTONIC, when the phase began */
	int32_t bucket;            /* last bucket issued in this step, -1: none */
	int32_t buckets;           /* buckets per step */
	uint64_t collective;       /* sequence number of the last collective */
	char collective_text[64];  /* such as "all_reduce f32[262144] sum"; terminated */
	char error[256];           /* the library's last error, "" if none; terminated */
	uint32_t status;           /* ddp_status of that error */
};

#endif
