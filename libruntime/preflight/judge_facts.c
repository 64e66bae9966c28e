/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/judge_facts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/statistics.h"

static const double MEMORY_LEAST = 0.95; /* as a share of the others' */

enum { VALUE = 96 };

static const int64_t MIB = 1 << 20, SHM_OF_A_RANK = 64, MEMLOCK_LEAST = 64;

/* The check compares one topic after the other. */
struct topic {
	const char *name, *about;
	bool of_a_kind;  /* only ranks on the same processor are compared */
	bool of_node;    /* all ranks of a node have the same, so that one of them has a vote */
	enum { WORD, NUMBER, BYTES, MHZ } type;
	size_t offset;   /* of the value in the facts: an array of characters, or int64_t */
	bool remark;     /* a difference is only a remark */
};

#define AT(field) offsetof(struct preflight_facts, field)

/* Some GPUs come with a lower clock than their highest, so only a difference of clocks is odd. */
static const struct topic topics[] = {
	{ "the kernel", "version", false, true, WORD, AT(kernel), false },
	{ "glibc", "version", false, false, WORD, AT(glibc), false },
	{ "libddp", "version", false, false, WORD, AT(libddp), false },
	{ "UCX", "version", false, false, WORD, AT(ucx), false },
	{ "the GPU's driver", "version", false, true, WORD, AT(driver), false },
	{ "NCCL", "version", false, false, WORD, AT(nccl), false },
	{ "the processor", "version", false, true, WORD, AT(processor), true },
	{ "the number of processors", "version", true, true, NUMBER, AT(processors), false },
	{ "the size of /dev/shm", "limit", true, true, BYTES, AT(shm_bytes), false },
	{ "the limit of locked memory (memlock)", "limit", false, false, BYTES, AT(memlock), false },
	{ "the limit of open files (nofile)", "limit", false, false, NUMBER, AT(nofile), false },
	{ "the number of CPUs to which a rank is bound", "binding", true, false, NUMBER, AT(cpus), false },
	{ "the number of threads (OMP_NUM_THREADS)", "binding", true, false, NUMBER, AT(threads), false },
	{ "the GPU", "gpu", false, false, WORD, AT(gpu), false },
	{ "the memory of the GPU", "gpu", true, false, BYTES, AT(gpu_memory_bytes), false },
	{ "the clock of the GPU (for applications)", "gpu", true, false, MHZ, AT(gpu_clock_mhz), false },
};

static void tell_bytes(char *value, int64_t bytes)
{
	if (bytes >= 10 * 1024 * MIB)
		snprintf(value, VALUE, "%" PRId64 " GiB", bytes / (1024 * MIB));
	else if (bytes >= 10 * MIB)
		snprintf(value, VALUE, "%" PRId64 " MiB", bytes / MIB);
	else
		snprintf(value, VALUE, "%" PRId64 " KiB", bytes / 1024);
}

/* The value as text. "none" is one, too: what a node lacks and others have. */
static void value_of(const struct topic *topic, const struct preflight_facts *facts, char value[VALUE])
{
	const char *field = (const char *)facts + topic->offset;
	int64_t number = 0;

	if (topic->type != WORD)
		memcpy(&number, field, sizeof(number));
	if (topic->type == WORD ? field[0] == '\0' : topic->type != NUMBER && number == 0)
		snprintf(value, VALUE, "none");
	else if (topic->type == WORD)
		snprintf(value, VALUE, "%s", field);
	else if (number == PREFLIGHT_UNLIMITED)
		snprintf(value, VALUE, "unlimited");
	else if (topic->type == BYTES)
		tell_bytes(value, number);
	else
		snprintf(value, VALUE, "%" PRId64 "%s", number, topic->type == MHZ ? " MHz" : "");
}

static bool is_comparable(const struct topic *topic, const struct preflight_facts *a, const struct preflight_facts *b)
{
	return !topic->of_a_kind || strcmp(a->processor, b->processor) == 0;
}

static bool has_vote(const struct topic *topic, const struct preflight_facts *facts, int r, int rank)
{
	return is_comparable(topic, &facts[r], &facts[rank]) && (!topic->of_node || facts[r].local_rank == 0);
}

static bool is_same(const char (*values)[VALUE], int a, int b)
{
	return strcmp(values[a], values[b]) == 0;
}

/* Returns a rank whose value more than half of the voters have that are compared with `rank`; -1: no value has so
   many. */
