/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/guard.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <ucs/async/async_fwd.h>
#include <ucs/sys/sock.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/net/calls.h"

enum {
	HELD_MAX = DDP_GUARD_HELD, /* connections without a proof; a further one drops the oldest */
	HELD_MIN = 16,             /* the same, where descriptors are scarce */
	DESCRIPTORS_SPARE = 64,    /* which the rest of the process may open meanwhile */
	CONNECT_MS = 20000         /* where UCX does not wait for the connection itself */
};

typedef ucs_status_t (*accept_function)(int fd, struct sockaddr *address, socklen_t *length, int *accepted);
typedef ucs_status_t (*connect_function)(int fd, const struct sockaddr *to);
typedef ucs_status_t (*watch_function)(ucs_async_mode_t mode, int fd, ucs_event_set_types_t events,
                                       ucs_async_event_cb_t callback, void *argument, ucs_async_context_t *async);
typedef ucs_status_t (*unwatch_function)(int fd, int wait);

/* UCX's functions that this file calls in its turn. */
static struct {
	accept_function accept;
	connect_function connect;
	watch_function watch;
	unwatch_function unwatch;
} ucx;

/* A listener of UCX's, and what UCX does about a connection. */
typedef struct listener {
	int fd;
	ddp_place place;
	ucs_async_mode_t mode;
	ucs_async_event_cb_t callback;
	void *argument;
	ucs_async_context_t *async;
} listener;

/* A connection that UCX does not know yet. */
typedef struct held {
	int fd;
	const listener *at;
	bool watched; /* for bytes that come */
	bool proven;
	size_t bytes; /* of the proof, so far */
	ddp_proof proof;
} held;

/* A listener of a peer. */
typedef struct known_listener {
	ddp_place place;
	ddp_proof_key key;
} known_listener;

typedef struct nonce {
	unsigned char bytes[DDP_PROOF_NONCE_BYTES];
} nonce;

struct ddp_guard {
	ddp_guard *next;
	enum { WAITS, CHECKS, OPEN, CLOSED } state;
	ddp_proof_key key;      /* of its own listeners */
	listener listeners[DDP_LISTENERS_MAX];
	int listener_count;
	bool too_many;          /* listeners */
	held held[HELD_MAX];    /* the oldest first */
	int held_count, held_max;
	void *known;            /* listeners of peers: a tree of tsearch() */
	nonce *used;            /* by proofs that were taken */
	size_t used_count, used_room;
	int refused;
};

/* UCX's own thread holds UCX's lock before it takes this one. UCX's callbacks are called with
   it: so nothing of a guard that was closed is called any more. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* recursive, by make_lock() */
static ddp_guard *guards;
static const char *missing; /* why UCX's calls are not replaced */
static _Thread_local ddp_guard *opening;

/* ---- connections that are held ------------------------------------------------------------- */

static void forget(ddp_guard *g, int i)
{
	g->held_count--;
	memmove(&g->held[i], &g->held[i + 1], (size_t)(g->held_count - i) * sizeof(*g->held));
}

static void unwatch(held *h)
{
	if (h->watched)
		(void)ucx.unwatch(h->fd, 0);
	h->watched = false;
}

static void refuse(ddp_guard *g, int i)
{
	unwatch(&g->held[i]);
	close(g->held[i].fd);
	forget(g, i);
	g->refused++;
}

/* Each proof is taken once, also if somebody has copied it on its way. */
static bool is_new(ddp_guard *g, const ddp_proof *proof)
{
	for (size_t i = 0; i < g->used_count; i++) {
		if (memcmp(g->used[i].bytes, proof->nonce, sizeof(proof->nonce)) == 0)
			return false;
	}
	if (g->used_count == g->used_room) {
		const size_t room = 2 * g->used_room + 16;
		nonce *used = realloc(g->used, room * sizeof(*used));
		if (used == NULL)
			return false;
		g->used = used;
		g->used_room = room;
	}
	memcpy(g->used[g->used_count++].bytes, proof->nonce, sizeof(proof->nonce));
	return true;
}

