/* SPDX-License-Identifier: Apache-2.0 */
/* Hexadecimal digits to bytes, for keys that travel as text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline int ddp_hex_value(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	if (digit >= 'a' && digit <= 'f')
		return digit - 'a' + 10;
	if (digit >= 'A' && digit <= 'F')
		return digit - 'A' + 10;
	return -1;
}

/* The text is 2 * count digits and nothing else, or false. */
static inline bool ddp_parse_hex(const char *text, unsigned char *bytes, size_t count)
{
	if (strlen(text) != 2 * count)
		return false;
	for (size_t i = 0; i < count; i++) {
		int high = ddp_hex_value(text[2 * i]), low = ddp_hex_value(text[2 * i + 1]);
		if (high < 0 || low < 0)
			return false;
		bytes[i] = (unsigned char)(high << 4 | low);
	}
	return true;
}
