/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in messages are little-endian on every machine. */
#pragma once

#include <stdint.h>

void bytes_put32(unsigned char bytes[4], uint32_t number);
void bytes_put64(unsigned char bytes[8], uint64_t number);
uint32_t bytes_get32(const unsigned char bytes[4]);
uint64_t bytes_get64(const unsigned char bytes[8]);