static bool is_proof(ddp_guard *g, const held *h)
{
	ddp_place near, far;

	return ddp_socket_places(h->fd, &near, &far) && far.family != 0 && ddp_proof_holds(&g->key, &far, &near, &h->proof) &&
	       is_new(g, &h->proof);
}

static void held_readable(int fd, ucs_event_set_types_t events, void *argument);

/* UCX's thread looks after the connection, as it does after the listener. */
static bool watch(held *h, ucs_event_set_types_t events)
{
	if (!h->watched)
		h->watched = ucx.watch(h->at->mode, h->fd, events, held_readable, NULL, h->at->async) == UCS_OK;
	return h->watched;
}

/* Reads of the connection what is there of a proof. False: it is refused. */
static bool read_proof(ddp_guard *g, held *h)
{
	while (!h->proven) {
		const ssize_t got = recv(h->fd, (char *)&h->proof + h->bytes, sizeof(h->proof) - h->bytes, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return watch(h, UCS_EVENT_SET_EVREAD | UCS_EVENT_SET_EVERR);
		if (got <= 0)
			return false;
		h->bytes += (size_t)got;
		if (!ddp_proof_may_begin(&h->proof, h->bytes))
			return false;
		if (h->bytes == sizeof(h->proof) && !is_proof(g, h))
			return false;
		h->proven = h->bytes == sizeof(h->proof);
	}
	return true;
}

static void check(ddp_guard *g, int i)
{
	held *h = &g->held[i];

	if (g->state == OPEN)
		h->proven = true;
	else if (g->state == CLOSED || (g->state == CHECKS && !read_proof(g, h)))
		refuse(g, i);
}

/* ---- in the place of UCX's functions ------------------------------------------------------- */

static listener *find_listener(int fd, ddp_guard **guard)
{
	for (ddp_guard *g = guards; g != NULL; g = g->next) {
		for (int i = 0; i < g->listener_count; i++) {
			if (g->listeners[i].fd == fd) {
				*guard = g;
				return &g->listeners[i];
			}
		}
	}
	return NULL;
}

static void drop_oldest(ddp_guard *g)
{
	for (int i = 0; i < g->held_count; i++) {
		if (!g->held[i].proven) {
			refuse(g, i);
			return;
		}
	}
}

static void hold(ddp_guard *g, const listener *l, int fd)
{
	g->held[g->held_count] = (held){ .fd = fd, .at = l };
	check(g, g->held_count++);
}

/* The lowest free descriptor is taken, so a high number tells that few are left. */
static void mind_descriptors(ddp_guard *g, int fd)
{
	struct rlimit limit;

	if (g->held_count >= HELD_MIN && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
	    (rlim_t)fd + DESCRIPTORS_SPARE >= limit.rlim_cur)
		g->held_max = g->held_count;
}

/* Accepts who waits, as many as may be held. False: there is no descriptor for one. */
static bool accept_all(ddp_guard *g, const listener *l)
{
	for (int i = 0; i < HELD_MAX; i++) {
		if (g->held_count == g->held_max)
			drop_oldest(g);
		if (g->held_count == g->held_max)
			return true;
		const int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
			if (g->held_count == 0)
				return false;
			drop_oldest(g);
			continue;
		}
		if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (fd < 0)
			continue; /* an error of the connection that was to come */
		mind_descriptors(g, fd);
		if (g->held_count == g->held_max)
			drop_oldest(g);
		hold(g, l, fd);
	}
	return true;
}

