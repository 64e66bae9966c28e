#include "comm/node.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/await.h"
#include "comm/memory.h"
#include "comm/pairs.h"

/* ---- the segment ------------------------------------------------------------ */

int ddp_segment_create(size_t bytes)
{
	int fd = memfd_create("ddp", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

int ddp_segment_open(int64_t pid, int fd)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)pid, fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static size_t page_up(size_t bytes)
{
	return (bytes + 4095) & ~(size_t)4095;
}

static size_t lines_bytes(int ranks)
{
	return page_up(sizeof(ddp_node_shared) + (size_t)ranks * sizeof(ddp_node_rank));
}

/* Pages that are never touched take no memory. */
static size_t segment_bytes(const ddp_node *node)
{
	size_t ranks = (size_t)node->size;

	return lines_bytes(node->size) + ranks * 2 * (DDP_SMALL_BYTES + 3 * node->stage_bytes) +
	       ranks * ranks * sizeof(ddp_ring);
}

/* The cores that the node's ranks, taken together, may run on; at least 1. */
static uint32_t cores_of_ranks(const ddp_comm *comm)
{
	enum { SETS = 8 }; /* of 1024 cores */
	cpu_set_t all[SETS], own[SETS];

	CPU_ZERO_S(sizeof(all), all);
	for (int i = 0; i < comm->node.size; i++) {
		const ddp_peer *peer = &comm->roster->peers[comm->world_ranks[comm->node.ranks[i]]];
		CPU_ZERO_S(sizeof(own), own);
		if (sched_getaffinity((pid_t)peer->pid, sizeof(own), own) == 0)
			CPU_OR_S(sizeof(all), all, all, own);
	}
	const int count = CPU_COUNT_S(sizeof(all), all);
	return count > 0 ? (uint32_t)count : 1;
}

/* Whichever rank comes first counts them for all: ranks that took the node for
   larger or smaller than the others would exchange small payloads in other ways. */
static uint32_t agreed_cores(const ddp_comm *comm)
{
	ddp_node_shared *shared = comm->node.shared;
	uint32_t none = 0;

	atomic_compare_exchange_strong(&shared->cores, &none, cores_of_ranks(comm));
	return atomic_load(&shared->cores);
}

ddp_status ddp_node_map(ddp_comm *comm, int fd)
{
	ddp_node *node = &comm->node;

	node->stage_bytes = comm->nodes > 1 ? DDP_NET_STAGE_BYTES : DDP_STAGE_BYTES;
	size_t bytes = segment_bytes(node);
	/* Whichever rank comes first makes it large enough. */
	if (ftruncate(fd, (off_t)bytes) != 0)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot make a shared segment of %zu bytes", bytes);
	char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return ddp_fail_errno(DDP_ERR_NOMEM, errno, "cannot map %zu bytes of shared memory", bytes);
	node->shared = (ddp_node_shared *)(void *)base;
	node->shared_bytes = bytes;
	comm->crowded = (uint32_t)node->size > agreed_cores(comm);
	node->small = base + lines_bytes(node->size);
	node->stage = node->small + (size_t)node->size * 2 * DDP_SMALL_BYTES;
	node->result = node->stage + (size_t)node->size * 2 * node->stage_bytes;
	node->notices = node->result + (size_t)node->size * 2 * node->stage_bytes;
	node->rings = node->notices + (size_t)node->size * 2 * node->stage_bytes;
	return ddp_pairs_open(comm);
}

void ddp_node_unmap(ddp_comm *comm)
{
	if (comm->node.shared != NULL)
		munmap(comm->node.shared, comm->node.shared_bytes);
	comm->node.shared = NULL;
}

/* ---- headers ------------------------------------------------------------------ */

static char *payload_slot(const ddp_comm *comm, int i, uint64_t sequence)
{
	return comm->node.small + ((size_t)i * 2 + (sequence & 1)) * DDP_SMALL_BYTES;
}

static ddp_header *header_slot(const ddp_comm *comm, int i)
{
	return &comm->node.shared->ranks[i].header[comm->sequence & 1];
}

const ddp_header *ddp_node_header(const ddp_comm *comm, int i)
{
	return header_slot(comm, i);
}

const void *ddp_node_payload(const ddp_comm *comm, int i, size_t bytes)
{
	if (bytes <= DDP_INLINE_BYTES)
		return header_slot(comm, i)->inlined;
	return payload_slot(comm, i, comm->sequence);
}

bool ddp_node_all_have(const ddp_comm *comm, uint8_t flag)
{
	for (int i = 0; i < comm->node.size; i++) {
		if ((header_slot(comm, i)->flags & flag) == 0)
			return false;
	}
	return true;
}

/* Over the v-form's counts, where they are the same on all ranks. */
static uint32_t hash_counts(const ddp_comm *comm, const ddp_collective *c)
{
	if (c->counts == NULL || c->kind == DDP_ALL_TO_ALL)
		return 0;
	uint64_t hash = ddp_hash(c->counts, (size_t)comm->size * sizeof(*c->counts));
	return (uint32_t)(hash ^ hash >> 32);
}

/* Makes a word visible that the others wait for. Who sleeps for it is woken by
   the last of them to come: see ddp_node_wake_late(). */
static void publish(ddp_comm *comm, _Atomic uint64_t *word, uint64_t value, uint32_t event)
{
	if (comm->net == NULL) {
		atomic_store_explicit(word, value, memory_order_release);
		return;
	}
	/* Between nodes a rank may have much to do before it waits itself. */
	atomic_store(word, value);
	ddp_node_wake(comm, event);
}

static void set_memory(ddp_header *h, const ddp_entry *entry)
{
	if (entry->send.allocation != 0) {
		h->flags |= DDP_HEADER_SEND_SHARED;
		h->send = entry->send;
	}
	if (entry->recv.allocation != 0) {
		h->flags |= DDP_HEADER_RECV_SHARED;
		h->recv = entry->recv;
	}
}

static void post_header(ddp_comm *comm, const ddp_collective *c, const ddp_entry *entry)
{
	ddp_header *h = header_slot(comm, comm->node.self);
	bool reduces = ddp_kind_reduces(c->kind);

	h->kind = (uint8_t)c->kind;
	h->type = c->kind == DDP_BARRIER ? 0 : (uint8_t)c->type;
	h->op = reduces ? (uint8_t)c->op : 0;
	h->form = c->counts != NULL ? DDP_HEADER_VECTOR : 0;
	h->root = ddp_kind_has_root(c->kind) ? c->root : 0;
	h->count = c->counts != NULL || c->kind == DDP_BARRIER ? 0 : c->count;
	h->counts_hash = hash_counts(comm, c);
	comm->past[comm->sequence % DDP_PAST] = (ddp_fingerprint){
		.kind = h->kind, .type = h->type, .op = h->op, .form = h->form, .root = h->root,
		.count = h->count, .counts_hash = h->counts_hash,
	};
	h->flags = 0;
	if (entry->payload_bytes > DDP_INLINE_BYTES)
		memcpy(payload_slot(comm, comm->node.self, comm->sequence), entry->payload, entry->payload_bytes);
	else if (entry->payload_bytes > 0)
		memcpy(h->inlined, entry->payload, entry->payload_bytes);
	else
		set_memory(h, entry);
	if (entry->largest_block != 0) {
		h->flags |= DDP_HEADER_BLOCK;
		h->largest_block = entry->largest_block;
	}
	if (reduces && c->scale != 1) {
		h->flags |= DDP_HEADER_SCALED;
		h->scale = c->scale;
	}
	publish(comm, &h->sequence, comm->sequence, DDP_SLEEPS_FOR_HEADERS);
}

int ddp_node_lagging(const ddp_comm *comm, uint32_t event, uint64_t until)
{
	const ddp_node *node = &comm->node;

	for (int i = 0; i < node->size; i++) {
		const ddp_node_rank *rank = &node->shared->ranks[i];
		uint64_t at = event == DDP_SLEEPS_FOR_HEADERS
			? atomic_load(&rank->header[until & 1].sequence)
			: atomic_load(&rank->step);
		if (at < until)
			return node->ranks[i];
	}
	return DDP_NOBODY;
}

static int missing_headers(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return ddp_node_lagging(comm, DDP_SLEEPS_FOR_HEADERS, comm->sequence);
}

static void describe_header(const ddp_header *h, char *text, size_t bytes)
{
	static const size_t by_counts[1];
	const ddp_collective c = {
		.kind = (ddp_kind)h->kind, .type = (ddp_type)h->type, .op = (ddp_op)h->op,
		.root = h->root, .count = h->count,
		.counts = h->form == DDP_HEADER_VECTOR ? by_counts : NULL,
	};

	ddp_collective_describe(&c, text, bytes);
}

static bool same_operation(const ddp_header *a, const ddp_header *b)
{
	return a->operation[0] == b->operation[0] && a->operation[1] == b->operation[1] &&
	       a->counts_hash == b->counts_hash;
}

static ddp_status differ(ddp_comm *comm, int i)
{
	const ddp_header *mine = header_slot(comm, comm->node.self), *other = header_slot(comm, i);
	char texts[2][128];

	describe_header(mine, texts[0], sizeof(texts[0]));
	describe_header(other, texts[1], sizeof(texts[1]));
	return ddp_comm_break(comm, DDP_ERR_MISMATCH, comm->node.ranks[i],
	                      "operation #%llu differs: %s issued %s, but %s issued %s%s",
	                      (unsigned long long)comm->sequence, ddp_rank_text(comm, comm->rank),
	                      texts[0], ddp_rank_text(comm, comm->node.ranks[i]), texts[1],
	                      mine->counts_hash != other->counts_hash ? " (with other counts)" : "");
}

static ddp_status compare_headers(ddp_comm *comm)
{
	const ddp_header *mine = header_slot(comm, comm->node.self);

	for (int i = 0; i < comm->node.size; i++) {
		if (!same_operation(mine, header_slot(comm, i)))
			return differ(comm, i);
	}
	return DDP_OK;
}

/* Waits until all ranks have come. */
static ddp_status await_all(ddp_comm *comm, const ddp_condition *all)
{
	ddp_status status = ddp_comm_await(comm, all);

	if (status == DDP_OK && comm->net == NULL)
		ddp_node_wake_late(comm, all->sleeps_for);
	return status;
}

static inline void prefetch_to_write(char *line)
{
#ifdef __x86_64__ /* whose compilers give an ordinary prefetch unless told otherwise */
	__asm__ volatile("prefetchw %0" : : "m"(*line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* Programs repeat operations. The lines that the next payload of this size
   would be written to come over while this one is worked on, instead of holding
   up the next header, which is stored after them. Nobody reads them any more. */
static void fetch_next_slot(const ddp_comm *comm, size_t bytes)
{
	char *slot = payload_slot(comm, comm->node.self, comm->sequence + 1);

	if (bytes <= DDP_INLINE_BYTES || comm->crowded)
		return;
	for (size_t i = 0; i < bytes; i += 64)
		prefetch_to_write(slot + i);
}

ddp_status ddp_node_enter(ddp_comm *comm, const ddp_collective *c, const ddp_entry *entry)
{
	const ddp_condition all = { .missing = missing_headers, .until = comm->sequence,
	                            .sleeps_for = DDP_SLEEPS_FOR_HEADERS };
	ddp_status status;

	post_header(comm, c, entry);
	if ((status = await_all(comm, &all)) != DDP_OK ||
	    (status = compare_headers(comm)) != DDP_OK)
		return status;
	/* Small operations carry their data with them. */
	if (entry->payload == NULL)
		return ddp_memory_check(comm);
	fetch_next_slot(comm, entry->payload_bytes);
	return DDP_OK;
}

/* ---- steps --------------------------------------------------------------------- */

void ddp_node_post_step(ddp_comm *comm)
{
	ddp_node *node = &comm->node;

	node->step++;
	publish(comm, &node->shared->ranks[node->self].step, node->step, DDP_SLEEPS_FOR_STEPS);
}

static int missing_steps(ddp_comm *comm, const void *argument)
{
	(void)argument;
	return ddp_node_lagging(comm, DDP_SLEEPS_FOR_STEPS, comm->node.step);
}

ddp_status ddp_node_wait_steps(ddp_comm *comm)
{
	const ddp_condition all = { .missing = missing_steps, .until = comm->node.step,
	                       .sleeps_for = DDP_SLEEPS_FOR_STEPS };

	return await_all(comm, &all);
}

ddp_status ddp_node_step(ddp_comm *comm)
{
	ddp_node_post_step(comm);
	return ddp_node_wait_steps(comm);
}
