/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/differences.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/statistics.h"

static const double MEMORY_LEAST = 0.95; /* as a share of the others' */

enum { VALUE = 96, SUBJECT = 160 };

static const int64_t MIB = 1 << 20, SHM_OF_A_RANK = 64, MEMLOCK_LEAST = 64;

/* The check compares one topic after the other. */
struct topic {
	const char *name, *about;
	bool of_nodes;   /* the first rank of each node speaks for it */
	bool of_a_kind;  /* only nodes of the same processor are compared */
	/* Writes the value; false: it is not known. */
	bool (*tell)(const struct preflight_facts *facts, char *value);
	size_t offset;   /* of a word, for tell_word() */
	bool remark;     /* a difference is only a remark */
};

static void tell_bytes(char *value, int64_t bytes)
{
	if (bytes == PREFLIGHT_UNLIMITED)
		snprintf(value, VALUE, "unlimited");
	else if (bytes >= 10 * 1024 * MIB)
		snprintf(value, VALUE, "%" PRId64 " GiB", bytes / (1024 * MIB));
	else if (bytes >= 10 * MIB)
		snprintf(value, VALUE, "%" PRId64 " MiB", bytes / MIB);
	else
		snprintf(value, VALUE, "%" PRId64 " KiB", bytes / 1024);
}

static bool tell_number(char *value, int64_t number)
{
	if (number == PREFLIGHT_UNLIMITED)
		snprintf(value, VALUE, "unlimited");
	else
		snprintf(value, VALUE, "%" PRId64, number);
	return true;
}

static bool tell_processors(const struct preflight_facts *facts, char *value)
{
	return tell_number(value, facts->processors);
}

static bool tell_shm(const struct preflight_facts *facts, char *value)
{
	tell_bytes(value, facts->shm_bytes);
	return true;
}

static bool tell_memlock(const struct preflight_facts *facts, char *value)
{
	tell_bytes(value, facts->memlock);
	return true;
}

static bool tell_nofile(const struct preflight_facts *facts, char *value)
{
	return tell_number(value, facts->nofile);
}

static bool tell_cpus(const struct preflight_facts *facts, char *value)
{
	return tell_number(value, facts->cpus);
}

static bool tell_threads(const struct preflight_facts *facts, char *value)
{
	return tell_number(value, facts->threads);
}

static bool tell_gpu_memory(const struct preflight_facts *facts, char *value)
{
	tell_bytes(value, facts->gpu_memory_bytes);
	return facts->gpu_memory_bytes > 0;
}

/* Some GPUs come with a lower clock than their highest, so only differences are odd. */
static bool tell_gpu_clock(const struct preflight_facts *facts, char *value)
{
	snprintf(value, VALUE, "%" PRId64 " MHz", facts->gpu_clock_mhz);
	return facts->gpu_clock_mhz > 0;
}

#define WORD(field) .tell = NULL, .offset = offsetof(struct preflight_facts, field)

static const struct topic topics[] = {
	{ "the kernel", "version", true, false, WORD(kernel), false },
	{ "glibc", "version", false, false, WORD(glibc), false },
	{ "libddp", "version", false, false, WORD(libddp), false },
	{ "UCX", "version", false, false, WORD(ucx), false },
	{ "the GPU's driver", "version", true, false, WORD(driver), false },
	{ "NCCL", "version", false, false, WORD(nccl), false },
	{ "the processor", "version", true, false, WORD(processor), true },
	{ "the number of processors", "version", true, true, .tell = tell_processors, 0, false },
	{ "the size of /dev/shm", "limit", true, true, .tell = tell_shm, 0, false },
	{ "the limit of locked memory (memlock)", "limit", false, false, .tell = tell_memlock, 0, false },
	{ "the limit of open files (nofile)", "limit", false, false, .tell = tell_nofile, 0, false },
	{ "the number of CPUs to which a rank is bound", "binding", false, true, .tell = tell_cpus, 0, false },
	{ "the number of threads (OMP_NUM_THREADS)", "binding", false, true, .tell = tell_threads, 0, false },
	{ "the GPU", "gpu", false, false, WORD(gpu), false },
	{ "the memory of the GPU", "gpu", false, true, .tell = tell_gpu_memory, 0, false },
	{ "the clock of the GPU (for applications)", "gpu", false, true, .tell = tell_gpu_clock, 0, false },
};

