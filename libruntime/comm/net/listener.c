/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/listener.h"

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

bool ddp_place_of(const struct sockaddr *address, ddp_place *place)
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

bool ddp_socket_places(int fd, ddp_place *near, ddp_place *far)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof(address);
	struct sockaddr *name = (struct sockaddr *)&address;

	memset(far, 0, sizeof(*far));
	if (getsockname(fd, name, &length) != 0 || !ddp_place_of(name, near))
		return false;
	length = sizeof(address);
	if (getpeername(fd, name, &length) == 0)
		(void)ddp_place_of(name, far);
	return true;
}

/* Calls `visit` for each of the process's descriptors. For a child after
   fork(), too: it takes no lock and no memory. 0, or an errno. */
static int for_each_fd(void (*visit)(int fd, void *argument), void *argument)
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
		return errno;
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
	int error = filled < 0 ? errno : 0;
	close(folder);
	return error;
}

/* ---- listeners ----------------------------------------------------------------------- */

bool ddp_socket_listens(int fd, ddp_place *place)
{
	int listening = 0;
	socklen_t length = sizeof(listening);
	ddp_place far;

	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 && listening != 0 &&
	       ddp_socket_places(fd, place, &far);
}

static void add_place(int fd, void *argument)
{
	ddp_listening *all = argument;
	ddp_place place;

	if (!ddp_socket_listens(fd, &place))
		return;
	if (all->count == all->room) {
		const int room = 2 * all->room + 16;
		ddp_place *places = realloc(all->places, (size_t)room * sizeof(*places));
		if (places == NULL) {
			all->error = ENOMEM;
			return;
		}
		all->places = places;
		all->room = room;
	}
	all->places[all->count++] = place;
}

void ddp_listeners_list(ddp_listening *all)
{
	*all = (ddp_listening){ .count = 0 };
	int error = for_each_fd(add_place, all);
	if (error != 0)
		all->error = error;
}

static bool is_among(const ddp_place *place, const ddp_place *places, int count)
{
	for (int i = 0; i < count; i++) {
		if (same_place(place, &places[i]))
			return true;
	}
	return false;
}

typedef struct search {
	ddp_listeners *found;
	const ddp_listening *before;
	const void *address;
	size_t bytes;
	int error;
} search;

static void add_listener(int fd, void *argument)
{
	search *s = argument;
	ddp_listeners *found = s->found;
	ddp_place place;

	if (!ddp_socket_listens(fd, &place) || is_among(&place, s->before->places, s->before->count) ||
	    memmem(s->address, s->bytes, &place.port, sizeof(place.port)) == NULL)
		return;
	if (found->count == DDP_LISTENERS_MAX) {
		s->error = E2BIG;
		return;
	}
	found->fds[found->count] = fd;
	found->places[found->count++] = place;
}

int ddp_listeners_find(ddp_listeners *listeners, const ddp_listening *before, const void *address, size_t bytes)
{
	search s = { listeners, before, address, bytes, before->error };

	listeners->count = 0;
	if (s.error != 0)
		return s.error;
	int error = for_each_fd(add_listener, &s);
	return error != 0 ? error : s.error;
}

