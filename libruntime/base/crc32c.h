/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c: the checksum of iSCSI and ext4 (Castagnoli polynomial), here
   against files that rotted or were cut and patched; not against forgery.
   Start with crc 0 and feed the result back for the next piece. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint32_t ddp_crc32c(uint32_t crc, const void *data, size_t bytes);
/* The same without the processor's instruction, for tests. */
uint32_t ddp_crc32c_portable(uint32_t crc, const void *data, size_t bytes);