/* The value as text; "" is one, too: what a node lacks and others have. */
static void value_of(const struct topic *topic, const struct preflight_facts *facts, char value[VALUE])
{
	if (topic->tell == NULL) {
		const char *word = (const char *)facts + topic->offset;
		snprintf(value, VALUE, "%s", word[0] != '\0' ? word : "none");
	} else if (!topic->tell(facts, value)) {
		snprintf(value, VALUE, "none");
	}
}

/* Whether it speaks for itself or its node. */
static bool speaks(const struct topic *topic, const struct preflight_facts *facts)
{
	return !topic->of_nodes || facts->local_rank == 0;
}

static bool is_comparable(const struct topic *topic, const struct preflight_facts *a, const struct preflight_facts *b)
{
	return speaks(topic, a) && speaks(topic, b) && (!topic->of_a_kind || strcmp(a->processor, b->processor) == 0);
}

struct count {
	int all, same;
};

/* With how many a rank is compared, and how many of these have the same value; it is one of both. */
static struct count count(const struct topic *topic, const struct preflight_facts *facts, const char (*values)[VALUE], int ranks,
                          int rank)
{
	struct count c = { 0, 0 };

	for (int r = 0; r < ranks; r++) {
		if (!is_comparable(topic, &facts[r], &facts[rank]))
			continue;
		c.all++;
		c.same += strcmp(values[r], values[rank]) == 0;
	}
	return c;
}

/* A rank that has what more than half have; -1: there is no such value. */
static int usual_of(const struct topic *topic, const struct preflight_facts *facts, const char (*values)[VALUE], int ranks, int rank)
{
	for (int r = 0; r < ranks; r++) {
		struct count c;
		if (!is_comparable(topic, &facts[r], &facts[rank]))
			continue;
		c = count(topic, facts, values, ranks, r);
		if (2 * c.same > c.all)
			return r;
		/* The first half has one of them. */
	}
	return -1;
}

/* Whether an earlier rank of the same node has the same value, so that it was said. */
static bool was_said(const struct topic *topic, const struct preflight_facts *facts, const char (*values)[VALUE], int rank,
                     bool of_any_node)
{
	for (int r = 0; r < rank; r++)
		if (is_comparable(topic, &facts[r], &facts[rank]) && strcmp(values[r], values[rank]) == 0 &&
		    (of_any_node || facts[r].node == facts[rank].node))
			return true;
	return false;
}

/* "n1", "rank 3 on n1", or "2 ranks on n1 (the first is rank 3)" */
static void subject_of(const struct topic *topic, const struct preflight_facts *facts, const char (*values)[VALUE], int ranks,
                       int rank, char subject[SUBJECT])
{
	int same = 0, all = 0;

	for (int r = 0; r < ranks; r++) {
		if (facts[r].node != facts[rank].node)
			continue;
		all++;
		same += strcmp(values[r], values[rank]) == 0;
	}
	if (topic->of_nodes || (same == all && all > 1))
		snprintf(subject, SUBJECT, "%s", facts[rank].node_name);
	else if (same == 1)
		snprintf(subject, SUBJECT, "rank %d on %s", rank, facts[rank].node_name);
	else
		snprintf(subject, SUBJECT, "%d ranks on %s (the first is rank %d)", same, facts[rank].node_name, rank);
}

static void say_odd(struct preflight_findings *findings, const struct topic *topic, const struct preflight_facts *facts,
                    const char (*values)[VALUE], int ranks, int rank, int usual)
{
	const struct preflight_finding f = { .odd = !topic->remark, .about = topic->about, .node = facts[rank].node,
		                             .rank = topic->of_nodes ? -1 : rank, .peer = -1 };
	char subject[SUBJECT];

	subject_of(topic, facts, values, ranks, rank, subject);
	preflight_find(findings, &f, "%s: %s is %s, and others have %s", subject, topic->name, values[rank], values[usual]);
}

