#include "comm/net_door.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

/* ---- sockets ------------------------------------------------------------------- */

static bool to_place(const struct sockaddr *address, ddp_place *place)
{
	memset(place, 0, sizeof(*place));
	place->family = address->sa_family;
	if (address->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
		place->port = in->sin_port;
		memcpy(place->address, &in->sin_addr, sizeof(in->sin_addr));
		return true;
	}
	if (address->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)address;
		place->port = in->sin6_port;
		memcpy(place->address, &in->sin6_addr, sizeof(in->sin6_addr));
		return true;
	}
	return false;
}

static bool same_place(const ddp_place *a, const ddp_place *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

/* The two ends of a TCP socket; the far one's family is 0 if there is none. */
static bool socket_places(int fd, ddp_place *near, ddp_place *far)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	struct sockaddr *name = (struct sockaddr *)&address;

	memset(far, 0, sizeof(*far));
	if (getsockname(fd, name, &length) != 0 || !to_place(name, near))
		return false;
	length = sizeof(address);
	if (getpeername(fd, name, &length) == 0)
		(void)to_place(name, far);
	return true;
}

/* Calls `visit` for each of the process's descriptors. For a child after
   fork(), too: it takes no lock and no memory. */
static void for_each_fd(void (*visit)(int fd, void *argument), void *argument)
{
	struct entry { /* of getdents64 */
		uint64_t inode;
		int64_t offset;
		uint16_t bytes;
		uint8_t type;
		char name[];
	};
	_Alignas(8) char entries[4096];
	int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long filled;

	if (folder < 0)
		return;
	while ((filled = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0) {
		for (long at = 0; at < filled;) {
			const struct entry *e = (const struct entry *)(const void *)(entries + at);
			int fd = 0;
			at += e->bytes;
			if (e->name[0] == '.')
				continue;
			for (const char *digit = e->name; *digit != '\0'; digit++)
				fd = 10 * fd + (*digit - '0');
			if (fd != folder)
				visit(fd, argument);
		}
	}
	close(folder);
}

/* ---- doors ----------------------------------------------------------------------- */

static void add_door(int fd, void *argument)
{
	ddp_doors *doors = argument;
	int listening = 0;
	socklen_t length = sizeof(listening);
	ddp_place near, far;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0 ||
	    doors->count == DDP_DOORS_MAX || !socket_places(fd, &near, &far))
		return;
	doors->fds[doors->count] = fd;
	doors->places[doors->count++] = near;
}

void ddp_doors_list(ddp_doors *doors)
{
	doors->count = 0;
	for_each_fd(add_door, doors);
}

static bool is_among(const ddp_place *place, const ddp_place *places, int count)
{
	for (int i = 0; i < count; i++) {
		if (same_place(place, &places[i]))
			return true;
	}
	return false;
}

void ddp_doors_narrow(ddp_doors *doors, const ddp_doors *before, const void *address, size_t bytes)
{
	int kept = 0;

	for (int i = 0; i < doors->count; i++) {
		if (is_among(&doors->places[i], before->places, before->count) ||
		    memmem(address, bytes, &doors->places[i].port, sizeof(doors->places[i].port)) == NULL)
			continue;
		doors->fds[kept] = doors->fds[i];
		doors->places[kept++] = doors->places[i];
	}
	doors->count = kept;
}

/* 0, or why the kernel did not take the filter of some door. What it had before
   stays in place. */
static int set_filter(const ddp_doors *doors, struct sock_filter *code, size_t length)
{
	const struct sock_fprog program = { .len = (unsigned short)length, .filter = code };
	int error = 0;

	for (int i = 0; i < doors->count; i++) {
		if (setsockopt(doors->fds[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
			error = errno;
	}
	return error;
}

int ddp_doors_shut(const ddp_doors *doors)
{
	struct sock_filter drop[] = { BPF_STMT(BPF_RET | BPF_K, 0) };

	return set_filter(doors, drop, 1);
}

/* ---- rules: addresses whose first bits are these ---------------------------------------- */

static int compare_places(const void *left, const void *right)
{
	const ddp_place *a = left, *b = right;

	if (a->family != b->family)
		return a->family < b->family ? -1 : 1;
	return memcmp(a->address, b->address, sizeof(a->address));
}

/* Keeps the first bits of each address and drops those that are then the same;
   returns how many are left. They are of one family, and in order. */
static size_t shorten(ddp_place *places, size_t count, unsigned int bits)
{
	size_t kept = 0;

	for (size_t i = 0; i < count; i++) {
		ddp_place place = places[i];
		place.port = 0;
		for (unsigned int byte = 0; byte < sizeof(place.address); byte++) {
			const unsigned int left = bits > 8 * byte ? bits - 8 * byte : 0;
			place.address[byte] &= (unsigned char)(left >= 8 ? 0xff : 0xff00 >> left);
		}
		if (kept == 0 || !same_place(&place, &places[kept - 1]))
			places[kept++] = place;
	}
	return kept;
}

/* The 32-bit words that so many bits take. */
static size_t words_of(unsigned int bits)
{
	return (bits + 31) / 32;
}

/* Loads, masks where a word is not whole, and compares; accepts at the end. */
static size_t rule_length(unsigned int bits)
{
	return 2 * words_of(bits) + (bits % 32 != 0) + 1;
}

/* Accepts a packet whose source begins so, else goes on behind. */
static size_t write_rule(const ddp_place *place, unsigned int bits, struct sock_filter *code)
{
	const uint32_t source = (uint32_t)SKF_NET_OFF + (place->family == AF_INET ? 12 : 8);
	const size_t end = rule_length(bits);
	size_t length = 0;
	uint32_t word;

	for (unsigned int i = 0; i < words_of(bits); i++) {
		memcpy(&word, place->address + 4 * i, sizeof(word));
		code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source + 4 * i);
		if (bits < 32 * (i + 1))
			code[length++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K,
			                                              UINT32_MAX << (32 * (i + 1) - bits));
		code[length] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word), 0,
		                                            (unsigned char)(end - length - 1));
		length++;
	}
	code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	return length;
}

