/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

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
