/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/attacker.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/ranks.h"

enum { VICTIM = 65534, ATTACKER = 65533, IDLE = 200, LISTENS = 0x0a };

static attacker *page; /* of the test */

/* ---- in the test's processes ----------------------------------------------------------------- */

/* Stands before the C library's: this kernel refuses filters, too. */
__attribute__((visibility("default"))) int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	int (*set)(int, int, int, const void *, socklen_t);

	if (page != NULL && level == SOL_SOCKET && name == SO_ATTACH_FILTER) {
		atomic_store(&page->refused, true);
		errno = EPERM;
		return -1;
	}
	*(void **)&set = dlsym(RTLD_NEXT, "setsockopt");
	return set(fd, level, name, value, length);
}

/* The same. */
__attribute__((visibility("default"))) int listen(int fd, int backlog)
{
	int (*listen_on)(int, int);
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof(at);

	*(void **)&listen_on = dlsym(RTLD_NEXT, "listen");
	const int result = listen_on(fd, backlog);
	if (page != NULL && getsockname(fd, (struct sockaddr *)&at, &length) == 0 && at.sin_family == AF_INET)
		atomic_store(&page->listens[ntohs(at.sin_port)], true);
	return result;
}

/* The same. Keeps a copy of what may be a proof. */
__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
	ssize_t (*send_on)(int, const void *, size_t, int);

	if (page != NULL && bytes < sizeof(page->copy) && bytes > 8 && memcmp(data, "ddpconn1", 8) == 0) {
		memcpy(page->copy, data, bytes);
		atomic_store(&page->copied, bytes);
	}
	*(void **)&send_on = dlsym(RTLD_NEXT, "send");
	return send_on(fd, data, bytes, flags);
}

void attacker_refuse_filters(attacker *s)
{
	page = s;
}

uid_t attacker_victim(void)
{
	return getuid() == 0 ? VICTIM : getuid();
}

static void be(uid_t user)
{
	if (getuid() == 0)
		CHECK(setgid(user) == 0 && setuid(user) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
}

void attacker_be_victim(void)
{
	be(attacker_victim());
}

/* ---- the attacker ------------------------------------------------------------------------------ */

/* The connection magic of UCX, and the header of a message of 2^31 bytes. */
static size_t write_thirteen(unsigned char *to)
{
	const uint64_t magic = 0xCAFEBABE12345678ULL;
	const uint32_t length = 0x80000000;

	memcpy(to, &magic, sizeof(magic));
	to[8] = 31;
	memcpy(to + 9, &length, sizeof(length));
	return 13;
}

/* What is sent on the n-th connection. */
static size_t write_nonsense(unsigned char *to, unsigned int n)
{
	const size_t copied = atomic_load(&page->copied);

	memset(to, 0xa5, 256);
	switch (n % 6) {
	case 0: return 256;
	case 1: memcpy(to, "ddpconn1", 8); return 20;   /* half a proof */
	case 2: memcpy(to, "ddpconn1", 8); return 256;  /* a wrong one */
	case 3: memcpy(to, page->copy, copied); return copied; /* one that was used, and UCX's bytes behind it */
	default: return write_thirteen(to);
	}
}

static int connect_to(const struct sockaddr_in *to)
{
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd >= 0)
		(void)connect(fd, (const struct sockaddr *)to, sizeof(*to));
	return fd;
}

static void attack(const struct sockaddr_in *to, unsigned int n)
{
	static int idle[IDLE]; /* 0: none */
	unsigned char text[512];
	const int fd = connect_to(to);
	size_t bytes = write_nonsense(text, n);

	if (fd < 0)
		return;
	if (n % 6 == 3)
		bytes += write_thirteen(text + bytes);
	if (n % 2 == 0 && atomic_load(&page->floods))
		bytes = 0;
	if (bytes > 0 && send(fd, text, bytes, MSG_NOSIGNAL) > 0)
		atomic_fetch_add(&page->sent[atomic_load(&page->phase)], 1);
	/* Some stay open, with what was sent or with nothing. */
	if (idle[n % IDLE] > 0)
		close(idle[n % IDLE]);
	idle[n % IDLE] = fd;
}

/* All at which that user's processes listen. */
static unsigned int attack_all(uid_t victim, unsigned int n)
{
	FILE *table = fopen("/proc/self/net/tcp", "re");
	unsigned int address, port, state, user;
	char line[512];

	while (table != NULL && fgets(line, sizeof(line), table) != NULL) {
		if (sscanf(line, " %*u: %x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %u", &address, &port, &state, &user) != 4 ||
		    state != LISTENS || user != victim || port > 65535 || !atomic_load(&page->listens[port]))
			continue;
		const struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = address, .sin_port = htons((uint16_t)port) };
		attack(&to, n++);
	}
	if (table != NULL)
		fclose(table);
	return n;
}

pid_t attacker_begin(attacker *s, uid_t victim)
{
	page = s;
	fflush(NULL);
	const pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid > 0)
		return pid;
	page = NULL;
	be(ATTACKER);
	page = s;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned int n = 0; !atomic_load(&s->stop);)
		n = attack_all(victim, n);
	_exit(0);
}

void attacker_end(attacker *s, pid_t pid)
{
	int end;

	atomic_store(&s->stop, true);
	CHECK(waitpid(pid, &end, 0) == pid && end == 0);
	page = NULL;
}
