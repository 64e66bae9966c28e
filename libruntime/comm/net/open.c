/* SPDX-License-Identifier: Apache-2.0 */
/* comm/net over UCX: opening a worker, and taking over the addresses of others. */
#include "comm/net/ucx.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/sys/sock.h>

#include "base/c_locale.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/net/beats.h"
#include "comm/net/log.h"
#include "comm/net/nics.h"

/* A rank tells the others: this card, addresses of its host, its listeners, and UCX's address. */
typedef struct card {
	ddp_share share;
	uint32_t has_key;
	uint32_t guarded;    /* who connects to its listeners has to prove the key */
	uint32_t unfiltered; /* an errno: why the kernel does not filter its listeners; 0: it does */
	uint32_t host_count, listener_count;
	uint32_t beats_port; /* where the rank listens for beats (comm/net/beats), in network order; 0: it does not */
} card;

static const char sysfs[] = "/sys", devices[] = "/dev/infiniband";

static ddp_status fail_ucx(ddp_status status, ucs_status_t reason, const char *what)
{
	const char *more = ddp_ucx_log_reason();
	char choice[320];

	return ddp_fail(status, "UCX cannot %s: %s%s%s%s%s", what, ucs_status_string(reason), more[0] != '\0' ? " (" : "",
	                more, more[0] != '\0' ? ")" : "", ddp_ucx_choice(choice, sizeof(choice)));
}

/* Sets the value, unless the user has set one in the environment. */
static void prefer(ucp_config_t *config, const char *name, const char *value)
{
	char variable[64];

	snprintf(variable, sizeof(variable), "UCX_%s", name);
	if (getenv(variable) == NULL && ucp_config_modify(config, name, value) != UCS_OK)
		ddp_log(DDP_LOG_DEBUG, "this UCX does not know %s", name);
}

/* Keepalive is not to end a connection before the node is called silent. */
static void prefer_keepalive(const ddp_comm *comm, ucp_config_t *config)
{
	enum { AFTER = 10, MOST = 127 };
	const int seconds = comm->roster->silence_ms / 1000 + AFTER;
	char count[16];

	if (comm->roster->silence_ms == 0)
		return;
	snprintf(count, sizeof(count), "%d", seconds < MOST ? seconds : MOST);
	prefer(config, "TCP_KEEPCNT", count);
}

/* A rendezvous saves a copy, but over sockets every segment then waits until
   both processes get a core. Sent eagerly, it is in the kernel's hands. */
static void prefer_eager(ucp_config_t *config)
{
	if (!ddp_nics_any(sysfs, devices))
		prefer(config, "RNDV_THRESH", "1m");
}

/* Did nobody choose, neither in the environment nor in a file of UCX's? `line` is how UCX
   prints what it has by default. */
static bool is_default(const ucp_config_t *config, const char *variable, const char *line)
{
	char *text = NULL;
	size_t length;
	FILE *stream = getenv(variable) == NULL ? open_memstream(&text, &length) : NULL;

	if (stream == NULL)
		return false;
	ucp_config_print(config, stream, "", UCS_CONFIG_PRINT_CONFIG);
	bool same = fclose(stream) == 0 && strstr(text, line) != NULL;
	free(text);
	return same;
}

/* Is it one of "a,b,c"? */
static bool is_listed(const char *names, const char *name)
{
	const size_t length = strlen(name);

	for (const char *at = names; at != NULL; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
			return true;
	}
	return false;
}

/* The host's interfaces, behind what is in `names`: hosts without InfiniBand are reached by them. */
static void add_interfaces(char *names, size_t bytes)
{
	struct ifaddrs *all = NULL;

	if (getifaddrs(&all) != 0)
		return;
	for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
		const size_t length = strlen(names);
		/* One with several addresses comes several times, also as an alias "eth0:1". */
		if (a->ifa_addr == NULL || a->ifa_addr->sa_family != AF_INET || (a->ifa_flags & IFF_RUNNING) == 0 ||
		    strchr(a->ifa_name, ':') != NULL || is_listed(names, a->ifa_name) || length + strlen(a->ifa_name) + 2 > bytes)
			continue;
		snprintf(names + length, bytes - length, ",%s", a->ifa_name);
	}
	freeifaddrs(all);
}