/* 0, or why the kernel did not take the filter of some listener. What it had before stays in place. */
static int set_filter(const ddp_listeners *listeners, struct sock_filter *code, size_t length)
{
	const struct sock_fprog program = { .len = (unsigned short)length, .filter = code };
	int error = 0;

	for (int i = 0; i < listeners->count; i++) {
		if (setsockopt(listeners->fds[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
			error = errno;
	}
	return error;
}

int ddp_listeners_shut(const ddp_listeners *listeners)
{
	struct sock_filter drop[] = { BPF_STMT(BPF_RET | BPF_K, 0) };

	return set_filter(listeners, drop, 1);
}

/* A socket that is bound to no address takes the place of each. */
int ddp_listeners_end(const ddp_listeners *listeners)
{
	int error = 0;

	for (int i = 0; i < listeners->count; i++) {
		const int unbound = socket(listeners->places[i].family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (unbound < 0 || dup3(unbound, listeners->fds[i], O_CLOEXEC) < 0)
			error = errno;
		if (unbound >= 0)
			close(unbound);
	}
	return error;
}

/* ---- rules: addresses whose first bits are these ---------------------------------------- */

/* The kernel turns a filter into instructions of its own, of 8 bytes. They are counted
   here as it does at worst: a socket may have 20 KiB for all its options up to Linux
   6.7, and what it had before is still there when a longer filter comes. */
enum {
	FILTER_MAX = 2048, /* 16 KiB */
	FILTER_MIN = 256, /* one rule of each family fits, whatever its bits */
	LOAD = 16,         /* one word of the packet, masked and stored */
	COMPARE = 2, RETURN = 2,
	HEAD = 40,
	CHAIN = 200        /* comparisons that jump to one place: at most 255 away */
};

/* One family's rules, and at their end: no. */
typedef struct rules {
	ddp_place *places;
	size_t count;
	unsigned int bits; /* of each address */
} rules;

static int compare_places(const void *left, const void *right)
{
	const ddp_place *a = left, *b = right;

	if (a->family != b->family)
		return a->family < b->family ? -1 : 1;
	return memcmp(a->address, b->address, sizeof(a->address));
}

/* Keeps the first bits of each address and drops those that are then the same. They are in order. */
static void shorten(rules *r, unsigned int bits)
{
	size_t kept = 0;

	for (size_t i = 0; i < r->count; i++) {
		ddp_place place = r->places[i];
		place.port = 0;
		for (unsigned int byte = 0; byte < sizeof(place.address); byte++) {
			const unsigned int left = bits > 8 * byte ? bits - 8 * byte : 0;
			place.address[byte] &= (unsigned char)(left >= 8 ? 0xff : 0xff00 >> left);
		}
		if (kept == 0 || !same_place(&place, &r->places[kept - 1]))
			r->places[kept++] = place;
	}
	r->count = kept;
	r->bits = bits;
}

/* The 32-bit words that so many bits take. */
static unsigned int words_of(unsigned int bits)
{
	return (bits + 31) / 32;
}

static uint32_t word_of(const ddp_place *place, unsigned int i)
{
	uint32_t word;

	memcpy(&word, place->address + 4 * i, sizeof(word));
	return ntohl(word);
}

/* These return how many of the kernel's instructions the rules take. */
static size_t cost_of_4(const rules *r)
{
	return LOAD + r->count * COMPARE + (r->count / CHAIN + 1) * (RETURN + 1) + RETURN;
}

static size_t cost_of_6(const rules *r)
{
	const size_t words = words_of(r->bits);

	return words * LOAD + r->count * (words * (1 + COMPARE) + RETURN) + RETURN;
}

/* Fewer and wider rules, where there are too many: neighbours in a network have
   the first bits of their addresses in common. */
static void make_fit(rules *of4, rules *of6, size_t most)
{
	while (HEAD + cost_of_4(of4) + cost_of_6(of6) > most) {
		rules *longer = cost_of_4(of4) > cost_of_6(of6) ? of4 : of6;
		shorten(longer, longer->bits - 1);
	}
}

/* Loads the i-th word of the sender's address, as far as it counts. */
static struct sock_filter *load_word(struct sock_filter *code, uint32_t sender, unsigned int i, unsigned int bits)
{
	*code++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)SKF_NET_OFF + sender + 4 * i);
	if (bits < 32 * (i + 1))
		*code++ = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K,
		                                       UINT32_MAX << (32 * (i + 1) - bits));
	return code;
}

static struct sock_filter *write_4(struct sock_filter *code, const rules *r)
{
	code = load_word(code, 12, 0, r->bits);
	for (size_t begin = 0; begin < r->count; begin += CHAIN) {
		const size_t end = r->count - begin < CHAIN ? r->count : begin + CHAIN;
		for (size_t i = begin; i < end; i++)
			*code++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(&r->places[i], 0),
			                                       (unsigned char)(end - i), 0);
		*code++ = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 1);
		*code++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	}
	*code++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	return code;
}

static struct sock_filter *write_6(struct sock_filter *code, const rules *r)
{
	const unsigned int words = words_of(r->bits);

	for (unsigned int w = 0; w < words; w++) {
		code = load_word(code, 8, w, r->bits);
		*code++ = (struct sock_filter)BPF_STMT(BPF_ST, w);
	}
	for (size_t i = 0; i < r->count; i++) {
		for (unsigned int w = 0; w < words; w++) {
			*code++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_MEM, w);
			*code++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(&r->places[i], w), 0,
			                                       (unsigned char)(2 * (words - w) - 1));
		}
		*code++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, UINT32_MAX);
	}
	*code++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
	return code;
}

