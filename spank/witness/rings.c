/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/witness/rings.h"

#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ddp.h"
#include "spank/wire/progress_page.h"

_Static_assert(sizeof(struct ddp_record_entry) == DDP_RECORD_ENTRY_BYTES, "an entry has its size");

enum { TASKS_MAX = 65536 };

static bool read_all(const struct rings_source *source, void *memory, size_t bytes, uint64_t offset)
{
	if (offset > source->bytes || bytes > source->bytes - offset)
		return false;
	if (source->file >= 0)
		return pread(source->file, memory, bytes, (off_t)offset) == (ssize_t)bytes;
	memcpy(memory, source->memory + offset, bytes);
	return true;
}

/* The slots whose rings have entries, as a mask. */
static unsigned int used_rings(const struct rings_source *source, uint64_t area)
{
	struct ddp_record_head heads[DDP_PROGRESS_SLOTS];
	unsigned int used = 0;

	if (!read_all(source, heads, sizeof(heads), area))
		return 0;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++)
		if (heads[i].magic == DDP_RECORD_MAGIC && heads[i].version == DDP_RECORD_VERSION && heads[i].next != 0)
			used |= 1u << i;
	return used;
}

static void copy_rings(struct rings *rings, const struct rings_source *source, uint64_t area)
{
	const unsigned int used = used_rings(source, area);
	char *memory;

	rings->bytes = (size_t)__builtin_popcount(used) * 2 * DDP_RECORD_RING_BYTES;
	if (rings->bytes == 0)
		return;
	memory = mmap(NULL, rings->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		rings->bytes = 0;
		return;
	}
	rings->memory = memory;
	for (int i = 0; i < DDP_PROGRESS_SLOTS; i++) {
		const uint64_t offset = area + DDP_RECORD_HEADS_BYTES + (uint64_t)i * DDP_RECORD_RING_BYTES;
		if ((used >> i & 1) == 0)
			continue;
		if (read_all(source, memory, DDP_RECORD_RING_BYTES, offset) &&
		    read_all(source, memory + DDP_RECORD_RING_BYTES, DDP_RECORD_RING_BYTES, offset))
			rings->ring[rings->count++] = (struct ring){ .slot = i, .first = (const void *)memory,
				.second = (const void *)(memory + DDP_RECORD_RING_BYTES) };
		memory += (ptrdiff_t)2 * DDP_RECORD_RING_BYTES;
	}
}

/* An older plugin's file has pages only. */
static uint32_t tasks_of(const struct rings_source *source)
{
	struct ddp_record_place place;

	if (source->tasks != 0)
		return source->tasks;
	if (source->bytes < DDP_RECORD_PLACE_BYTES ||
	    !read_all(source, &place, sizeof(place), source->bytes - DDP_RECORD_PLACE_BYTES) ||
	    place.magic != DDP_RECORD_MAGIC || place.version != DDP_RECORD_VERSION)
		return 0;
	return place.tasks;
}

bool rings_copy(struct rings *rings, const struct rings_source *source, uint32_t task)
{
	const uint32_t tasks = tasks_of(source);

	*rings = (struct rings){ .count = 0 };
	if (task >= TASKS_MAX ||
	    !read_all(source, rings->slots, sizeof(rings->slots), (uint64_t)task * DDP_PROGRESS_BYTES))
		return false;
	if (task < tasks && tasks <= TASKS_MAX && source->bytes == DDP_RECORD_FILE_BYTES(tasks))
		copy_rings(rings, source, DDP_RECORD_AREA_OFFSET(tasks, task));
	return true;
}

void rings_free(struct rings *rings)
{
	if (rings->memory != NULL)
		munmap(rings->memory, rings->bytes);
	*rings = (struct rings){ .count = 0 };
}

static bool is_same(const struct ddp_record_entry *a, const struct ddp_record_entry *b)
{
	struct ddp_record_entry ended = *a;

	ended.end_ns = b->end_ns;
	ended.state = b->state;
	return a->end_ns == b->end_ns ? memcmp(a, b, sizeof(*a)) == 0
	                              : a->end_ns == 0 && memcmp(&ended, b, sizeof(ended)) == 0;
}