/* Nobody can say which value is right. */
static void say_split(struct preflight_findings *findings, const struct topic *topic, const struct preflight_facts *facts,
                      const char (*values)[VALUE], int ranks, int rank)
{
	const struct preflight_finding f = { .odd = !topic->remark, .about = topic->about, .node = -1, .rank = -1, .peer = -1 };
	char list[PREFLIGHT_TEXT - 80] = "";
	size_t used = 0;

	for (int r = 0; r < ranks && used < sizeof(list); r++) {
		char subject[SUBJECT];
		if (!is_comparable(topic, &facts[r], &facts[rank]) || was_said(topic, facts, values, r, true))
			continue;
		subject_of(topic, facts, values, ranks, r, subject);
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s on %s", used > 0 ? ", " : "", values[r],
		                         subject);
	}
	preflight_find(findings, &f, "%s differs: %s", topic->name, list);
}

static void compare(struct preflight_findings *findings, const struct topic *topic, const struct preflight_facts *facts,
                    char (*values)[VALUE], int ranks)
{
	for (int r = 0; r < ranks; r++)
		value_of(topic, &facts[r], values[r]);
	for (int r = 0; r < ranks; r++) {
		int usual;
		if (!speaks(topic, &facts[r]) || was_said(topic, facts, (const char(*)[VALUE])values, r, false))
			continue;
		struct count c = count(topic, facts, (const char(*)[VALUE])values, ranks, r);
		if (2 * c.same > c.all)
			continue;
		usual = usual_of(topic, facts, (const char(*)[VALUE])values, ranks, r);
		if (usual >= 0) {
			say_odd(findings, topic, facts, (const char(*)[VALUE])values, ranks, r, usual);
			continue;
		}
		/* It is said once, by the first that is compared with it. */
		bool first = true;
		for (int q = 0; q < r; q++)
			first = first && !is_comparable(topic, &facts[q], &facts[r]);
		if (first)
			say_split(findings, topic, facts, (const char(*)[VALUE])values, ranks, r);
	}
}

/* ---- what is wrong by itself ---- */

static int ranks_of_node(const struct preflight_facts *facts, int ranks, int node)
{
	int count = 0;

	for (int r = 0; r < ranks; r++)
		count += facts[r].node == node;
	return count;
}

static void look_at_shm(struct preflight_findings *findings, const struct preflight_facts *f, int local)
{
	const struct preflight_finding odd = { .odd = true, .about = "limit", .node = f->node, .rank = -1, .peer = -1,
		                               .value = (double)f->shm_free_bytes };
	char has[VALUE], wants[VALUE];

	if (f->shm_free_bytes >= SHM_OF_A_RANK * MIB * local)
		return;
	tell_bytes(has, f->shm_free_bytes);
	tell_bytes(wants, SHM_OF_A_RANK * MIB * local);
	preflight_find(findings, &odd, "%s: /dev/shm has %s free, and %d ranks may need %s", f->node_name, has, local, wants);
}

static void look_at_memlock(struct preflight_findings *findings, const struct preflight_facts *f)
{
	const struct preflight_finding odd = { .odd = true, .about = "limit", .node = f->node, .rank = f->rank, .peer = -1,
		                               .value = (double)f->memlock };
	char has[VALUE];

	if (f->memlock == PREFLIGHT_UNLIMITED || !f->has_rdma || f->memlock >= MEMLOCK_LEAST * MIB)
		return;
	tell_bytes(has, f->memlock);
	preflight_find(findings, &odd,
	               "%s: the limit of locked memory (memlock) is %s, and InfiniBand needs more: set LimitMEMLOCK=infinity for slurmd",
	               f->node_name, has);
}

