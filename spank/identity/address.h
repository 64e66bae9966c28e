/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numeric address of a host, as other nodes reach it: addr=ip. Asks the
 * system's resolver, so it runs as the user only, never as root.
 */
#ifndef SPANK_ADDRESS_H
#define SPANK_ADDRESS_H

#include <stdbool.h>

#include "spank/base/error.h"

enum { ADDRESS_TEXT_MAX = 64 };

/* IPv4 before IPv6; loopback and link-local addresses do not count. */
bool address_resolve(const char *host, char text[ADDRESS_TEXT_MAX], struct error *error);

#endif