/* The next connection for UCX. */
static ucs_status_t hand_over(ddp_guard *g, const listener *l, struct sockaddr *address, socklen_t *length,
                              int *accepted)
{
	for (int i = 0; i < g->held_count; i++) {
		if (!g->held[i].proven || g->held[i].at != l)
			continue;
		const int fd = g->held[i].fd;
		unwatch(&g->held[i]);
		forget(g, i);
		if (getpeername(fd, address, length) == 0) {
			*accepted = fd;
			return UCS_OK;
		}
		close(fd); /* the peer has gone */
		i--;
	}
	return UCS_ERR_NO_PROGRESS;
}

static ucs_status_t accept_ours(int fd, struct sockaddr *address, socklen_t *length, int *accepted)
{
	ucs_status_t status;
	ddp_guard *g;

	pthread_mutex_lock(&lock);
	const listener *l = find_listener(fd, &g);
	if (l == NULL) {
		pthread_mutex_unlock(&lock);
		return ucx.accept(fd, address, length, accepted);
	}
	if (!accept_all(g, l)) {
		/* UCX says why it accepts none, and closes its listener; but there may be a descriptor now. */
		int last;
		status = ucx.accept(fd, address, length, &last);
		if (status != UCS_OK) {
			pthread_mutex_unlock(&lock);
			return status;
		}
		hold(g, l, last);
	}
	status = hand_over(g, l, address, length, accepted);
	pthread_mutex_unlock(&lock);
	return status;
}

/* Bytes, or the end, of a connection that is held. */
static void held_readable(int fd, ucs_event_set_types_t events, void *argument)
{
	(void)events;
	(void)argument;
	pthread_mutex_lock(&lock);
	for (ddp_guard *g = guards; g != NULL; g = g->next) {
		for (int i = 0; i < g->held_count; i++) {
			if (g->held[i].fd != fd)
				continue;
			const listener *l = g->held[i].at;
			const int before = g->held_count;
			check(g, i);
			if (g->held_count == before && g->held[i].proven)
				l->callback(l->fd, UCS_EVENT_SET_EVREAD, l->argument);
			pthread_mutex_unlock(&lock);
			return;
		}
	}
	pthread_mutex_unlock(&lock);
}

static void keep_listener(ucs_async_mode_t mode, int fd, ucs_async_event_cb_t callback, void *argument,
                          ucs_async_context_t *async)
{
	listener l = { .fd = fd, .mode = mode, .callback = callback, .argument = argument, .async = async };

	if (!ddp_socket_listens(fd, &l.place))
		return;
	pthread_mutex_lock(&lock);
	if (opening->listener_count < DDP_LISTENERS_MAX)
		opening->listeners[opening->listener_count++] = l;
	else
		opening->too_many = true;
	pthread_mutex_unlock(&lock);
}

static ucs_status_t watch_ours(ucs_async_mode_t mode, int fd, ucs_event_set_types_t events,
                               ucs_async_event_cb_t callback, void *argument, ucs_async_context_t *async)
{
	if (opening != NULL)
		keep_listener(mode, fd, callback, argument, async);
	return ucx.watch(mode, fd, events, callback, argument, async);
}

/* Both begin with a place. */
static int by_place(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(ddp_place));
}

static const ddp_proof_key *find_key(const ddp_place *place)
{
	for (const ddp_guard *g = guards; g != NULL; g = g->next) {
		known_listener *const *known = tfind(place, &g->known, by_place);
		if (known != NULL)
			return &(*known)->key;
		/* UCX may connect a process with itself. */
		for (int i = 0; i < g->listener_count && g->state == CHECKS; i++) {
			if (memcmp(&g->listeners[i].place, place, sizeof(*place)) == 0)
				return &g->key;
		}
	}
	return NULL;
}

static bool await_connection(int fd)
{
	struct pollfd connected = { .fd = fd, .events = POLLOUT };
	const uint64_t deadline_ns = ddp_ms_from_now(CONNECT_MS);
	int error = 0, ready;
	socklen_t length = sizeof(error);

	do {
		const uint64_t now_ns = ddp_now_ns();
		ready = poll(&connected, 1, now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / 1000000) : 0);
	} while (ready < 0 && errno == EINTR);
	return ready == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