static void look_at_gpu(struct preflight_findings *findings, const struct preflight_facts *f)
{
	struct preflight_finding odd = { .odd = true, .about = "binding", .node = f->node, .rank = f->rank, .peer = -1 };

	if (f->gpu_numa >= 0 && f->gpu_numa < 64 && f->numa != 0 && (f->numa >> f->gpu_numa & 1) == 0)
		preflight_find(findings, &odd, "rank %d on %s: its CPUs are not of NUMA node %" PRId64 ", which its GPU %s is of",
		               f->rank, f->node_name, f->gpu_numa, f->gpu_bus);
	odd.about = "gpu";
	if (f->gpu_ecc_errors > 0)
		preflight_find(findings, &odd, "rank %d on %s: its GPU %s has counted %" PRId64 " uncorrected memory errors (ECC)",
		               f->rank, f->node_name, f->gpu_bus, f->gpu_ecc_errors);
	if (f->gpu_throttled != 0)
		preflight_find(findings, &odd,
		               "rank %d on %s: its GPU %s slows its clock, because of heat or power (reasons 0x%" PRIx64 ")", f->rank,
		               f->node_name, f->gpu_bus, (uint64_t)f->gpu_throttled);
}

/* How many ranks of the node are bound to exactly the same CPUs. */
static int sharers(const struct preflight_facts *facts, int ranks, const struct preflight_facts *f)
{
	int count = 0;

	for (int r = 0; r < ranks; r++)
		count += facts[r].node == f->node && facts[r].cpu_sum == f->cpu_sum && facts[r].cpus == f->cpus;
	return count;
}

/* Ranks that share a CPU are odd if most ranks do not; otherwise it is a remark. */
static void look_at_sharing(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks)
{
	int oversubscribed = 0;

	for (int r = 0; r < ranks; r++)
		oversubscribed += sharers(facts, ranks, &facts[r]) > facts[r].cpus;
	for (int r = 0; r < ranks; r++) {
		const struct preflight_facts *f = &facts[r];
		bool first = true;
		int count = sharers(facts, ranks, f);
		for (int q = 0; q < r; q++)
			first = first && !(facts[q].node == f->node && facts[q].cpu_sum == f->cpu_sum);
		if (count <= f->cpus || !first)
			continue;
		const struct preflight_finding odd = { .odd = 2 * oversubscribed < ranks, .about = "binding",
			                                       .node = f->node, .rank = r,
			                               .peer = -1, .value = count, .usual = (double)f->cpus };
		preflight_find(findings, &odd, "%d ranks on %s (the first is rank %d) share %" PRId64 " CPU%s", count, f->node_name, r,
		               f->cpus, f->cpus == 1 ? "" : "s");
	}
}

/* A node that has less memory than others of its processor has perhaps lost a module. */
static void look_at_memory(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks, double *values)
{
	for (int r = 0; r < ranks; r++) {
		const struct preflight_facts *f = &facts[r];
		char has[VALUE], others[VALUE];
		double usual;
		int count = 0;
		for (int q = 0; f->local_rank == 0 && q < ranks; q++)
			if (facts[q].local_rank == 0 && strcmp(facts[q].processor, f->processor) == 0)
				values[count++] = (double)facts[q].memory_bytes;
		usual = preflight_median(values, count);
		if (count == 0 || (double)f->memory_bytes >= MEMORY_LEAST * usual)
			continue;
		const struct preflight_finding odd = { .odd = true, .about = "memory", .node = f->node, .rank = -1, .peer = -1,
			                               .value = (double)f->memory_bytes, .usual = usual };
		tell_bytes(has, f->memory_bytes);
		tell_bytes(others, (int64_t)usual);
		preflight_find(findings, &odd, "%s: it has %s of memory, and others with this processor have %s", f->node_name, has,
		               others);
	}
}

void preflight_differences(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks)
{
	char(*values)[VALUE] = malloc((size_t)ranks * sizeof(*values));

	for (size_t i = 0; values != NULL && i < sizeof(topics) / sizeof(topics[0]); i++)
		compare(findings, &topics[i], facts, values, ranks);
	free(values);
	double *numbers = malloc((size_t)ranks * sizeof(*numbers));
	if (numbers != NULL)
		look_at_memory(findings, facts, ranks, numbers);
	free(numbers);
	for (int r = 0; r < ranks; r++) {
		const struct preflight_facts *f = &facts[r];
		if (f->local_rank == 0) {
			look_at_shm(findings, f, ranks_of_node(facts, ranks, f->node));
			look_at_memlock(findings, f);
		}
		look_at_gpu(findings, f);
	}
	look_at_sharing(findings, facts, ranks);
}