/* Left to itself, UCX gives all ranks of a node the same one. */
static void prefer_near_nics(const ddp_comm *comm, ucp_config_t *config)
{
	enum { SETS = 8 }; /* 8192 cores */
	cpu_set_t (*allowed)[SETS] = calloc((size_t)comm->node.size, sizeof(*allowed));
	char names[2048];

	if (allowed == NULL || !is_default(config, "UCX_NET_DEVICES", "\nUCX_NET_DEVICES=all\n")) {
		free(allowed);
		return;
	}
	for (int i = 0; i < comm->node.size; i++) {
		const int64_t pid = comm->roster->peers[comm->topology.world_ranks[comm->node.ranks[i]]].pid;
		/* Nothing is known of a process that has just ended; the others do without it. */
		(void)sched_getaffinity((pid_t)pid, sizeof(*allowed), *(allowed + i));
	}
	const bool chosen = ddp_nics_choose(sysfs, devices, *allowed, sizeof(*allowed), comm->node.self,
	                                    comm->node.size, names, sizeof(names));
	free(allowed);
	if (!chosen)
		return;
	ddp_log(DDP_LOG_INFO, "of the node's InfiniBand ports, %s uses %s (UCX_NET_DEVICES chooses others)",
	        ddp_rank_text(comm, comm->rank), names);
	add_interfaces(names, sizeof(names));
	prefer(config, "NET_DEVICES", names);
}

/* Ranks of one node do not talk through UCX. Its shared memory there would be of no
   use, but in the way: a process that is killed while UCX makes it leaves it behind. */
static ucs_status_t init_without_shared_memory(const ucp_params_t *params, ucp_config_t *config,
                                               ucp_context_h *context)
{
	if (!is_default(config, "UCX_TLS", "\nUCX_TLS=all\n"))
		return ucp_init(params, config, context);
	if (ucp_config_modify(config, "TLS", "^sm") == UCS_OK && ucp_init(params, config, context) == UCS_OK)
		return UCS_OK;
	/* Perhaps this UCX is of before 1.12, and can only be told what to use. */
	(void)ucp_config_modify(config, "TLS", "all");
	return ucp_init(params, config, context);
}

/* Connections that collectives use: with as many others as there are, connections with the rest are rare. UCX
   chooses by it among transports that do well with few of them or with many. One that is said to be for fewer, as
   tcp is for 256, is taken all the same where there is none for so many: raising that would set tcp above others
   that are for 256 as well. */
static size_t expected_connections(const ddp_comm *comm)
{
	return (size_t)(comm->size <= DDP_NET_FEW_RANKS ? comm->size - comm->node.size : comm->topology.nodes - 1);
}

static ucs_status_t init_context(const ddp_comm *comm, ucp_context_h *context)
{
	static const struct {
		const char *name, *value;
	} settings[] = {
		/* Keepalive notices a node that falls silent while nothing is sent to it, and a
		   stopped process does not trip it. In all other cases beats do (comm/net/beats). */
		{ "KEEPALIVE_INTERVAL", "1s" }, { "TCP_KEEPIDLE", "1s" }, { "TCP_KEEPINTVL", "1s" },
		/* A peer whose connection was ended by force may have UCX make another, in
		   vain, and UCX 1.13 waits for that: 15 s, and not two minutes. */
		{ "TCP_SYN_CNT", "3" },
	};
	const ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
			UCP_PARAM_FIELD_ESTIMATED_NUM_PPN,
		.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
		.estimated_num_eps = expected_connections(comm),
		.estimated_num_ppn = (size_t)comm->node.size,
	};
	ucp_config_t *config;
	ucs_status_t status = ucp_config_read(NULL, NULL, &config);

	if (status != UCS_OK)
		return status;
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		prefer(config, settings[i].name, settings[i].value);
	prefer_keepalive(comm, config);
	prefer_eager(config);
	prefer_near_nics(comm, config);
	status = init_without_shared_memory(&params, config, context);
	ucp_config_release(config);
	return status;
}

