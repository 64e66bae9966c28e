/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/identity/nodelist: Slurm's node list grammar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "spank/identity/nodelist.h"
#include "tests/support/test.h"

struct joined {
	char text[4096];
	size_t used;
};

static bool join(void *user, const char *host)
{
	struct joined *joined = user;

	joined->used += (size_t)snprintf(joined->text + joined->used, sizeof(joined->text) - joined->used,
	                                 "%s%s", joined->used > 0 ? " " : "", host);
	return true;
}

TEST(lists_expand_in_order)
{
	static const struct { const char *list, *hosts; } cases[] = {
		{ "n0", "n0" }, { "node", "node" }, { "a-b.c_d", "a-b.c_d" }, { "17", "17" },
		{ "n0,n1", "n0 n1" }, { "b,a", "b a" }, { "n1,n1", "n1 n1" },
		{ "n[0]", "n0" }, { "n[0-3]", "n0 n1 n2 n3" }, { "n[3-3]", "n3" },
		{ "linux[1,2]", "linux1 linux2" }, { "n[7,1-3]", "n7 n1 n2 n3" },
		{ "n[08-11]", "n08 n09 n10 n11" }, { "n[8-11]", "n8 n9 n10 n11" },
		{ "n[098-101]", "n098 n099 n100 n101" }, { "n[0001]", "n0001" },
		{ "n[9-10,001-002]", "n9 n10 n001 n002" }, { "n[99-101]", "n99 n100 n101" },
		{ "a[1-2]b", "a1b a2b" }, { "[1-3]", "1 2 3" }, { "[1-2].cluster", "1.cluster 2.cluster" },
		{ "a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4" }, { "r[0-1]c[0-1]n[0-1]",
		  "r0c0n0 r0c0n1 r0c1n0 r0c1n1 r1c0n0 r1c0n1 r1c1n0 r1c1n1" },
		{ "a[1-2][3-4]", "a13 a14 a23 a24" }, { "a[1,3]b[01-02,9]",
		  "a1b01 a1b02 a1b9 a3b01 a3b02 a3b9" },
		{ "a[1-3,7]b-[01-02]", "a1b-01 a1b-02 a2b-01 a2b-02 a3b-01 a3b-02 a7b-01 a7b-02" },
		{ "n[1-2],m,k[3-4]-x", "n1 n2 m k3-x k4-x" },
		{ "x[1-2],x[3-4]", "x1 x2 x3 x4" },
		{ "n[999999999999999999]", "n999999999999999999" },
		{ "gpu-a100-[1-2].part.site.org", "gpu-a100-1.part.site.org gpu-a100-2.part.site.org" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct joined joined = { .used = 0 };
		struct error error = { "" };
		char first[HOST_NAME_MAX_BYTES];
		if (!nodelist_walk(cases[i].list, join, &joined, &error))
			fail_msg("%s: %s", cases[i].list, error.text);
		assert_string_equal(joined.text, cases[i].hosts);
		assert_true(nodelist_first(cases[i].list, first, &error));
		assert_int_equal(strncmp(first, cases[i].hosts, strlen(first)), 0);
		assert_true(cases[i].hosts[strlen(first)] == '\0' || cases[i].hosts[strlen(first)] == ' ');
	}
}

TEST(malformed_lists_are_refused_with_the_place)
{
	static const struct { const char *list; int byte; } cases[] = {
		{ ",", 1 }, { "n0,", 4 }, { ",n0", 1 }, { "n0,,n1", 4 }, { "n[", 3 }, { "n[]", 3 },
		{ "n[1", 4 }, { "n[1,", 5 }, { "n[1,]", 5 }, { "n[-1]", 3 }, { "n[1-]", 3 },
		{ "n[1-2", 6 }, { "n[2-1]", 3 }, { "n[1--2]", 3 }, { "n[1-2-3]", 6 }, { "n[a]", 3 },
		{ "n[1-a]", 3 }, { "n]", 2 }, { "n[1]]", 5 }, { "n[[1]]", 3 }, { "n 1", 2 },
		{ "n1 ", 3 }, { "n\t", 2 }, { "n;rm", 2 }, { "n$x", 2 }, { "../n", 3 }, { "a/b", 2 },
		{ "n[1 -2]", 4 }, { "n[1;2]", 4 }, { "n[0x1]", 4 }, { "n\303\274", 2 },
		{ "n[1234567890123456789]", 3 }, { "n[1-1234567890123456789]", 3 },
		{ "a[1]b[1]c[1]d[1]e[1]f[1]g[1]h[1]i[1]", 34 }, { "bgl[000x133]", 8 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct joined joined = { .used = 0 };
		struct error error = { "" };
		char place[32];
		if (nodelist_walk(cases[i].list, join, &joined, &error))
			fail_msg("'%s' was accepted as '%s'", cases[i].list, joined.text);
		snprintf(place, sizeof(place), "at byte %d:", cases[i].byte);
		if (strstr(error.text, place) == NULL)
			fail_msg("'%s': '%s' does not say '%s'", cases[i].list, error.text, place);
	}
}

TEST(empty_list_is_refused)
{
	struct error error;
	char host[HOST_NAME_MAX_BYTES];

	assert_false(nodelist_first("", host, &error));
	assert_false(nodelist_first(NULL, host, &error));
	assert_non_null(strstr(error.text, "empty"));
}

TEST(host_name_has_a_longest_length)
{
	char list[600];
	char host[HOST_NAME_MAX_BYTES];
	struct error error;

	memset(list, 'a', sizeof(list));
	list[255] = '\0';
	assert_true(nodelist_first(list, host, &error));
	assert_int_equal(strlen(host), 255);
	list[255] = 'a';
	list[256] = '\0';
	assert_false(nodelist_first(list, host, &error));
	strcpy(list + 250, "[000000]");
	assert_false(nodelist_first(list, host, &error));
	strcpy(list + 250, "[00000]");
	assert_true(nodelist_first(list, host, &error));
}

TEST(hosts_are_counted)
{
	static const struct { const char *list; uint32_t count; } cases[] = {
		{ "n0", 1 }, { "n[0-3]", 4 }, { "n1,n1", 2 }, { "a[0-9]b[0-9]", 100 }, { "x,y,n[1-2]", 4 },
		{ "n[7,1-3],m", 5 }, { "a[1-2]b[1-2]c[1-2]d[1-2]e[1-2]f[1-2]g[1-2]h[1-2]", 256 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct error error = { "" };
		uint32_t count = 0;
		assert_true(nodelist_count(cases[i].list, &count, &error));
		assert_int_equal(count, cases[i].count);
	}
	for (size_t i = 0; i < 2; i++) {
		struct error error = { "" };
		uint32_t count;
		assert_false(nodelist_count(i == 0 ? "" : "n[2-1]", &count, &error));
		assert_true(error.text[0] != '\0');
	}
}

TEST(hosts_are_found)
{
	static const struct { const char *list, *host; bool found; } cases[] = {
		{ "n[0-3]", "n0", true }, { "n[0-3]", "n3", true }, { "n[0-3]", "n4", false },
		{ "n[0-3]", "", false }, { "n[0-3]", "n", false }, { "n[0-3]", "n03", false },
		{ "n[0-3]", "n0x", false }, { "n[0-3]", "m0", false },
		{ "n[00-03]", "n1", false }, { "n[00-03]", "n01", true }, { "n[00-03]", "n001", false },
		{ "n[8-11]", "n8", true }, { "n[8-11]", "n11", true }, { "n[8-11]", "n08", false },
		{ "n[08-110]", "n09", true }, { "n[08-110]", "n100", true }, { "n[08-110]", "n099", false },
		{ "n[1,01]", "n01", true }, { "n[1,01]", "n1", true }, { "n[1,01]", "n001", false },
		{ "x,y,n[1-2]", "n2", true }, { "x,y,n[1-2]", "y", true }, { "x,y,n[1-2]", "z", false },
		{ "n1-x,n1", "n1", true }, { "n11", "n1", false }, { "n1", "n11", false },
		{ "a[0-9]b[0-9]", "a9b9", true }, { "a[0-9]b[0-9]", "a9b", false },
		{ "a[1-2][3-4]", "a13", true }, { "a[1-2][3-4]", "a31", false },
		{ "a[1-20][3-40]", "a1111", true }, { "a[1-20][3-40]", "a13", true },
		{ "a[1-20][3-40]", "a99", true }, { "a[1-20][3-40]", "a900", false }, { "[1-3]", "2", true }, { "[1-3]x", "2x", true },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		if (nodelist_has(cases[i].list, cases[i].host) != cases[i].found)
			fail_msg("'%s' in '%s'", cases[i].host, cases[i].list);
}

struct held {
	const char *list;
	uint32_t count;
};

static bool hold_against_search(void *user, const char *host)
{
	struct held *held = user;

	held->count++;
	if (!nodelist_has(held->list, host))
		fail_msg("%s is not found in %s", host, held->list);
	return true;
}

/* Random lists: whatever the walk gives is counted and found. */
TEST(walk_count_and_search_agree)
{
	srandom(7);
	for (int round = 0; round < 2000; round++) {
		char list[512] = "";
		size_t used = 0;
		struct error error = { "" };
		uint32_t count = 0;
		for (int item = 0; item <= random() % 3; item++) {
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", item > 0 ? "," : "",
			                         random() % 2 == 0 ? "n" : "rack-");
			for (int bracket = 0; bracket <= random() % 3; bracket++) {
				int low = (int)(random() % 12), width = 1 + (int)(random() % 3);
				used += (size_t)snprintf(list + used, sizeof(list) - used, "[%0*d-%0*d,%d]%s", width,
				                         low, width, low + (int)(random() % 7), 20 + low,
				                         random() % 2 == 0 ? "" : "c");
			}
		}
		struct held held = { .list = list };
		assert_true(nodelist_walk(list, hold_against_search, &held, &error));
		assert_true(nodelist_count(list, &count, &error));
		assert_int_equal(count, held.count);
	}
}

TEST(huge_ranges_end_with_an_error)
{
	struct error error;
	uint32_t count;

	assert_true(nodelist_count("n[1-131072]", &count, &error));
	assert_int_equal(count, NODELIST_HOSTS_MAX);
	assert_false(nodelist_count("n[0-131072]", &count, &error));
	assert_false(nodelist_count("n[0-65535],m[0-65536]", &count, &error));
	assert_false(nodelist_count("n[0-999999999999999999]", &count, &error));
	assert_false(nodelist_count("n[0-999999999999999999,0-999999999999999999]", &count, &error));
	assert_false(nodelist_count("a[0-999999]b[0-999999]c[0-999999]", &count, &error));
	assert_non_null(strstr(error.text, "more than 131072 hosts"));
}

TEST(adjoining_brackets_do_not_explode)
{
	static const char list[] = "[1-999999999999999999][1-999999999999999999][1-999999999999999999]"
		"[1-999999999999999999][1-999999999999999999][1-999999999999999999]"
		"[1-999999999999999999][1-999999999999999999]";
	char host[200];

	memset(host, '1', 144);
	host[144] = 'x';
	host[145] = '\0';
	assert_false(nodelist_has(list, host));
	host[144] = '\0';
	assert_true(nodelist_has(list, host));
}

/* Ten thousand hosts without a range, as a torn cluster's list may look. */
static char *list_hosts(int hosts)
{
	size_t bytes = (size_t)hosts * 12, used = 0;
	char *list = malloc(bytes);

	assert_non_null(list);
	for (int i = 0; i < hosts; i++)
		used += (size_t)snprintf(list + used, bytes - used, "%snode%05d", i > 0 ? "," : "", 2 * i);
	return list;
}

/* What this thread has computed, which no other load lengthens. */
static double computed_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Count, search and first host, `rounds` times. */
static double time_list(const char *list, int hosts, int rounds)
{
	char first[HOST_NAME_MAX_BYTES], last[16];
	double start = computed_ms();
	struct error error;
	uint32_t count;

	snprintf(last, sizeof(last), "node%05d", 2 * (hosts - 1));
	for (int i = 0; i < rounds; i++) {
		assert_true(nodelist_count(list, &count, &error));
		assert_int_equal(count, hosts);
		assert_true(nodelist_has(list, last));
		assert_true(nodelist_first(list, first, &error));
		assert_string_equal(first, "node00000");
	}
	return computed_ms() - start;
}

TEST(ten_thousand_hosts_take_ten_times_as_long_as_a_thousand)
{
	char *thousand = list_hosts(1000), *many = list_hosts(10000);
	double shorter = time_list(thousand, 1000, 10), longer = time_list(many, 10000, 1);

	for (int i = 0; i < 9; i++) {
		double again = time_list(thousand, 1000, 10);
		shorter = again < shorter ? again : shorter;
		again = time_list(many, 10000, 1);
		longer = again < longer ? again : longer;
	}
	free(thousand);
	free(many);
	print_message("# a list of 10,000 hosts: %.2f ms; ten of 1,000: %.2f ms\n", longer, shorter);
	/* Were it quadratic, it would be ten times. */
	assert_true(longer < 4 * shorter);
}

static const char *name_at(const void *user, uint32_t index)
{
	return ((const char *const *)user)[index];
}

/* Counts the names, in order. */
static bool is_next(void *user, const char *host)
{
	const char *const **next = user;

	assert_string_equal(host, **next);
	(*next)++;
	return true;
}

TEST(written_lists_are_read_in_the_same_order)
{
	static const struct { const char *names[8], *list; } cases[] = {
		{ { "n0" }, "n0" }, { { "n0", "n1" }, "n[0-1]" }, { { "n0", "n3", "n2" }, "n0,n3,n2" },
		{ { "n3", "n0", "n1", "n2", "m3", "a" }, "n3,n[0-2],m3,a" },
		{ { "n08", "n09", "n10", "n011" }, "n[08-10],n011" }, { { "n9", "n10" }, "n9,n10" },
		{ { "7", "8" }, "[7-8]" }, { { "a-1b", "a-2b" }, "a-1b,a-2b" },
		{ { "x999999999", "x1000000000" }, "x999999999,x1000000000" },
		{ { "r1n2", "r1n3", "r2n4" }, "r1n[2-3],r2n4" },
	};
	char text[64];
	struct error error;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *const *next = cases[i].names;
		uint32_t count = 0;
		while (cases[i].names[count] != NULL)
			count++;
		assert_true(nodelist_write(text, sizeof(text), count, name_at, cases[i].names));
		assert_string_equal(text, cases[i].list);
		assert_true(nodelist_walk(text, is_next, &next, &error));
		assert_ptr_equal(next, cases[i].names + count);
		assert_false(nodelist_write(text, strlen(cases[i].list), count, name_at, cases[i].names));
	}
}

TEST(names_are_found_as_a_whole)
{
	assert_true(names_have("n1,n12,n3", "n1") && names_have("n1,n12,n3", "n12") && names_have("n1,n12,n3", "n3"));
	assert_false(names_have("n1,n12,n3", "n2") || names_have("n12", "n1") || names_have("n1", "n12") ||
	             names_have(NULL, "n1") || names_have("", "") || names_have("n1,,n2", ""));
}