static ucs_status_t connect_ours(int fd, const struct sockaddr *to)
{
	ddp_proof_key key = { .bytes = { 0 } };
	ddp_place far, near, peer;
	ddp_proof proof;
	const ddp_proof_key *found = NULL;
	ucs_status_t status = ucx.connect(fd, to);

	if ((status != UCS_OK && status != UCS_INPROGRESS) || !ddp_place_of(to, &far))
		return status;
	pthread_mutex_lock(&lock);
	found = find_key(&far);
	if (found != NULL)
		key = *found;
	pthread_mutex_unlock(&lock);
	if (found == NULL)
		return status;
	if (status == UCS_INPROGRESS && !await_connection(fd))
		return UCS_ERR_UNREACHABLE;
	/* If the peer has gone already, UCX finds that out itself. */
	if (ddp_socket_places(fd, &near, &peer) && ddp_proof_make(&key, &near, &far, &proof) == DDP_OK)
		(void)!send(fd, &proof, sizeof(proof), MSG_NOSIGNAL | MSG_DONTWAIT);
	explicit_bzero(&key, sizeof(key));
	return UCS_OK;
}

/* ---- taking the place ---------------------------------------------------------------------- */

static bool make_lock(void)
{
	pthread_mutexattr_t recursive;

	if (pthread_mutexattr_init(&recursive) != 0)
		return false;
	const bool made = pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE) == 0 &&
	                  pthread_mutex_init(&lock, &recursive) == 0;
	pthread_mutexattr_destroy(&recursive);
	return made;
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* The thread that locked it has another number here, and could not unlock it. */
static void in_child(void)
{
	(void)make_lock(); /* as it did before */
}

static void replace_calls(void)
{
	const ddp_call calls[] = {
		{ "ucs_socket_accept", (void *)accept_ours, (void **)&ucx.accept },
		{ "ucs_socket_connect", (void *)connect_ours, (void **)&ucx.connect },
		{ "ucs_async_set_event_handler", (void *)watch_ours, (void **)&ucx.watch },
	};
	void *ucp = dlsym(RTLD_DEFAULT, "ucp_worker_create");
	Dl_info info;

	if (!make_lock()) {
		missing = "the system makes no lock that a thread may take twice";
		return;
	}
	if (ucp == NULL || dladdr(ucp, &info) == 0 || info.dli_fname == NULL ||
	    (ucp = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) == NULL) {
		missing = "UCX's library is not found";
		return;
	}
	*(void **)&ucx.unwatch = dlsym(ucp, "ucs_async_remove_handler");
	missing = ucx.unwatch == NULL ? "it watches its sockets by other functions" :
		ddp_calls_replace(ucp, "uct_iface_open", calls, sizeof(calls) / sizeof(calls[0]));
	const char *unsafe = ddp_sendv_replace(ucp);
	if (unsafe != NULL)
		ddp_log(DDP_LOG_INFO, "UCX may end a process whose peer dies, since it writes by its own functions: %s", unsafe);
	(void)pthread_atfork(before_fork, after_fork, in_child);
}

/* ---- guards ---------------------------------------------------------------------------------- */

ddp_status ddp_guard_make(ddp_guard **guard)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	ddp_guard *g = calloc(1, sizeof(*g));

	if (g == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the guard of UCX's listening sockets");
	g->held_max = HELD_MAX;
	pthread_once(&once, replace_calls);
	pthread_mutex_lock(&lock);
	g->next = guards;
	guards = g;
	pthread_mutex_unlock(&lock);
	*guard = g;
	return DDP_OK;
}

void ddp_guard_begin(ddp_guard *guard)
{
	opening = guard;
}

void ddp_guard_end(void)
{
	opening = NULL;
}

static bool has_listener(const ddp_guard *g, int fd)
{
	for (int i = 0; i < g->listener_count; i++) {
		if (g->listeners[i].fd == fd)
			return true;
	}
	return false;
}

