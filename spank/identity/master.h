/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks meet: rank 0's address and port. Runs in the task, as the user. */
#pragma once

#include <stdbool.h>

#include "spank/base/text.h"
#include "spank/identity/identity.h"
#include "spank/options/options.h"

/* The numeric address of a host, as other nodes reach it: addr=ip. Asks the
   system's resolver, so it runs as the user only, never as root. */
enum { ADDRESS_TEXT_MAX = 64 };

/* IPv4 before IPv6; loopback and link-local addresses do not count. */
bool address_resolve(const char *host, char text[ADDRESS_TEXT_MAX], struct error *error);

enum { MASTER_ADDRESS_MAX = HOST_NAME_MAX_BYTES + SUFFIX_MAX };

/* Slurm knows a node's NodeAddr, which is a name or an address. */
struct node_address {
	char node[HOST_NAME_MAX_BYTES];    /* "": nothing is known */
	char address[HOST_NAME_MAX_BYTES];
};

/* The node's name with the suffix or, with addr=ip, an address: NodeAddr, by which
   all nodes reach each other whatever their /etc/hosts and DNS say, or else what
   the name resolves to. */
bool master_find_address(const struct identity *identity, const struct settings *settings,
                         const struct node_address *known, char address[MASTER_ADDRESS_MAX],
                         struct error *error);

/* The sentence has this if another generation, or another step, would have another port. */
#define MASTER_OTHER_PORT "start again, or choose another"

/* Rank 0 tries the port before the program does, so that a port in use is
   named instead of waited for; other ranks do nothing. */
bool master_check_port(const struct identity *identity, struct error *error);