static int usual_of(const struct topic *topic, const struct preflight_facts *facts, const char (*values)[VALUE],
                    int ranks, int rank)
{
	int usual = -1, votes = 0, all = 0, same = 0;

	/* Each value's votes are for it and against the others. Only one that has more than half is sure to be left. */
	for (int r = 0; r < ranks; r++) {
		if (!has_vote(topic, facts, r, rank))
			continue;
		if (votes == 0)
			usual = r;
		votes += is_same(values, r, usual) ? 1 : -1;
	}
	for (int r = 0; r < ranks; r++) {
		if (!has_vote(topic, facts, r, rank))
			continue;
		all++;
		same += is_same(values, r, usual);
	}
	return 2 * same > all ? usual : -1;
}

/* Whether all ranks of its node have the rank's value. */
static bool is_of_node(const struct preflight_facts *facts, const char (*values)[VALUE], int ranks, int rank)
{
	for (int r = 0; r < ranks; r++)
		if (facts[r].node == facts[rank].node && !is_same(values, r, rank))
			return false;
	return true;
}

/* A node is named once for each value, by its first rank that has it if not all do. */
static void say_odd(struct preflight_findings *findings, const struct topic *topic, const struct preflight_facts *facts,
                    const char (*values)[VALUE], int ranks, int rank, int usual)
{
	const bool of_node = is_of_node(facts, values, ranks, rank);
	const struct preflight_finding f = { .odd = !topic->remark, .about = topic->about, .node = facts[rank].node,
		                             .rank = of_node ? -1 : rank, .peer = -1 };
	char subject[48] = "";
	bool others = false;

	for (int r = 0; r < rank; r++)
		if (facts[r].node == facts[rank].node && is_same(values, r, rank))
			return;
	for (int r = rank + 1; r < ranks; r++)
		others |= facts[r].node == facts[rank].node && is_same(values, r, rank);
	if (!of_node)
		snprintf(subject, sizeof(subject), "rank %d%s on ", rank, others ? " and others" : "");
	preflight_find(findings, &f, "%s%s: %s is %s, and others have %s", subject, facts[rank].node_name, topic->name,
	               values[rank], values[usual]);
}

/* Nobody can say which value is right. */
static void say_split(struct preflight_findings *findings, const struct topic *topic,
                      const struct preflight_facts *facts, const char (*values)[VALUE], int ranks, int rank)
{
	const struct preflight_finding f = {
		.odd = !topic->remark, .about = topic->about, .node = -1, .rank = -1, .peer = -1
	};
	int other = rank;

	while (other < ranks && (!is_comparable(topic, &facts[other], &facts[rank]) || is_same(values, other, rank)))
		other++;
	if (other == ranks)
		return;
	preflight_find(findings, &f, "%s differs: it is %s on %s (rank %d), and %s on %s (rank %d)", topic->name, values[rank],
	               facts[rank].node_name, rank, values[other], facts[other].node_name, other);
}

static bool is_first_of_its_kind(const struct topic *topic, const struct preflight_facts *facts, int rank)
{
	for (int r = 0; r < rank; r++)
		if (is_comparable(topic, &facts[r], &facts[rank]))
			return false;
	return true;
}

static void compare(struct preflight_findings *findings, const struct topic *topic, const struct preflight_facts *facts,
                    const char (*values)[VALUE], int ranks)
{
	int usual = -1;

	for (int r = 0; r < ranks; r++) {
		if (r == 0 || !is_comparable(topic, &facts[r], &facts[r - 1]))
			usual = usual_of(topic, facts, values, ranks, r);
		if (usual < 0 && is_first_of_its_kind(topic, facts, r))
			say_split(findings, topic, facts, values, ranks, r);
		else if (usual >= 0 && !is_same(values, r, usual))
			say_odd(findings, topic, facts, values, ranks, r, usual);
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
	               "%s: the limit of locked memory (memlock) is %s, and InfiniBand needs more: set "
	               "LimitMEMLOCK=infinity for slurmd",
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
		preflight_find(findings, &odd, "%d ranks on %s (the first is rank %d) share %" PRId64 " CPU%s", count,
		               f->node_name, r, f->cpus, f->cpus == 1 ? "" : "s");
	}
}

/* A node that has less memory than others of its processor has perhaps lost a module. */
static void look_at_memory(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks,
                           double *values)
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

void preflight_facts_judge(struct preflight_findings *findings, const struct preflight_facts *facts, int ranks)
{
	char(*values)[VALUE] = malloc((size_t)ranks * sizeof(*values));

	for (size_t i = 0; values != NULL && i < sizeof(topics) / sizeof(topics[0]); i++) {
		for (int r = 0; r < ranks; r++)
			value_of(&topics[i], &facts[r], values[r]);
		compare(findings, &topics[i], facts, (const char(*)[VALUE])values, ranks);
	}
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
