/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/identity/port.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Reads a port number; returns what stands behind it, NULL if there is none. */
static const char *read_one(const char *text, uint32_t *port)
{
	char *end;
	unsigned long number;

	if (*text < '0' || *text > '9')
		return NULL;
	errno = 0;
	number = strtoul(text, &end, 10);
	if (errno != 0 || number > 65535)
		return NULL;
	*port = (uint32_t)number;
	return end;
}

bool port_from_reservation(const char *text, uint16_t *port, struct error *error)
{
	uint32_t first;
	const char *end = read_one(text, &first);

	if (end == NULL || first == 0 || (*end != '\0' && *end != '-' && *end != ','))
		return error_set(error, "SLURM_STEP_RESV_PORTS='%.80s' is not a list of ports", text);
	*port = (uint16_t)first;
	return true;
}

/* Returns how many ports an item such as "12000-12003" or "12010" has; 0: the text is no item. Sets what stands behind
   the item. */
static uint32_t read_ports(const char *text, uint32_t *low, const char **behind)
{
	const char *end = read_one(text, low);
	uint32_t high = end != NULL ? *low : 0;

	if (end != NULL && *end == '-')
		end = read_one(end + 1, &high);
	*behind = end;
	return end != NULL && *low > 0 && high >= *low && (*end == '\0' || *end == ',') ? high - *low + 1 : 0;
}

uint16_t port_of_reservation(const char *text, uint32_t skipped)
{
	uint32_t total = 0, count, low = 0;

	for (int pass = 0; pass < 2; pass++) {
		const char *behind;
		for (const char *p = text; (count = read_ports(p, &low, &behind)) > 0; p = behind + 1) {
			if (pass == 1 && skipped < count)
				return (uint16_t)(low + skipped);
			if (pass == 0)
				total += count;
			else
				skipped -= count;
			if (*behind == '\0')
				break;
		}
		if (count == 0)
			return 0;
		if (pass == 0)
			skipped %= total;
	}
	return 0;
}

/* The finalizer of SplitMix64 (Steele et al., OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint16_t port_from_hash(uint32_t job_id, uint32_t step_id, uint32_t restart_count,
                        uint16_t low, uint16_t high)
{
	uint64_t span = (uint64_t)(high - low) + 1;
	uint64_t start = mix((uint64_t)job_id << 32 | restart_count) % span;

	return (uint16_t)(low + (start + step_id) % span);
}

static bool list_has(const char *list, uint16_t port)
{
	const char *p = list;

	while (*p != '\0') {
		uint32_t low, high;
		const char *end = read_one(p, &low);
		if (end == NULL)
			return false;
		high = low;
		if (*end == '-') {
			end = read_one(end + 1, &high);
			if (end == NULL)
				return false;
		}
		if (port >= low && port <= high)
			return true;
		p = end + strspn(end, ", \n");
	}
	return false;
}

bool port_is_ephemeral(uint16_t port, const char *local_range, const char *reserved)
{
	uint32_t low, high;
	const char *end = read_one(local_range, &low);

	if (end == NULL || read_one(end + strspn(end, " \t"), &high) == NULL)
		return false;
	return port >= low && port <= high && !list_has(reserved, port);
}

/* 0, or the errno of the attempt. Like a server, it overlooks TIME_WAIT. */
static int try_bind(int family, const struct sockaddr *address, socklen_t bytes)
{
	const int yes = 1;
	int reason = 0;
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    (family == AF_INET6 &&
	     setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) < 0) ||
	    bind(fd, address, bytes) < 0 || listen(fd, 1) < 0)
		reason = errno;
	close(fd);
	return reason;
}

bool port_probe(uint16_t port, struct error *error)
{
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port),
	                             .sin6_addr = in6addr_any };
	int reason = try_bind(AF_INET, (struct sockaddr *)&any4, sizeof(any4));

	if (reason == 0) {
		reason = try_bind(AF_INET6, (struct sockaddr *)&any6, sizeof(any6));
		if (reason == EAFNOSUPPORT || reason == EADDRNOTAVAIL)
			reason = 0;
	}
	if (reason != 0)
		return error_set(error, "%s", strerror(reason));
	return true;
}
