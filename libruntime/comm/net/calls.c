/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/calls.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <ucs/type/status.h>

#include "base/clock.h"
#include "base/log.h"

/* The kinds of relocations by which a library finds a function of another; glibc finds its tables. */
#ifdef __GLIBC__
#include <elf.h>
#if defined(__x86_64__) && defined(__LP64__)
enum { SLOT = R_X86_64_JUMP_SLOT, ADDRESS = R_X86_64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__aarch64__) && defined(__LP64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, ADDRESS = R_AARCH64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__powerpc64__) && defined(_CALL_ELF) && _CALL_ELF == 2
enum { SLOT = R_PPC64_JMP_SLOT, ADDRESS = R_PPC64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__riscv) && __riscv_xlen == 64
enum { SLOT = R_RISCV_JUMP_SLOT, ADDRESS = R_RISCV_64 };
#define KNOWN_MACHINE
#endif
#endif

#ifdef KNOWN_MACHINE

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct library {
	const struct link_map *map;
	const ElfW(Rela) *of_calls, *of_data; /* relocations */
	size_t call_count, data_count;
	const ElfW(Sym) *symbols;
	const char *names;
} library;

/* Some machines' dynamic linkers relocate the addresses in the dynamic section, some do not. */
static const void *address_of(const struct link_map *map, const ElfW(Dyn) *entry)
{
	const uintptr_t address = entry->d_un.d_ptr;

	return (const void *)(address < map->l_addr ? address + map->l_addr : address);
}

static bool read_library(const struct link_map *map, library *l)
{
	bool has_addends = true;

	*l = (library){ .map = map };
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL: l->of_calls = address_of(map, d); break;
		case DT_PLTRELSZ: l->call_count = d->d_un.d_val / sizeof(*l->of_calls); break;
		case DT_PLTREL: has_addends = d->d_un.d_val == DT_RELA; break;
		case DT_RELA: l->of_data = address_of(map, d); break;
		case DT_RELASZ: l->data_count = d->d_un.d_val / sizeof(*l->of_data); break;
		case DT_SYMTAB: l->symbols = address_of(map, d); break;
		case DT_STRTAB: l->names = address_of(map, d); break;
		default: break;
		}
	}
	l->call_count = l->of_calls != NULL ? l->call_count : 0;
	l->data_count = l->of_data != NULL ? l->data_count : 0;
	return has_addends && l->symbols != NULL && l->names != NULL;
}

/* The next place where the library keeps the address of that function, from relocation *at on; NULL: there is none. */
static void **next_place(const library *l, const char *name, size_t *at)
{
	while (*at < l->call_count + l->data_count) {
		const size_t i = (*at)++;
		const ElfW(Rela) *r = i < l->call_count ? &l->of_calls[i] : &l->of_data[i - l->call_count];
		const unsigned long kind = ELF64_R_TYPE(r->r_info);
		if ((kind == SLOT || kind == ADDRESS) && strcmp(l->names + l->symbols[ELF64_R_SYM(r->r_info)].st_name, name) == 0)
			return (void **)(l->map->l_addr + r->r_offset);
	}
	return NULL;
}

/* Another part of the process may have replaced the call before, and is then called by ours. A call
   that was never made leads to the dynamic linker, by way of the library itself. */
static void keep_theirs(const library *l, void **place, const ddp_call *call)
{
	void *now = __atomic_load_n(place, __ATOMIC_ACQUIRE);
	Dl_info owner;

	if (now != NULL && now != call->ours && dladdr(now, &owner) != 0 && owner.dli_fbase != (void *)l->map->l_addr)
		*call->theirs = now;
}

typedef struct placing {
	const library *library;
	void **place;
	void *ours;
	bool done;
} placing;

/* The dynamic linker may have made the place read-only. It lets one thread at a time be here, so that
   another part of the process does not do the same meanwhile. */