/* Makes the filter of the rules of4 and of6; `code` has room for FILTER_MAX. */
static int set_rules(const ddp_listeners *listeners, const rules *of4, const rules *of6, struct sock_filter *code)
{
	struct sock_filter *at = code, *branch;

	/* The version of the internet protocol is in the packet's first half byte. */
	*at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF);
	*at++ = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4);
	*at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 6, 0, 1);
	branch = at++;
	at = write_4(at, of4);
	*branch = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, (uint32_t)(at - branch - 1));
	at = write_6(at, of6);
	return set_filter(listeners, code, (size_t)(at - code));
}

int ddp_listeners_admit(const ddp_listeners *listeners, const ddp_place *hosts, int count, int bits[2])
{
	const size_t size = (size_t)count;
	ddp_place *places = malloc((size + 1) * sizeof(*places));
	struct sock_filter *code = malloc(FILTER_MAX * sizeof(*code));
	rules of4 = { .places = places }, of6;
	int error = ENOMEM;

	if (places != NULL && code != NULL) {
		if (size > 0)
			memcpy(places, hosts, size * sizeof(*places));
		qsort(places, size, sizeof(*places), compare_places);
		while (of4.count < size && places[of4.count].family == AF_INET)
			of4.count++;
		of6 = (rules){ .places = places + of4.count, .count = size - of4.count };
		shorten(&of4, 32);
		shorten(&of6, 128);
		/* A site may give sockets less memory than the kernel does by itself. */
		for (size_t most = FILTER_MAX; error == ENOMEM && most >= FILTER_MIN; most /= 2) {
			make_fit(&of4, &of6, most);
			error = set_rules(listeners, &of4, &of6, code);
		}
		bits[0] = (int)of4.bits;
		bits[1] = (int)of6.bits;
	}
	free(places);
	free(code);
	return error;
}

int ddp_host_places(ddp_place *places)
{
	struct ifaddrs *interfaces;
	int count = 0;

	if (getifaddrs(&interfaces) != 0)
		return 0;
	for (const struct ifaddrs *i = interfaces; i != NULL && count < DDP_HOST_PLACES_MAX; i = i->ifa_next) {
		ddp_place place;
		if (i->ifa_addr == NULL || !ddp_place_of(i->ifa_addr, &place))
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

	(void)for_each_fd(find_connecting, &found);
	return found;
}

static bool is_own(int fd, const ddp_own_sockets *own_sockets)
{
	ddp_place near, far;

	return ddp_socket_places(fd, &near, &far) &&
	       (is_among(&near, own_sockets->listeners->places, own_sockets->listeners->count) ||
	        is_among(&far, own_sockets->peers, own_sockets->peer_count));
}

static void close_on_exec(int fd, void *own_sockets)
{
	if (is_own(fd, own_sockets))
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void ddp_sockets_close_on_exec(const ddp_listeners *listeners, const ddp_place *peers, int count)
{
	ddp_own_sockets own_sockets = { NULL, listeners, peers, count };

	(void)for_each_fd(close_on_exec, &own_sockets);
}

/* ---- children ------------------------------------------------------------------------- */

static pthread_mutex_t announced_lock = PTHREAD_MUTEX_INITIALIZER;
static ddp_own_sockets *announced;

static void close_in_child(int fd, void *argument)
{
	const ddp_own_sockets *k = announced;

	(void)argument;
	while (k != NULL && !is_own(fd, k))
		k = k->next;
	if (k != NULL)
		close(fd);
}

static void before_fork(void)
{
	pthread_mutex_lock(&announced_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&announced_lock);
}

static void in_child(void)
{
	if (announced != NULL)
		(void)for_each_fd(close_in_child, NULL);
	pthread_mutex_unlock(&announced_lock);
}

static void watch_forks(void)
{
	(void)pthread_atfork(before_fork, after_fork, in_child);
}

void ddp_fork_announce(ddp_own_sockets *own_sockets)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&announced_lock);
	own_sockets->next = announced;
	announced = own_sockets;
	pthread_mutex_unlock(&announced_lock);
}

void ddp_fork_withdraw(ddp_own_sockets *own_sockets)
{
	pthread_mutex_lock(&announced_lock);
	for (ddp_own_sockets **link = &announced; *link != NULL; link = &(*link)->next) {
		if (*link == own_sockets) {
			*link = own_sockets->next;
			break;
		}
	}
	pthread_mutex_unlock(&announced_lock);
}