const char *ddp_guard_lacks(const ddp_guard *guard, const ddp_listeners *listeners)
{
	if (listeners->count == 0)
		return NULL; /* nobody can connect, and UCX connects by TCP to nobody */
	const char *lacks = missing != NULL ? missing : guard->too_many ? "it has too many listening sockets" : NULL;

	for (int i = 0; i < listeners->count && lacks == NULL; i++) {
		if (!has_listener(guard, listeners->fds[i]))
			lacks = "it made a listening socket by another function";
	}
	return lacks;
}

/* UCX's thread, which calls UCX, looks at the connections that are held. */
static void watch_all(ddp_guard *g, ucs_event_set_types_t events)
{
	for (int i = g->held_count - 1; i >= 0; i--) {
		if (!watch(&g->held[i], events))
			refuse(g, i);
	}
}

void ddp_guard_require_proof(ddp_guard *guard, const ddp_proof_key *key)
{
	pthread_mutex_lock(&lock);
	guard->key = *key;
	guard->state = CHECKS;
	watch_all(guard, UCS_EVENT_SET_EVREAD | UCS_EVENT_SET_EVERR);
	pthread_mutex_unlock(&lock);
}

void ddp_guard_let_all_in(ddp_guard *guard)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < guard->held_count; i++)
		unwatch(&guard->held[i]);
	guard->state = OPEN;
	watch_all(guard, UCS_EVENT_SET_EVREAD | UCS_EVENT_SET_EVWRITE | UCS_EVENT_SET_EVERR);
	pthread_mutex_unlock(&lock);
}

/* A listener that is known gets the new key. */
static bool add_known(ddp_guard *g, const ddp_place *place, const ddp_proof_key *key)
{
	known_listener *known = malloc(sizeof(*known));

	if (known == NULL)
		return false;
	known->place = *place;
	known_listener **found = tsearch(known, &g->known, by_place);
	if (found == NULL || *found != known)
		free(known);
	if (found != NULL)
		(*found)->key = *key;
	return found != NULL;
}

/* A place without a family is nowhere. */
ddp_status ddp_guard_add_peer(ddp_guard *guard, const ddp_place *places, int count, const ddp_proof_key *key)
{
	bool kept = true;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < count && kept; i++)
		kept = places[i].family == 0 || add_known(guard, &places[i], key);
	pthread_mutex_unlock(&lock);
	return kept ? DDP_OK : ddp_fail(DDP_ERR_NOMEM, "no memory for the keys of %d listening sockets", count);
}

int ddp_guard_refused(const ddp_guard *guard)
{
	pthread_mutex_lock(&lock);
	const int refused = guard->refused;
	pthread_mutex_unlock(&lock);
	return refused;
}

void ddp_guard_close(ddp_guard *guard)
{
	held left[HELD_MAX];

	pthread_mutex_lock(&lock);
	const int count = guard->held_count;
	guard->state = CLOSED;
	memcpy(left, guard->held, (size_t)count * sizeof(*left));
	guard->held_count = 0;
	guard->refused += count;
	pthread_mutex_unlock(&lock);
	/* UCX's thread may be about to call held_readable(), which takes the lock: until it has come
	   back, UCX's lock has to stay. */
	for (int i = 0; i < count; i++) {
		if (left[i].watched)
			(void)ucx.unwatch(left[i].fd, 1);
		close(left[i].fd);
	}
}

static void free_known(void *known)
{
	explicit_bzero(known, sizeof(known_listener));
	free(known);
}

void ddp_guard_free(ddp_guard *guard)
{
	pthread_mutex_lock(&lock);
	for (ddp_guard **link = &guards; *link != NULL; link = &(*link)->next) {
		if (*link == guard) {
			*link = guard->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	explicit_bzero(&guard->key, sizeof(guard->key));
	tdestroy(guard->known, free_known);
	free(guard->used);
	free(guard);
}