static int put(struct dl_phdr_info *info, size_t bytes, void *argument)
{
	placing *p = argument;
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p->place, begin = at & ~(page - 1);
	bool locked = false;

	(void)bytes;
	if (info->dlpi_addr != p->library->map->l_addr)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		const uintptr_t from = info->dlpi_addr + part->p_vaddr;
		locked = locked || (part->p_type == PT_GNU_RELRO && at >= (from & ~(page - 1)) && at < from + part->p_memsz);
	}
	if (locked && mprotect((void *)begin, page, PROT_READ | PROT_WRITE) != 0)
		return 1;
	__atomic_store_n(p->place, p->ours, __ATOMIC_RELEASE);
	if (locked)
		(void)mprotect((void *)begin, page, PROT_READ);
	p->done = true;
	return 1;
}

static bool put_ours(const library *l, void **place, void *ours)
{
	placing p = { .library = l, .place = place, .ours = ours };

	(void)dl_iterate_phdr(put, &p);
	return p.done;
}

const char *ddp_calls_replace(void *libraries, const char *symbol, const ddp_call *calls, int count)
{
	void *inside = dlsym(libraries, symbol), **place;
	struct link_map *map = NULL;
	Dl_info info;
	library l;

	if (inside == NULL || dladdr1(inside, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
		return "its transports' library is not found";
	if (!read_library(map, &l))
		return "its transports' library has its relocations in a form that libddp does not read";
	for (int i = 0; i < count; i++) {
		void *theirs = dlsym(libraries, calls[i].name);
		size_t at = 0;
		place = next_place(&l, calls[i].name, &at);
		if (theirs == NULL || place == NULL)
			return "it uses other functions for its sockets";
		if (calls[i].theirs == NULL)
			continue;
		*calls[i].theirs = theirs;
		for (; place != NULL; place = next_place(&l, calls[i].name, &at))
			keep_theirs(&l, place, &calls[i]);
	}
	for (int i = 0; i < count; i++) {
		for (size_t at = 0; (place = next_place(&l, calls[i].name, &at)) != NULL;) {
			if (!put_ours(&l, place, calls[i].ours))
				return "the addresses of its calls cannot be written";
		}
	}
	return NULL;
}

#else

const char *ddp_calls_replace(void *libraries, const char *symbol, const ddp_call *calls, int count)
{
	(void)libraries;
	(void)symbol;
	(void)calls;
	(void)count;
	return "calls of libraries cannot be replaced on this kind of machine";
}

#endif

/* ---- writing into sockets ------------------------------------------------------------ */

/* How UCX writes data from where they lie into a TCP socket, and what it says while it makes a connection, in the
   place of UCX's own functions.

   UCX up to 1.22 completes such a send twice if the write fails (uct_tcp_ep_sendv() does what uct_tcp_ep_purge() has
   done), and the process aborts where UCX was built with assertions, as in Debian and Ubuntu: in about one of ten
   deaths of a peer with which large messages were on their way in both directions. Here a socket whose peer has gone
   takes nothing, as a full one; UCX then finds the same error where it reads the socket, and ends the connection
   once.

   UCX up to 1.22 also asserts (tcp_ep.c, uct_tcp_ep_destroy_progress()) if it takes the socket of a peer for an
   endpoint of its own, and the peer has died just then: the write fails, UCX has the endpoint destroyed, and goes on
   making it. Here such a socket swallows what is written.

   UCX waits in a loop until a socket has taken the words by which it begins and ends connections. If a stopped peer
   reads nothing, its socket stays full, and UCX would take a whole core for ever, with the lock of all its
   connections, at the end of a connection mostly. Here a socket that takes nothing for STUCK_MS is shut down. The
   peer, if it goes on, reads that the connection has ended. Sockets of several stopped peers are waited for one
   after the other, so for one that has been stuck since before that, most of the time counts that the thread has
   waited for the others. */

enum {
	STUCK_MS = 2000,
	LEAST_MS = 250, /* of them for each socket: its peer may just have waited for a stopped one itself */
	TURN_MS = 100, /* of waiting: who was stopped did not wait meanwhile */
	TURNS = 32,    /* are remembered */
	APART_MS = 5000 /* waits that are farther apart have nothing to do with each other */
};

#define MS_NS UINT64_C(1000000)

static bool peer_has_gone(int error)
{
	return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ENOTCONN ||
		error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN;
}

static ucs_status_t send_some(int fd, struct iovec *iov, size_t iov_cnt, size_t *length_p)
{
	const struct msghdr message = { .msg_iov = iov, .msg_iovlen = iov_cnt };
	const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);

	*length_p = sent > 0 ? (size_t)sent : 0;
	if (sent >= 0)
		return UCS_OK;
	if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK || peer_has_gone(errno))
		return UCS_ERR_NO_PROGRESS;
	return UCS_ERR_IO_ERROR;
}