/* One family's rules, and at their end: no. */
typedef struct rules {
	ddp_place *places;
	size_t count;
	unsigned int bits; /* of each address */
} rules;

static size_t rules_length(const rules *r)
{
	return r->count * rule_length(r->bits) + 1;
}

static size_t write_rules(const rules *r, struct sock_filter *code)
{
	size_t length = 0;

	for (size_t i = 0; i < r->count; i++)
		length += write_rule(&r->places[i], r->bits, code + length);
	code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	return length;
}

/* Fewer and wider rules, where there are too many: neighbours in a network have
   the first bits of their addresses in common. */
static void make_fit(rules *of4, rules *of6, size_t most)
{
	while (rules_length(of4) + rules_length(of6) > most) {
		rules *longer = rules_length(of4) > rules_length(of6) ? of4 : of6;
		longer->count = shorten(longer->places, longer->count, --longer->bits);
	}
}

enum { HEAD = 4, INSTRUCTIONS_MAX = 1024 }; /* the kernel's memory for a socket may be 20 KiB */

int ddp_doors_admit(const ddp_doors *doors, const ddp_place *hosts, int count, int bits[2])
{
	const size_t size = (size_t)count;
	ddp_place *places = malloc((size + 1) * sizeof(*places));
	struct sock_filter code[INSTRUCTIONS_MAX];
	rules of4 = { .places = places, .bits = 32 }, of6 = { .bits = 128 };
	size_t length = 0;

	if (places == NULL)
		return ENOMEM;
	if (size > 0)
		memcpy(places, hosts, size * sizeof(*places));
	qsort(places, size, sizeof(*places), compare_places);
	while (of4.count < size && places[of4.count].family == AF_INET)
		of4.count++;
	of6.places = places + of4.count;
	of6.count = size - of4.count;
	of4.count = shorten(of4.places, of4.count, of4.bits);
	of6.count = shorten(of6.places, of6.count, of6.bits);
	make_fit(&of4, &of6, INSTRUCTIONS_MAX - HEAD);
	/* The version of the internet protocol is in the packet's first half byte. */
	code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF);
	code[length++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4);
	code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 6, 0, 1);
	code[length++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, (uint32_t)rules_length(&of4));
	length += write_rules(&of4, code + length);
	length += write_rules(&of6, code + length);
	free(places);
	bits[0] = (int)of4.bits;
	bits[1] = (int)of6.bits;
	return set_filter(doors, code, length);
}

int ddp_host_places(ddp_place *places)
{
	struct ifaddrs *interfaces;
	int count = 0;

	if (getifaddrs(&interfaces) != 0)
		return 0;
	for (const struct ifaddrs *i = interfaces; i != NULL && count < DDP_HOST_PLACES_MAX; i = i->ifa_next) {
		ddp_place place;
		if (i->ifa_addr == NULL || !to_place(i->ifa_addr, &place))
			continue;
		place.port = 0;
		if (!is_among(&place, places, count))
			places[count++] = place;
	}
	freeifaddrs(interfaces);
	return count;
}

/* ---- connections -------------------------------------------------------------------- */

static void find_connecting(int fd, void *found)
{
	struct tcp_info info = { .tcpi_state = 0 };
	socklen_t length = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_SYN_SENT)
		*(bool *)found = true;
}

bool ddp_sockets_connecting(void)
{
	bool found = false;

	for_each_fd(find_connecting, &found);
	return found;
}

static bool is_kin(int fd, const ddp_kinship *kinship)
{
	ddp_place near, far;

	return socket_places(fd, &near, &far) &&
	       (is_among(&near, kinship->doors->places, kinship->doors->count) ||
	        is_among(&far, kinship->peers, kinship->peer_count));
}

static void close_on_exec(int fd, void *kinship)
{
	if (is_kin(fd, kinship))
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void ddp_sockets_close_on_exec(const ddp_doors *doors, const ddp_place *peers, int count)
{
	ddp_kinship kinship = { NULL, doors, peers, count };

	for_each_fd(close_on_exec, &kinship);
}

/* ---- children ------------------------------------------------------------------------- */

static pthread_mutex_t kin_lock = PTHREAD_MUTEX_INITIALIZER;
static ddp_kinship *kin;

static void close_in_child(int fd, void *argument)
{
	const ddp_kinship *k = kin;

	(void)argument;
	while (k != NULL && !is_kin(fd, k))
		k = k->next;
	if (k != NULL)
		close(fd);
}

static void before_fork(void)
{
	pthread_mutex_lock(&kin_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&kin_lock);
}

static void in_child(void)
{
	if (kin != NULL)
		for_each_fd(close_in_child, NULL);
	pthread_mutex_unlock(&kin_lock);
}

static void watch_forks(void)
{
	(void)pthread_atfork(before_fork, after_fork, in_child);
}

void ddp_fork_announce(ddp_kinship *kinship)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&kin_lock);
	kinship->next = kin;
	kin = kinship;
	pthread_mutex_unlock(&kin_lock);
}

void ddp_fork_withdraw(ddp_kinship *kinship)
{
	pthread_mutex_lock(&kin_lock);
	for (ddp_kinship **link = &kin; *link != NULL; link = &(*link)->next) {
		if (*link == kinship) {
			*link = kinship->next;
			break;
		}
	}
	pthread_mutex_unlock(&kin_lock);
}
