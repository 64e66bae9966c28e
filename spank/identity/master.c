/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/master.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "spank/identity/identity.h"

static bool is_local_only(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET) {
		uint32_t ip = ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
		return ip >> 24 == 127 || ip >> 16 == 0xa9fe || ip == 0;
	}
	const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
	return IN6_IS_ADDR_LOOPBACK(ip) || IN6_IS_ADDR_LINKLOCAL(ip) || IN6_IS_ADDR_UNSPECIFIED(ip);
}

static const struct addrinfo *choose(const struct addrinfo *list)
{
	static const int families[] = { AF_INET, AF_INET6 };

	for (int i = 0; i < 2; i++)
		for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
			if (a->ai_family == families[i] && !is_local_only(a->ai_addr))
				return a;
	return NULL;
}

bool address_resolve(const char *host, char text[ADDRESS_TEXT_MAX], struct error *error)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
	struct addrinfo *list = NULL;
	char shown[ADDRESS_TEXT_MAX];
	const struct addrinfo *best;
	int reason = getaddrinfo(host, NULL, &hints, &list);

	/* A text that is no number is looked up, by libraries that a task, forked from a process
	   with threads, should not call without need. */
	if (reason != 0) {
		hints.ai_flags = 0;
		reason = getaddrinfo(host, NULL, &hints, &list);
	}
	if (reason != 0)
		return error_set(error, "'%s' does not resolve (%s)", host, gai_strerror(reason));
	best = choose(list);
	reason = getnameinfo((best != NULL ? best : list)->ai_addr,
	                     (best != NULL ? best : list)->ai_addrlen, shown, sizeof(shown), NULL, 0,
	                     NI_NUMERICHOST);
	freeaddrinfo(list);
	if (reason != 0)
		return error_set(error, "the address of '%s' cannot be written down (%s)", host,
		                 gai_strerror(reason));
	if (best == NULL)
		return error_set(error, "'%s' resolves to %s only, which other nodes cannot reach", host,
		                 shown);
	memcpy(text, shown, sizeof(shown));
	return true;
}

bool master_find_address(const struct identity *identity, const struct settings *settings,
                         const struct node_address *known, char address[MASTER_ADDRESS_MAX],
                         struct error *error)
{
	char name[MASTER_ADDRESS_MAX], numeric[ADDRESS_TEXT_MAX];
	struct error reason;

	snprintf(name, sizeof(name), "%s%s", identity->master_node, settings->address_suffix);
	if (settings->address == ADDRESS_NODENAME) {
		snprintf(address, MASTER_ADDRESS_MAX, "%s", name);
		return true;
	}
	bool node_is_known = settings->address_suffix[0] == '\0' &&
	                     strcmp(known->node, identity->master_node) == 0;
	if (!(node_is_known && address_resolve(known->address, numeric, &reason)) &&
	    !address_resolve(name, numeric, &reason))
		return error_set(error, "addr=ip: on %s, %s; put it right in /etc/hosts or DNS, give the "
		                 "node a NodeAddr in slurm.conf, or use addr=nodename or addr-suffix=",
		                 identity->node_name, reason.text);
	snprintf(address, MASTER_ADDRESS_MAX, "%s", numeric);
	return true;
}

/* A line of /proc, as it can stand in a message. */
static void read_proc(const char *path, char *text, size_t bytes)
{
	FILE *file = fopen(path, "re");

	text[0] = '\0';
	if (file == NULL)
		return;
	if (fgets(text, (int)bytes, file) == NULL)
		text[0] = '\0';
	fclose(file);
	text[strcspn(text, "\n")] = '\0';
	for (char *p = text; *p != '\0'; p++)
		if (*p == '\t')
			*p = ' ';
}

bool master_check_port(const struct identity *identity, struct error *error)
{
	char range[64], reserved[4096];
	struct error reason;

	if (identity->rank != 0)
		return true;
	read_proc("/proc/sys/net/ipv4/ip_local_port_range", range, sizeof(range));
	read_proc("/proc/sys/net/ipv4/ip_local_reserved_ports", reserved, sizeof(reserved));
	if (identity->port_hashed && port_is_ephemeral(identity->master_port, range, reserved))
		return error_set(error, "port %u (%s) lies in the kernel's range for outgoing connections "
		                 "(%s) on %s, where it may be taken at any time: set MpiParams=ports= in "
		                 "slurm.conf, another port= range, or net.ipv4.ip_local_reserved_ports",
		                 identity->master_port, identity->port_source, range, identity->node_name);
	if (port_probe(identity->master_port, &reason))
		return true;
	return error_set(error, "port %u (%s) cannot be used on %s, rank 0's node: %s; %s with --ddp=port=",
	                 identity->master_port, identity->port_source, identity->node_name, reason.text,
	                 identity->port_hashed || identity->port_reserved ? MASTER_OTHER_PORT : "choose another");
}