/* The last waits of a thread, for whichever sockets. */
static _Thread_local struct {
	struct {
		uint64_t began_ns, took_ns;
	} turns[TURNS];
	int next;
	uint64_t ended_ns; /* the last one */
} waits;

/* Waits for a turn at most. Returns how many nanoseconds of it this process has waited. */
static uint64_t await_room(int fd)
{
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	const uint64_t began_ns = ddp_now_ns();

	if (began_ns - waits.ended_ns > APART_MS * MS_NS)
		memset(&waits, 0, sizeof(waits));
	(void)poll(&room, 1, TURN_MS);
	waits.ended_ns = ddp_now_ns();
	const uint64_t went_ns = waits.ended_ns - began_ns, took_ns = went_ns < TURN_MS * MS_NS ? went_ns : TURN_MS * MS_NS;
	waits.turns[waits.next].began_ns = began_ns;
	waits.turns[waits.next].took_ns = took_ns;
	waits.next = (waits.next + 1) % TURNS;
	return took_ns;
}

/* How long this thread has waited for other sockets since this full one last sent something. */
static uint64_t waited_since_it_sent(int fd)
{
	const uint64_t now_ns = ddp_now_ns(), most_ns = (STUCK_MS - LEAST_MS) * MS_NS;
	struct tcp_info info = { .tcpi_last_data_sent = 0 };
	socklen_t bytes = sizeof(info);
	uint64_t waited_ns = 0;

	if (now_ns - waits.ended_ns > APART_MS * MS_NS || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
		return 0;
	const uint64_t sent_ns = now_ns - info.tcpi_last_data_sent * MS_NS;
	for (int i = 0; i < TURNS; i++)
		waited_ns += waits.turns[i].began_ns > sent_ns ? waits.turns[i].took_ns : 0;
	return waited_ns < most_ns ? waited_ns : most_ns;
}

static void end_stuck(int fd)
{
	struct sockaddr_storage peer;
	socklen_t bytes = sizeof(peer);
	char host[NI_MAXHOST] = "a peer", port[NI_MAXSERV] = "?";

	if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0)
		(void)getnameinfo((struct sockaddr *)&peer, bytes, host, sizeof(host), port, sizeof(port),
		                  NI_NUMERICHOST | NI_NUMERICSERV);
	ddp_log(DDP_LOG_WARN,
	        "UCX's connection to %s, port %s, has taken nothing for %d s, so it is ended (is the process there "
	        "stopped?)",
	        host, port, STUCK_MS / 1000);
	(void)shutdown(fd, SHUT_RDWR);
}

/* Like UCX's own function, this one waits until the socket has taken all, but not for ever. */
static ucs_status_t send_all(int fd, const void *data, size_t length)
{
	const char *at = data;
	size_t left = length;
	uint64_t waited_ns = 0; /* since the socket took something */

	while (left > 0) {
		const ssize_t sent = send(fd, at, left, MSG_NOSIGNAL);
		if (sent >= 0) {
			at += sent;
			left -= (size_t)sent;
			waited_ns = 0;
		} else if (peer_has_gone(errno)) {
			return UCS_OK;
		} else if (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
			return UCS_ERR_IO_ERROR;
		} else {
			if (left == length && waited_ns == 0)
				waited_ns = waited_since_it_sent(fd);
			if (waited_ns >= STUCK_MS * MS_NS) {
				end_stuck(fd);
				return UCS_OK;
			}
			waited_ns += await_room(fd);
		}
	}
	return UCS_OK;
}

const char *ddp_sendv_replace(void *ucp)
{
	const ddp_call calls[] = {
		{ .name = "ucs_socket_sendv_nb", .ours = (void *)send_some },
		{ .name = "ucs_socket_send", .ours = (void *)send_all },
	};

	return ddp_calls_replace(ucp, "uct_iface_open", calls, sizeof(calls) / sizeof(calls[0]));
}