/* The card, and what follows it. A node's first rank tells the host's addresses for the node's other ranks, too. */
static ddp_status write_card(const ddp_comm *comm, const void *own, size_t length, void **address, size_t *bytes)
{
	const ddp_worker *worker = comm->roster->worker;
	ddp_place hosts[DDP_HOST_PLACES_MAX];
	card c = { .share = worker->share, .has_key = worker->roster->key.present,
	           .guarded = worker->unguarded == NULL, .unfiltered = (uint32_t)worker->unfiltered,
	           .host_count = comm->node.self == 0 ? (uint32_t)ddp_host_places(hosts) : 0,
	           .listener_count = (uint32_t)worker->listeners.count, .beats_port = ddp_beats_port(worker->beats) };
	size_t host_bytes = c.host_count * sizeof(*hosts), listener_bytes = c.listener_count * sizeof(*hosts);
	char *to = malloc(sizeof(c) + host_bytes + listener_bytes + length);

	if (to == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for an address of %zu bytes", length);
	*address = to;
	*bytes = sizeof(c) + host_bytes + listener_bytes + length;
	memcpy(to, &c, sizeof(c));
	memcpy(to += sizeof(c), hosts, host_bytes);
	memcpy(to += host_bytes, worker->listeners.places, listener_bytes);
	memcpy(to + listener_bytes, own, length);
	return DDP_OK;
}

/* The world knows its hosts. A filter that was there once is not given up. */
static ddp_status let_hosts_in(const ddp_worker *worker, const ddp_place *hosts, int count)
{
	int bits[2];

	if (worker->unfiltered != 0)
		return DDP_OK;
	int error = ddp_listeners_admit(&worker->listeners, hosts, count, bits);
	if (error != 0)
		return ddp_fail_errno(DDP_ERR_IO, error, "the kernel does not take the filter of UCX's listening "
		                      "sockets that lets the job's %d addresses in", count);
	if (bits[0] < 32 || bits[1] < 128)
		ddp_log(DDP_LOG_DEBUG, "%d addresses: UCX's listening sockets let in who has the first %d bits of "
		        "one, of IPv6 the first %d", count, bits[0], bits[1]);
	return DDP_OK;
}

static void find_unguarded(ddp_worker *worker)
{
	worker->unguarded = worker->unfiltered != 0 ? "its listening sockets are not known" :
		ddp_guard_lacks(worker->guard, &worker->listeners);
	if (worker->unguarded != NULL)
		ddp_log(DDP_LOG_INFO, "who connects to UCX's listening sockets cannot be checked: %s", worker->unguarded);
}

static ddp_status start_worker(const ddp_comm *comm, ddp_worker *worker, void **address, size_t *bytes)
{
	/* One thread at a time, the one that holds the lock. */
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	/* Ranks of one node do not talk through UCX. */
	ucp_worker_attr_t own = { .field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS,
	                          .address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY };
	ddp_listening before;
	ucs_status_t ucx = init_context(comm, &worker->context);

	if (ucx != UCS_OK)
		return fail_ucx(DDP_ERR_IO, ucx, "start");
	ddp_listeners_list(&before);
	ddp_guard_begin(worker->guard);
	ucx = ucp_worker_create(worker->context, &params, &worker->worker);
	ddp_guard_end();
	if (ucx == UCS_OK)
		ucx = ucp_worker_query(worker->worker, &own);
	if (ucx == UCS_OK)
		worker->unfiltered = ddp_listeners_find(&worker->listeners, &before, own.address, own.address_length);
	free(before.places);
	if (ucx != UCS_OK)
		return fail_ucx(DDP_ERR_IO, ucx, "make a worker");
	find_unguarded(worker);
	/* Nobody has a reason to connect yet. */
	if (worker->unfiltered == 0)
		worker->unfiltered = ddp_listeners_shut(&worker->listeners);
	ddp_status status = write_card(comm, own.address, own.address_length, address, bytes);
	ucp_worker_release_address(worker->worker, own.address);
	ucx = ucp_worker_get_efd(worker->worker, &worker->event_fd);
	if (ucx == UCS_OK)
		ucx = ddp_ucx_set_handlers(worker);
	if (ucx != UCS_OK)
		return fail_ucx(DDP_ERR_IO, ucx, "make a worker");
	return status;
}

static ddp_worker *make_worker(ddp_roster *roster)
{
	ddp_worker *worker = calloc(1, sizeof(*worker) + (size_t)roster->size * sizeof(*worker->peers));

	if (worker == NULL)
		return NULL;
	pthread_mutex_init(&worker->lock, NULL);
	worker->roster = roster;
	worker->event_fd = -1;
	for (int r = 0; r < roster->size; r++) {
		worker->peers[r].worker = worker;
		worker->peers[r].peer = r;
	}
	return worker;
}

static ddp_status open_worker(const ddp_comm *comm, void **address, size_t *bytes)
{
	ddp_worker *worker = comm->roster->worker = make_worker(comm->roster);
	ddp_threads threads;

	if (worker == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the UCX connections of %d ranks",
		                comm->roster->size);
	ddp_status status = ddp_share_make(&worker->share);
	if (status == DDP_OK)
		status = ddp_guard_make(&worker->guard);
	if (status == DDP_OK && comm->roster->silence_ms > 0)
		status = ddp_beats_open(comm->roster, &worker->beats);
	if (status != DDP_OK)
		return status;
	ddp_ucx_make_room(worker, comm->topology.nodes);
	ddp_ucx_log_list_threads(&threads);
	status = start_worker(comm, worker, address, bytes);
	ddp_ucx_log_claim_thread(&threads);
	return status;
}

static ddp_net *make_net(ddp_comm *comm)
{
	ddp_net *net = calloc(1, sizeof(*net) + (size_t)comm->size * sizeof(*net->members));

	if (net == NULL)
		return NULL;
	net->comm = comm;
	net->flooding = DDP_NOBODY;
	for (int r = 0; r < comm->size; r++) {
		net->members[r].posted_end = &net->members[r].posted;
		net->members[r].unexpected_end = &net->members[r].unexpected;
	}
	return net;
}

ddp_status ddp_net_open(ddp_comm *comm, void **address, size_t *bytes)
{
	DDP_UCX_FOR_LIBDDP();
	ddp_net *net = make_net(comm);
	ddp_status status = DDP_OK;

	if (net == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the network between %d ranks", comm->size);
	/* The world opens the worker; further communicators come of one that has a worker. */
	if (comm->roster->worker == NULL)
		status = open_worker(comm, address, bytes);
	net->worker = comm->roster->worker;
	if (net->worker == NULL) {
		free(net);
		return status;
	}
	pthread_mutex_lock(&net->worker->lock);
	net->worker->users++;
	atomic_fetch_add(&net->worker->working, 1);
	pthread_mutex_unlock(&net->worker->lock);
	comm->net = net;
	return status;
}

void ddp_net_join(ddp_comm *comm)
{
	ddp_net *net = comm->net;

	ddp_ucx_lock(net->worker, net);
	net->id = comm->id;
	ddp_ucx_add(net);
	ddp_ucx_unlock(net->worker);
}

/* The cards of all ranks, taken together. */
typedef struct cards {
	ddp_share *shares;  /* [size] */
	ddp_place *hosts;   /* of one rank of each other node */
	size_t host_count, listener_count;
	size_t *listeners_end; /* [size]: up to there, peer_listeners are of this rank or of lower ones */
	bool all_have_key;
	int unguarded, first_unguarded; /* ranks that do not check who connects */
	int unfiltered, error;          /* ranks whose listeners the kernel does not filter */
} cards;

static ddp_status read_card(ddp_comm *comm, int r, const void *blob, size_t bytes, card *c)
{
	const size_t place = sizeof(ddp_place);

	if (bytes <= sizeof(*c))
		return ddp_fail(DDP_ERR_PEER, "%s has no network", ddp_rank_text(comm, r));
	memcpy(c, blob, sizeof(*c));
	if (c->host_count > DDP_HOST_PLACES_MAX || c->listener_count > DDP_LISTENERS_MAX ||
	    bytes - sizeof(*c) <= (c->host_count + c->listener_count) * place)
		return ddp_fail(DDP_ERR_PEER, "%s runs another version of libddp: install one on all nodes",
		                ddp_rank_text(comm, r));
	return DDP_OK;
}

static ddp_status use_card(ddp_comm *comm, int r, const void *blob, size_t bytes, cards *a)
{
	ddp_worker *worker = comm->net->worker;
	connection *peer = ddp_ucx_connection(comm->net, r);
	card c;
	ddp_status status = read_card(comm, r, blob, bytes, &c);

	if (status != DDP_OK)
		return status;
	const char *from = (const char *)blob + sizeof(c);
	ddp_place hosts[DDP_HOST_PLACES_MAX];
	size_t host_bytes = c.host_count * sizeof(ddp_place), listener_bytes = c.listener_count * sizeof(ddp_place);
	size_t length = bytes - sizeof(c) - host_bytes - listener_bytes;
	memcpy(hosts, from, host_bytes);
	a->shares[r] = c.share;
	a->all_have_key = a->all_have_key && c.has_key != 0;
	a->listeners_end[r] = a->listener_count;
	if (c.guarded == 0 && a->unguarded++ == 0)
		a->first_unguarded = r;
	if (c.unfiltered != 0 && a->unfiltered++ == 0)
		a->error = (int)c.unfiltered;
	if (ddp_is_local(comm, r))
		return DDP_OK;
	if (worker->beats != NULL)
		status = ddp_beats_learn(worker->beats, comm->topology.world_ranks[r], (uint16_t)c.beats_port,
		                         hosts, (int)c.host_count);
	if (status != DDP_OK)
		return status;
	if (comm->topology.local_of[r] == 0) {
		memcpy(a->hosts + a->host_count, from, host_bytes);
		a->host_count += c.host_count;
	}
	memcpy(worker->peer_listeners + a->listener_count, from + host_bytes, listener_bytes);
	a->listener_count += c.listener_count;
	a->listeners_end[r] = a->listener_count;
	peer->address = malloc(length);
	if (peer->address == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for the address of %s, %zu bytes",
		                ddp_rank_text(comm, r), length);
	memcpy(peer->address, from + host_bytes + listener_bytes, length);
	return DDP_OK;
}

/* The world's ranks are numbered as its processes. */
static ddp_status make_tokens(ddp_worker *worker, const cards *a)
{
	const int self = worker->roster->rank;
	ddp_secret secret;
	ddp_status status = ddp_secret_make(a->all_have_key ? &worker->roster->key : NULL, a->shares,
	                                    worker->roster->size, &secret);

	for (int r = 0; r < worker->roster->size && status == DDP_OK; r++) {
		if (worker->peers[r].address == NULL)
			continue;
		status = ddp_token_make(&secret, self, r, &worker->peers[r].ours);
		if (status == DDP_OK)
			status = ddp_token_make(&secret, r, self, &worker->peers[r].theirs);
		if (status == DDP_OK && worker->beats != NULL)
			ddp_beats_trust(worker->beats, r, &worker->peers[r].ours, &worker->peers[r].theirs);
	}
	explicit_bzero(&secret, sizeof(secret));
	return status;
}

/* Each rank proves its listeners' key to a peer before UCX reads anything of the connection. */
static ddp_status guard_listeners(ddp_worker *worker, const cards *a)
{
	const ddp_key *key = a->all_have_key ? &worker->roster->key : NULL;
	ddp_proof_key proof_key;
	ddp_status status = DDP_OK;

	if (a->unguarded > 0) {
		ddp_guard_let_all_in(worker->guard);
		return DDP_OK;
	}
	for (int r = 0; r < worker->roster->size && status == DDP_OK; r++) {
		const size_t begin = r > 0 ? a->listeners_end[r - 1] : 0, end = a->listeners_end[r];
		if (begin == end)
			continue;
		status = ddp_proof_key_make(key, &a->shares[r], &proof_key);
		if (status == DDP_OK)
			status = ddp_guard_add_peer(worker->guard, worker->peer_listeners + begin, (int)(end - begin), &proof_key);
	}
	if (status == DDP_OK)
		status = ddp_proof_key_make(key, &worker->share, &proof_key);
	if (status == DDP_OK)
		ddp_guard_require_proof(worker->guard, &proof_key);
	explicit_bzero(&proof_key, sizeof(proof_key));
	return status;
}

/* Said once, by rank 0 for the world, as it is the same on most hosts of a job. */
static void warn_unguarded(const ddp_comm *comm, const cards *a)
{
	const bool any_host = a->unfiltered > 0;

	if (comm->rank != 0 || a->unguarded == 0)
		return;
	ddp_log(DDP_LOG_WARN, "UCX's listening sockets are open to %s on %d of %d ranks, %s first: libddp cannot check "
	        "who connects to this UCX%s%s%s. Messages are checked nevertheless; see SECURITY in libddp(3)",
	        any_host ? "any host" : "users of the job's hosts", a->unguarded, comm->size,
	        ddp_rank_text(comm, a->first_unguarded), any_host ? ", and no filter could be set for them (" : "",
	        any_host ? ddp_reason(a->error) : "",
	        !any_host ? "" : a->error == EPERM ? "), as it may for users without privileges" : ")");
}

static ddp_status read_cards(ddp_comm *comm, void **addresses, const size_t *sizes, cards *a)
{
	ddp_worker *worker = comm->net->worker;
	ddp_status status = DDP_OK;

	for (int r = 0; r < comm->size && status == DDP_OK; r++)
		status = use_card(comm, r, addresses[r], sizes[r], a);
	if (status == DDP_OK)
		status = make_tokens(worker, a);
	if (status == DDP_OK)
		status = guard_listeners(worker, a);
	if (status == DDP_OK)
		status = let_hosts_in(worker, a->hosts, (int)a->host_count);
	if (status != DDP_OK)
		return status;
	warn_unguarded(comm, a);
	worker->own_sockets = (ddp_own_sockets){ .listeners = &worker->listeners, .peers = worker->peer_listeners,
	                                         .peer_count = (int)a->listener_count };
	ddp_fork_announce(&worker->own_sockets);
	worker->announced = true;
	return DDP_OK;
}

ddp_status ddp_net_set_addresses(ddp_comm *comm, void **addresses, const size_t *sizes)
{
	ddp_worker *worker = comm->net->worker;
	size_t size = (size_t)comm->size;
	cards a = { .shares = calloc(size, sizeof(*a.shares)), .all_have_key = true,
	            .hosts = calloc((size_t)comm->topology.nodes * DDP_HOST_PLACES_MAX, sizeof(*a.hosts)),
	            .listeners_end = calloc(size, sizeof(*a.listeners_end)) };
	ddp_status status;

	worker->peer_listeners = calloc(size * DDP_LISTENERS_MAX, sizeof(*worker->peer_listeners));
	if (a.shares == NULL || a.hosts == NULL || a.listeners_end == NULL || worker->peer_listeners == NULL)
		status = ddp_fail(DDP_ERR_NOMEM, "no memory for the addresses of %d ranks", comm->size);
	else
		status = read_cards(comm, addresses, sizes, &a);
	free(a.shares);
	free(a.hosts);
	free(a.listeners_end);
	return status;
}

ddp_status ddp_net_watch(ddp_comm *comm)
{
	struct ddp_beats *beats = comm->net->worker->beats;

	return beats != NULL ? ddp_beats_watch(beats, comm) : DDP_OK;
}
