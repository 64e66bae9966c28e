/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 with 64 bits (Aumasson and Bernstein, 2012): a keyed hash that
 * authenticates short messages, in place of a library's HMAC: the plugin links
 * libc only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SIPHASH_KEY_BYTES = 16, SIPHASH_BYTES = 8 };

/* The tag of `bytes` of `data`, little-endian as in the paper. */
void siphash(const unsigned char key[SIPHASH_KEY_BYTES], const void *data, size_t bytes,
             unsigned char tag[SIPHASH_BYTES]);