bool rings_entry(const struct ring *ring, uint32_t index, struct ddp_record_entry *entry)
{
	const struct ddp_record_entry *first = &ring->first[index % DDP_RECORD_ENTRIES],
	                              *second = &ring->second[index % DDP_RECORD_ENTRIES];

	if (first->sequence == 0 || first->sequence % DDP_RECORD_ENTRIES != index % DDP_RECORD_ENTRIES ||
	    !is_same(first, second))
		return false;
	*entry = *second;
	entry->name[sizeof(entry->name) - 1] = '\0';
	entry->where[sizeof(entry->where) - 1] = '\0';
	return true;
}

/* ---- as text ---- */

enum { LINE_FORMAT = 1 };

/* Untrusted bytes up to a NUL, as a string of JSON. */
static void add_string(struct sink *sink, const char *text, size_t size)
{
	sink_add(sink, "\"");
	for (size_t i = 0; i < size && text[i] != '\0' && !sink->full; i++) {
		const char c = text[i];
		if (c == '\n')
			sink_add(sink, "\\n");
		else if (c == '"' || c == '\\')
			sink_add(sink, "\\%c", c);
		else
			sink_add(sink, "%c", isascii((unsigned char)c) && isprint((unsigned char)c) ? c : '?');
	}
	sink_add(sink, "\"");
}

static const char *kind_name(uint8_t kind)
{
	static const char *const names[] = {
		[DDP_ALL_REDUCE] = "all_reduce", [DDP_REDUCE] = "reduce", [DDP_BROADCAST] = "broadcast",
		[DDP_REDUCE_SCATTER] = "reduce_scatter", [DDP_ALL_GATHER] = "all_gather", [DDP_GATHER] = "gather",
		[DDP_SCATTER] = "scatter", [DDP_ALL_TO_ALL] = "all_to_all", [DDP_SEND] = "send", [DDP_RECV] = "recv",
		[DDP_BARRIER] = "barrier",
	};

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

static const char *type_name(uint8_t type)
{
	static const char *const names[] = {
		[DDP_F32] = "f32", [DDP_F64] = "f64", [DDP_F16] = "f16", [DDP_BF16] = "bf16", [DDP_I32] = "i32",
		[DDP_I64] = "i64", [DDP_U8] = "u8", [DDP_I8] = "i8", [DDP_BOOL] = "bool",
	};

	return type < sizeof(names) / sizeof(names[0]) ? names[type] : "";
}

static const char *op_name(uint8_t op)
{
	static const char *const names[] = {
		[DDP_SUM] = "sum", [DDP_AVG] = "avg", [DDP_PROD] = "prod", [DDP_MIN] = "min", [DDP_MAX] = "max",
		[DDP_BAND] = "band", [DDP_BOR] = "bor", [DDP_BXOR] = "bxor",
	};

	return op < sizeof(names) / sizeof(names[0]) ? names[op] : "";
}

static const char *writer_name(uint32_t writer)
{
	static const char *const names[] = {
		[DDP_WRITER_LIBDDP] = "libddp", [DDP_WRITER_NCCL] = "nccl", [DDP_WRITER_PYTHON] = "python",
	};

	return writer < sizeof(names) / sizeof(names[0]) ? names[writer] : "unknown";
}

/* An operation is an array: a ring of objects would be four times as long. `columns` of the line names the elements. */
static const char columns[] =
	"\"number\",\"group\",\"lane\",\"kind\",\"type\",\"count\",\"op\",\"peer\",\"tag\",\"ranks\",\"flags\","
	"\"begin_ns\",\"end_ns\",\"state\",\"where\"";

/* Readers of JSON know signed numbers of 64 bits. */
static uint64_t limited(uint64_t value)
{
	return value < INT64_MAX ? value : INT64_MAX;
}

static void add_entry(struct sink *sink, const struct ddp_record_entry *e)
{
	sink_add(sink, "[%" PRIu64 ",\"%" PRIx64 "\",%u,", limited(e->number), e->group, e->lane);
	if (e->kind == DDP_RECORD_NAMED)
		add_string(sink, e->name, sizeof(e->name));
	else
		sink_add(sink, "\"%s\"", kind_name(e->kind));
	/* A type without a number stands behind the kind's name. */
	if (e->type == DDP_RECORD_NAMED && e->kind != DDP_RECORD_NAMED) {
		const char *type = memchr(e->name, ' ', strnlen(e->name, sizeof(e->name)));
		sink_add(sink, ",");
		add_string(sink, type != NULL ? type + 1 : "", sizeof(e->name));
	} else {
		sink_add(sink, ",\"%s\"", type_name(e->type));
	}
	sink_add(sink, ",%" PRIu64 ",\"%s\",%d,%u,%u,%u,%" PRIu64 ",%" PRIu64 ",%u,", limited(e->count), op_name(e->op),
	         (int)e->peer, e->tag, e->ranks, e->flags, limited(e->begin_ns), limited(e->end_ns), e->state);
	add_string(sink, e->where, sizeof(e->where));
	sink_add(sink, "]");
}

static void add_ring(struct sink *sink, const struct ring *ring, const struct ddp_progress *slot)
{
	const char *comma = "";

	sink_add(sink, "{\"writer\":\"%s\",\"pid\":%u,\"closed\":%s,\"operations\":[", writer_name(slot->writer), slot->pid,
	         slot->closed == 1 ? "true" : "false");
	for (uint32_t i = 0; i < DDP_RECORD_ENTRIES; i++) {
		struct ddp_record_entry entry;
		if (!rings_entry(ring, i, &entry))
			continue;
		sink_add(sink, "%s", comma);
		add_entry(sink, &entry);
		comma = ",";
	}
	sink_add(sink, "]}");
}

static void add_doing(struct sink *sink, const struct record_rank *rank)
{
	struct ddp_progress page;
	struct progress_text progress;
	char text[1024];
	struct sink sentence = sink_on(text, sizeof(text));

	slots_read(rank->rings->slots, &page);
	progress_text_read(&page, rank->now_ns, &progress);
	progress_text_add(&sentence, &progress);
	sink_add(sink, ",\"doing\":");
	add_string(sink, text, sizeof(text));
	sink_add(sink, ",\"error\":");
	add_string(sink, progress.known ? progress.error : "", sizeof(progress.error));
	sink_add(sink, ",\"phase\":\"%s\",\"training_step\":%" PRId64,
	         progress.known ? progress_phase_name(progress.phase) : "", progress.known ? progress.step : (int64_t)0);
}

void record_text(struct sink *sink, const struct record_rank *rank)
{
	sink_add(sink, "{\"format\":\"slurm-ddp record\",\"version\":%d,\"reason\":\"%s\",\"job\":%u,\"step\":%u,"
	         "\"generation\":%u,\"rank\":%u,\"world_size\":%u,\"node\":", LINE_FORMAT, rank->reason, rank->job, rank->step,
	         rank->generation, rank->rank, rank->world_size);
	add_string(sink, rank->node, 256);
	sink_add(sink, ",\"pid\":%" PRId64 ",\"now_ns\":%" PRIu64 ",\"real_ns\":%" PRIu64 ",\"end\":", rank->pid, rank->now_ns,
	         rank->real_ns);
	add_string(sink, rank->end != NULL ? rank->end : "", 256);
	add_doing(sink, rank);
	sink_add(sink, ",\"columns\":[%s],\"rings\":[", columns);
	for (int i = 0; i < rank->rings->count; i++) {
		const struct ring *ring = &rank->rings->ring[i];
		sink_add(sink, "%s", i > 0 ? "," : "");
		add_ring(sink, ring, &rank->rings->slots[ring->slot]);
	}
	sink_add(sink, "],\"threads\":");
	add_string(sink, rank->threads != NULL ? rank->threads : "", RECORD_STACKS_MAX);
	sink_add(sink, "}\n");
}
