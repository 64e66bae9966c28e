/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* spank/options/options and site: what --ddp and the plugstack line accept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/text.h"
#include "spank/launch/names.h"
#include "spank/options/options.h"
#include "spank/options/site.h"
#include "tests/support/spank_task.h"
#include "tests/support/test.h"

static struct settings defaults(void)
{
	struct settings settings;

	settings_init(&settings);
	return settings;
}

/* The settings that differ from the defaults, as text. */
static const char *shown(const struct settings *s)
{
	static char text[2048];
	const struct settings d = defaults();
	struct sink sink = sink_on(text, sizeof(text));

#define NUMBER(field) do { if (s->field != d.field) sink_add(&sink, #field "=%u ", (unsigned)s->field); } while (0)
#define TEXT(field) do { if (strcmp(s->field, d.field) != 0) sink_add(&sink, #field "=%s ", s->field); } while (0)
	NUMBER(port_low);
	NUMBER(port_high);
	NUMBER(address);
	TEXT(address_suffix);
	NUMBER(omp);
	NUMBER(gpu);
	NUMBER(launcher);
	NUMBER(kill_on_failure);
	NUMBER(grace_seconds);
	NUMBER(stall_seconds);
	NUMBER(kill_on_stall);
	NUMBER(slow_percent);
	NUMBER(restarts);
	NUMBER(spares);
	NUMBER(min_nodes);
	NUMBER(silence_seconds);
	NUMBER(requeue_most);
	NUMBER(preflight);
	NUMBER(refuse_absent);
	NUMBER(verbose);
	NUMBER(check);
	NUMBER(off);
	TEXT(bucket_mb);
	NUMBER(timeout_seconds);
	TEXT(trace_dir);
	TEXT(record_dir);
	TEXT(log_dir);
	NUMBER(watch);
	TEXT(watch_path);
	NUMBER(python);
	TEXT(python_path);
	NUMBER(nccl_net);
	TEXT(nccl_net_path);
	return text;
}

/* Lists, and which settings they change to what. */
static const struct { const char *list, *expected; } examples[] = {
	{ NULL, "" }, { "", "" }, { "(null)", "" },
	{ "preflight", "preflight=1 " }, { "preflight=warn", "preflight=1 " }, { "preflight=no", "" },
	{ "preflight=stop", "preflight=2 " },
	{ "restart=1,spare=1,preflight=exclude", "kill_on_stall=1 restarts=1 spares=1 preflight=3 " },
	{ "port=29500", "port_low=29500 port_high=29500 " },
	{ "port=1024", "port_low=1024 port_high=1024 " },
	{ "port=65535", "port_low=65535 port_high=65535 " },
	{ "port=20000-29999", "port_low=20000 port_high=29999 " },
	{ "port=20000-20000", "port_low=20000 port_high=20000 " },
	{ "port=1024-65535", "port_low=1024 port_high=65535 " },
	{ "port=0020000", "port_low=20000 port_high=20000 " },
	{ "addr=nodename", "" }, { "addr=ip", "address=1 " },
	{ "addr-suffix=-ib0", "address_suffix=-ib0 " },
	{ "addr-suffix=.hsn.example.org", "address_suffix=.hsn.example.org " }, { "addr-suffix=", "" },
	{ "omp=keep", "omp=0 " }, { "omp=1", "omp=1 " }, { "omp=cpus", "" },
	{ "gpu=error", "gpu=0 " }, { "gpu=warn", "" }, { "gpu=ignore", "gpu=2 " },
	{ "launcher", "launcher=1 " }, { "launcher=yes", "launcher=1 " }, { "launcher=no", "" },
	{ "bucket-mb=25", "bucket_mb=25 " }, { "bucket-mb=0.5", "bucket_mb=0.5 " },
	{ "bucket-mb=65536", "bucket_mb=65536 " },
	{ "timeout=1", "timeout_seconds=1 " }, { "timeout=604800", "timeout_seconds=604800 " },
	{ "trace=/scratch/a=b c", "trace_dir=/scratch/a=b c " },
	{ "record=/scratch/a=b c", "record_dir=/scratch/a=b c " }, { "record=no", "" },
	{ "log=logs/of me", "log_dir=logs/of me " }, { "log=/scratch/logs", "log_dir=/scratch/logs " },
	{ "python", "python=1 " }, { "python=/opt/p", "python=1 python_path=/opt/p " }, { "python=no", "" },
	{ "watch", "watch=1 " }, { "watch=/p.so", "watch=1 watch_path=/p.so " }, { "watch=no", "" },
	{ "nccl-net=no", "" }, { "nccl-net=yes", "nccl_net=1 " }, { "nccl-net=/n.so", "nccl_net=1 nccl_net_path=/n.so " },
	{ "on-failure=kill", "" }, { "on-failure=continue", "kill_on_failure=0 " },
	{ "grace=0", "grace_seconds=0 " }, { "grace=300", "grace_seconds=300 " }, { "grace=604800", "grace_seconds=604800 " },
	{ "stall=0", "" }, { "stall=604800", "stall_seconds=604800 " },
	{ "stall-action=report", "" }, { "stall-action=kill", "kill_on_stall=1 " },
	{ "slow=1.5", "slow_percent=150 " }, { "slow=2", "slow_percent=200 " }, { "slow=1.25", "slow_percent=125 " },
	{ "slow=100", "slow_percent=10000 " }, { "slow=0", "" }, { "slow=0.0", "" },
	{ "restart=0", "" }, { "restart=3", "kill_on_stall=1 restarts=3 " },
	{ "restart=1000,stall-action=report", "restarts=1000 " },
	{ "restart=3,spare=0,min-nodes=0", "kill_on_stall=1 restarts=3 " },
	{ "spare=1,restart=3", "kill_on_stall=1 restarts=3 spares=1 " },
	{ "min-nodes=2,restart=3", "kill_on_stall=1 restarts=3 min_nodes=2 " },
	{ "restart=0,spare=0,on-failure=continue", "kill_on_failure=0 " },
	{ "silence=0", "silence_seconds=0 " }, { "silence=2", "silence_seconds=2 " },
	{ "silence=3600", "silence_seconds=3600 " },
	{ "requeue=0", "" }, { "requeue=3", "requeue_most=3 " }, { "requeue=1000", "requeue_most=1000 " },
	{ "absent=refuse", "" }, { "absent=warn", "refuse_absent=0 " },
	{ "verbose", "verbose=1 " }, { "verbose=no", "" },
	{ "check", "check=1 " }, { "check=json", "check=2 " }, { "check=no", "" },
	{ "off", "off=1 " }, { "off=no", "" },
	{ "verbose,port=30000,omp=1,gpu=ignore,timeout=90,on-failure=continue,addr=ip,bucket-mb=4",
	  "port_low=30000 port_high=30000 address=1 omp=1 gpu=2 kill_on_failure=0 verbose=1 bucket_mb=4 "
	  "timeout_seconds=90 " },
};

/* Lists that are refused, and what the message says. */
static const struct { const char *list, *named; } refused[] = {
	{ "prot=29500", "unknown key 'prot'" }, { "PORT=29500", "unknown key 'PORT'" },
	{ " port=29500", "unknown key ' port'" }, { "port =1", "unknown key 'port '" }, { "=1", "unknown key ''" },
	{ "por", "unknown key 'por'" }, { "ports=1", "unknown key 'ports'" },
	{ "locked=port", "unknown key 'locked'" }, { "\033[31m", "unknown key '?[31m'" }, { ",", "empty" },
	{ "verbose,", "empty" }, { ",verbose", "empty" }, { "verbose,,check", "empty" },
	{ "verbose,verbose", "'verbose' is given twice" }, { "port=2000,port=2000", "'port' is given twice" },
	{ "port", "'port' needs a value" }, { "port=", "'port'" }, { "port=1023", "'port'" },
	{ "port=65536", "'port'" }, { "port=4294988296", "'port'" }, { "port=99999999999999999999", "'port'" },
	{ "port=-1", "'port'" }, { "port=+2000", "'port'" }, { "port=2000-", "'port'" },
	{ "port=-2000", "'port'" }, { "port=3000-2000", "'port'" }, { "port=2000-3000-4000", "'port'" },
	{ "port=2000:3000", "'port'" }, { "port=0x5000", "'port'" }, { "port=2000 ", "'port'" },
	{ "port=500-3000", "'port'" }, { "addr", "'addr' needs a value" }, { "addr=", "'addr'" },
	{ "addr=IP", "'addr'" }, { "addr=ipx", "'addr'" }, { "addr-suffix", "'addr-suffix' needs a value" },
	{ "addr-suffix=a b", "'addr-suffix'" }, { "addr-suffix=;reboot", "'addr-suffix'" },
	{ "addr-suffix=$(x)", "'addr-suffix'" }, { "addr-suffix=/etc", "'addr-suffix'" },
	{ "addr-suffix=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "'addr-suffix'" },
	{ "omp", "'omp' needs a value" }, { "omp=2", "'omp'" }, { "omp=cpu", "'omp'" },
	{ "gpu", "'gpu' needs a value" }, { "gpu=warning", "'gpu'" }, { "launcher=1", "'launcher'" },
	{ "launcher=", "'launcher'" }, { "bucket-mb", "'bucket-mb' needs a value" },
	{ "bucket-mb=0.0", "'bucket-mb'" }, { "bucket-mb=-1", "'bucket-mb'" }, { "bucket-mb=1e3", "'bucket-mb'" },
	{ "bucket-mb=nan", "'bucket-mb'" }, { "bucket-mb=1.", "'bucket-mb'" }, { "bucket-mb=.5", "'bucket-mb'" },
	{ "bucket-mb=65537", "'bucket-mb'" }, { "bucket-mb=65536.5", "'bucket-mb'" },
	{ "bucket-mb=1.0000000000000000", "'bucket-mb'" }, { "bucket-mb=1.2.3", "'bucket-mb'" },
	{ "timeout", "'timeout' needs a value" }, { "timeout=0", "'timeout'" }, { "timeout=604801", "'timeout'" },
	{ "timeout=5m", "'timeout'" }, { "timeout=1.5", "'timeout'" }, { "record", "'record' needs a value" },
	{ "record=", "'record'" }, { "record=a", "'record'" }, { "record=/a\nb", "'record'" },
	{ "log", "'log' needs a value" }, { "log=", "'log'" }, { "log=a\033b", "'log'" },
	{ "trace", "'trace' needs a value" }, { "trace=", "'trace'" }, { "trace=a\nb", "'trace'" },
	{ "on-failure", "'on-failure' needs a value" }, { "on-failure=stop", "'on-failure'" },
	{ "python=maybe", "'python'" }, { "python=/a:/b", "'python'" }, { "watch=libx.so", "'watch'" },
	{ "watch=/a\nb", "'watch'" }, { "watch=", "'watch'" }, { "nccl-net=maybe", "'nccl-net'" },
	{ "preflight=yes", "'preflight'" }, { "preflight=exclude", "'preflight=exclude' needs spares" },
	{ "restart=2,preflight=exclude", "'preflight=exclude' needs spares" }, { "grace", "'grace'" },
	{ "grace=-1", "'grace'" },
	{ "grace=", "'grace'" }, { "grace=5m", "'grace'" }, { "stall=1.5", "'stall' does not take" },
	{ "silence=2.5", "'silence' does not take" },
	{ "slow=1", "'slow'" }, { "grace=604801", "'grace'" }, { "absent", "'absent' needs a value" },
	{ "absent=no", "'absent'" }, { "stall", "'stall' needs a value" },
	{ "stall=604801", "'stall' does not take" }, { "stall-action", "'stall-action' needs a value" },
	{ "stall-action=stop", "'stall-action'" }, { "slow", "'slow' needs a value" }, { "slow=1.09", "'slow'" },
	{ "slow=100.5", "'slow'" }, { "slow=1.", "'slow'" }, { "slow=1.505", "'slow'" }, { "slow=.5", "'slow'" },
	{ "slow=2x", "'slow'" }, { "slow=2,launcher", "'slow' and 'launcher'" },
	{ "silence", "'silence' needs a value" }, { "silence=1", "'silence' does not take" },
	{ "silence=3601", "'silence' does not take" }, { "stall=5,launcher", "'stall' and 'launcher'" },
	{ "restart", "'restart' needs a value" }, { "restart=1001", "'restart' does not take" },
	{ "spare=100001", "'spare' does not take" }, { "spare=1", "'spare' needs 'restart'" },
	{ "spare=1,restart=0", "'spare' needs 'restart'" }, { "min-nodes=2", "'min-nodes' needs 'restart'" },
	{ "min-nodes=few", "'min-nodes' does not take" },
	{ "restart=1,on-failure=continue", "'restart' and 'on-failure=continue'" },
	{ "requeue", "'requeue' needs a value" }, { "requeue=1001", "'requeue' does not take" },
	{ "verbose=1", "'verbose'" }, { "check=maybe", "'check'" }, { "off=on", "'off'" },
	{ "verbose,port=99,check", "'port'" },
};

TEST(each_key_sets_what_it_says)
{
	for (size_t i = 0; i < COUNT(examples); i++) {
		struct settings settings = defaults();
		struct error error = { "" };
		if (!user_list_read(&settings, examples[i].list, 0, &error))
			fail_msg("'%s': %s", examples[i].list, error.text);
		assert_string_equal(shown(&settings), examples[i].expected);
	}
}

static bool has_example(const struct option *option)
{
	size_t length = strlen(option->name);

	for (size_t i = 0; i < COUNT(examples); i++) {
		const char *list = examples[i].list;
		if (list != NULL && strncmp(list, option->name, length) == 0 && examples[i].expected[0] != '\0' &&
		    (list[length] == '=' || list[length] == '\0'))
			return true;
	}
	return false;
}

/* Whether a list that has this key alone is refused for its value. */
static bool has_refused_value(const struct option *option)
{
	size_t length = strlen(option->name);

	for (size_t i = 0; i < COUNT(refused); i++) {
		const char *list = refused[i].list;
		if (strncmp(list, option->name, length) == 0 && list[length] == '=' && strchr(list, ',') == NULL)
			return true;
	}
	return false;
}

TEST(each_key_is_in_the_examples_and_in_the_help)
{
	const struct option *option;
	char usage[512];

	option_usage(usage, sizeof(usage));
	assert_non_null(strstr(usage, "(see srun-ddp(7))"));
	for (int i = 0; (option = option_at(i)) != NULL; i++) {
		assert_non_null(strstr(usage, option->name));
		if (!has_example(option))
			fail_msg("examples[] of %s has none where %s= changes a setting; shown() has to tell the "
			         "setting, too", __FILE__, option->name);
		if (!has_refused_value(option))
			fail_msg("refused[] of %s has no value that %s= does not take", __FILE__, option->name);
		if ((option->variable == NULL) != (option->tell == NULL))
			fail_msg("%s has one of .variable and .tell, and not the other", option->name);
	}
}

TEST(no_key_takes_a_line_feed)
{
	const struct option *option;

	for (int i = 0; (option = option_at(i)) != NULL; i++) {
		struct settings settings = defaults();
		struct error error = { "" };
		if (option_set(&settings, option->name, strlen(option->name), "\n", 1, &error))
			fail_msg("%s takes a line feed", option->name);
		assert_non_null(strstr(error.text, option->expects));
	}
}

/* `value` is the manual's default; "": the manual names none, so that the setting is off or empty. */
static void is_default(const char *key, const char *value)
{
	const struct settings d = defaults();
	const struct option *option = option_at(option_find(key, strlen(key)));
	struct settings settings = d;
	struct error error = { "" };

	assert_non_null(option);
	for (size_t i = 0; i < option->bytes && value[0] == '\0'; i++)
		assert_int_equal(((const char *)&d)[option->at + i], 0);
	if (strcmp(value, "SLURM's") == 0)
		settings.grace_seconds = GRACE_OF_SLURM;
	else if (value[0] != '\0' && !option_set(&settings, key, strlen(key), value, strlen(value), &error))
		fail_msg("%s", error.text);
	if (settings_silence_ms(&settings) == settings_silence_ms(&d))
		settings.silence_seconds = d.silence_seconds;
	if (strcmp(shown(&settings), "") != 0)
		fail_msg("srun-ddp(7) has %s as the default of %s, which sets %s", value, key, shown(&settings));
}

TEST(manual_has_the_defaults)
{
	const char *source = getenv("srcdir");
	char path[1024], line[1024] = "", key[32] = "", value[64] = "", *from, *to;
	int keys = 0;

	snprintf(path, sizeof(path), "%s/doc/srun-ddp.7", source != NULL ? source : ".");
	FILE *manual = fopen(path, "r");
	assert_non_null(manual);
	while (strcmp(line, ".SH KEYS\n") != 0)
		assert_non_null(fgets(line, sizeof(line), manual));
	for (bool heading = false; fgets(line, sizeof(line), manual) != NULL && strncmp(line, ".SH", 3) != 0;
	     heading = strcmp(line, ".TP\n") == 0) {
		for (from = to = line; (*to = *from) != '\0'; from++)
			to += *from != '\\';
		if (!heading) {
			(void)sscanf(line, "Default: %63[^.,\n]", value);
			continue;
		}
		if (keys > 0)
			is_default(key, value);
		keys += sscanf(line, ".%*[BIR] %31[a-z-]", key);
		value[0] = '\0';
	}
	is_default(key, value);
	assert_null(option_at(keys));
	fclose(manual);
}

/* The one task of its node, which may be a launcher, or one of two. */
static struct identity task_among(uint32_t local_world_size)
{
	struct identity identity = task();

	identity.local_world_size = local_world_size;
	identity.local_rank = local_world_size - 1;
	identity.world_size = identity.node_count * local_world_size;
	identity.rank = identity.world_size - 1;
	return identity;
}

static bool is_among(const struct variables *variables, const char *name)
{
	for (int i = 0; i < variables->count; i++)
		if (strcmp(variables->item[i].name, name) == 0)
			return true;
	return false;
}

/* Fails the test where a task of --ddp=LIST hands on a variable that it was given. */
static void check_that_all_is_taken_out(const char *list, const struct identity *identity,
                                        enum gpu_binding binding)
{
	static struct variables given, taken;
	static char text[VARIABLES_MAX][1100];
	char *environment[VARIABLES_MAX + 1];
	struct task_extras with = extras(ENVIRONMENT());
	int count = 0;

	with.gpu = (struct gpu_view){ .visible = 2, .binding = binding, .device = binding == GPU_OWN ? -1 : 1 };
	with.nccl_net = with.nccl_profiler = "/plugin.so";
	build(&given, list, identity, &with);
	for (int i = 0; i < given.count; i++) {
		if (given.item[i].value == NULL)
			continue;
		snprintf(text[count], sizeof(text[count]), "%s=%s", given.item[i].name, given.item[i].value);
		environment[count] = text[count];
		count++;
	}
	environment[count] = NULL;
	environment_leave_step(&taken, environment);
	assert_true(count > 10);
	for (int i = 0; i < given.count; i++)
		if (given.item[i].value != NULL && name_find(given.item[i].name)->kind != NAME_LIST &&
		    !is_among(&taken, given.item[i].name))
			fail_msg("--ddp=%s: what the task starts keeps its %s", list != NULL ? list : "",
			         given.item[i].name);
}

TEST(what_a_task_is_given_does_not_reach_what_it_starts)
{
	const struct identity alone = task_among(1), pair = task_among(2);

	for (size_t i = 0; i < COUNT(examples); i++) {
		const char *list = examples[i].list;
		check_that_all_is_taken_out(list, &alone, GPU_OWN);
		if (list == NULL || strcmp(examples[i].expected, "launcher=1 ") != 0)
			check_that_all_is_taken_out(list, &pair, GPU_COMMON);
	}
}

TEST(variable_of_an_option_is_set_by_it)
{
	static struct variables variables;
	const struct identity alone = task_among(1);
	struct task_extras with = extras(ENVIRONMENT());
	const struct option *option;

	for (int o = 0; (option = option_at(o)) != NULL; o++) {
		bool set = false;
		if (option->variable == NULL)
			continue;
		for (size_t i = 0; i < COUNT(examples); i++) {
			build(&variables, examples[i].list, &alone, &with);
			for (int v = 0; v < variables.count; v++)
				set |= variables.item[v].value != NULL && strcmp(variables.item[v].name, option->variable) == 0;
		}
		if (!set)
			fail_msg("no example of %s= sets %s", option->name, option->variable);
	}
}

TEST(wrong_words_are_refused_by_name)
{
	for (size_t i = 0; i < COUNT(refused); i++) {
		struct settings settings = defaults(), before = settings;
		struct error error = { "" };
		if (user_list_read(&settings, refused[i].list, 0, &error))
			fail_msg("'%s' was accepted", refused[i].list);
		if (strstr(error.text, refused[i].named) == NULL)
			fail_msg("'%s': '%s' does not say \"%s\"", refused[i].list, error.text, refused[i].named);
		assert_memory_equal(&settings, &before, sizeof(before));
	}
}

TEST(unknown_key_comes_with_the_known_ones)
{
	struct settings settings = defaults();
	struct error error;

	assert_false(user_list_read(&settings, "x=1", 0, &error));
	for (int i = 0; option_at(i) != NULL; i++)
		assert_non_null(strstr(error.text, option_at(i)->name));
}

TEST(paths_have_a_longest_length)
{
	static const struct { const char *list; size_t longest; } paths[] = { { "trace=", 1023 }, { "watch=/", 253 } };

	for (size_t i = 0; i < COUNT(paths); i++) {
		char list[2000];
		struct settings settings = defaults();
		struct error error = { "" };
		memset(list, 'd', sizeof(list));
		memcpy(list, paths[i].list, strlen(paths[i].list));
		list[strlen(paths[i].list) + paths[i].longest] = '\0';
		assert_true(user_list_read(&settings, list, 0, &error));
		strcat(list, "d");
		assert_false(user_list_read(&settings, list, 0, &error));
	}
}

/* NCCL would take what follows a comma for another plugin. */
TEST(nccl_net_takes_one_path)
{
	struct settings settings = defaults();
	struct error error;

	assert_false(option_set(&settings, "nccl-net", 8, "/a,/b", 5, &error));
	assert_non_null(strstr(error.text, "'nccl-net'"));
}

TEST(site_gives_defaults_and_locks_keys)
{
	char *words[] = { "port=25000-25999", "addr-suffix=-ib", "omp=keep", "locked=port,addr-suffix" };
	struct site site;
	struct settings settings;
	struct error error = { "" };

	assert_true(site_parse(&site, 4, words, &error));
	settings = site.defaults;
	assert_int_equal(settings.port_low, 25000);
	assert_string_equal(settings.address_suffix, "-ib");
	assert_false(option_given(&settings, "port"));
	assert_true(user_list_read(&settings, "omp=1", site.locked, &error));
	assert_int_equal(settings.port_high, 25999);
	assert_false(user_list_read(&settings, "port=30000", site.locked, &error));
	assert_non_null(strstr(error.text, "'port' is locked by this site"));
	assert_false(user_list_read(&settings, "verbose,addr-suffix=", site.locked, &error));
	assert_non_null(strstr(error.text, "'addr-suffix' is locked"));
}

TEST(wrong_site_lines_are_refused_by_name)
{
	static const struct { const char *words[3], *named; } cases[] = {
		{ { "prot=1" }, "'prot'" }, { { "port=1" }, "'port'" }, { { "locked=" }, "unknown key ''" },
		{ { "locked=port,prot" }, "'prot'" }, { { "locked" }, "unknown key 'locked'" },
		{ { "verbose", "verbose=no" }, "'verbose' is given twice" },
		{ { "port=25000,verbose" }, "'port'" }, { { "" }, "unknown key ''" },
		{ { "omp=cpus", "gpu=fatal" }, "'gpu'" }, { { "locked=port," }, "unknown key ''" },
		{ { "check" }, "'check' is for users" }, { { "omp=1", "check=json" }, "'check' is for users" },
		{ { "max-restart=1001" }, "'restart' does not take '1001'" }, { { "max-omp=1" }, "unknown key 'max-omp'" },
		{ { "max-restart" }, "'restart' needs a value" }, { { "max-spare=1", "max-spare=2" }, "'max-spare' is given twice" },
		{ { "max-restart=3", "restart=4" }, "'restart=4' is above this site's limit" },
		{ { "comment=yes" }, "comment= takes failures or no, not 'yes'" }, { { "comment" }, "unknown key 'comment'" },
		{ { "locked=comment" }, "unknown key 'comment'" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct settings base = defaults();
		struct site site;
		struct error error = { "" };
		int count = 0;
		while (cases[i].words[count] != NULL)
			count++;
		if (site_parse(&site, count, (char **)(uintptr_t)cases[i].words, &error))
			fail_msg("'%s' was accepted", cases[i].words[0]);
		assert_non_null(strstr(error.text, "plugstack"));
		if (strstr(error.text, cases[i].named) == NULL)
			fail_msg("'%s' does not say %s", error.text, cases[i].named);
		assert_int_equal(site.locked, 0);
		assert_string_equal(shown(&site.defaults), shown(&base));
	}
}

TEST(site_has_failures_noted)
{
	char *words[] = { (char[]){ "comment=failures" }, (char[]){ "omp=1" } }, *no[] = { (char[]){ "comment=no" } };
	struct settings settings = defaults();
	struct site site;
	struct error error;

	assert_true(site_parse(&site, 2, words, &error));
	assert_true(site.notes_failures);
	assert_true(site_parse(&site, 1, no, &error));
	assert_false(site.notes_failures);
	assert_true(site_parse(&site, 0, no, &error));
	assert_false(site.notes_failures);
	/* It is no user's matter. */
	assert_false(user_list_read(&settings, "comment=failures", 0, &error));
}

TEST(site_may_say_what_holds_anyway)
{
	char *words[] = { (char[]){ "check=no" }, (char[]){ "off=no" }, (char[]){ "locked=check,off" } };
	struct site site;
	struct error error;

	assert_true(site_parse(&site, 3, words, &error));
}

TEST(site_gives_restarts_to_lists_that_go_with_them)
{
	static const struct { const char *list, *expected; } cases[] = {
		{ "", "kill_on_stall=1 restarts=2 spares=1 " },
		{ "spare=3", "kill_on_stall=1 restarts=2 spares=3 " },
		{ "min-nodes=2", "kill_on_stall=1 restarts=2 spares=1 min_nodes=2 " },
		{ "restart=0", "" }, { "on-failure=continue", "kill_on_failure=0 " },
		{ "stall-action=report", "restarts=2 spares=1 " },
	};
	char *words[] = { (char[]){ "restart=2" }, (char[]){ "spare=1" } };
	struct site site;
	struct error error = { "" };

	assert_true(site_parse(&site, 2, words, &error));
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct settings settings = site.defaults;
		assert_true(user_list_read(&settings, cases[i].list, 0, &error));
		assert_string_equal(shown(&settings), cases[i].expected);
	}
	/* spare= alone says nothing until a user asks for restarts. */
	assert_true(site_parse(&site, 1, words + 1, &error));
	struct settings settings = site.defaults;
	assert_true(user_list_read(&settings, "", 0, &error));
	assert_string_equal(shown(&settings), "");
}

/* A restart is an end of the step's ranks, so it cannot go beside on-failure=continue. */
TEST(restarts_of_a_user_count_more_than_on_failure_of_a_site)
{
	char *words[] = { (char[]){ "on-failure=continue" }, (char[]){ "locked=on-failure" } };
	struct site site;
	struct error error = { "" };

	assert_true(site_parse(&site, 1, words, &error));
	struct settings settings = site.defaults;
	assert_true(user_list_read(&settings, "restart=2", site.locked, &error));
	assert_string_equal(shown(&settings), "kill_on_stall=1 restarts=2 ");
	settings = site.defaults;
	assert_true(user_list_read(&settings, "restart=0", site.locked, &error));
	assert_string_equal(shown(&settings), "kill_on_failure=0 ");
	assert_true(site_parse(&site, 2, words, &error));
	settings = site.defaults;
	assert_false(user_list_read(&settings, "restart=2", site.locked, &error));
	assert_non_null(strstr(error.text, "'restart' and 'on-failure=continue', which this site has locked,"));
}

/* Beside restart= of the site they ask for its restarts. */
TEST(spares_of_a_user_count_more_than_on_failure_of_a_site)
{
	static const struct { const char *list, *expected, *error, *locked; } cases[] = {
		{ "spare=2", "kill_on_stall=1 restarts=3 spares=2 ", "'spare' and 'on-failure=continue' do",
		  "'spare' and 'on-failure=continue', which this site has locked, do" },
		{ "min-nodes=3", "kill_on_stall=1 restarts=3 min_nodes=3 ", "'min-nodes' and 'on-failure=continue' do",
		  "'min-nodes' and 'on-failure=continue', which this site has locked, do" },
		{ "spare=0", "kill_on_failure=0 ", NULL, NULL }, { "", "kill_on_failure=0 ", NULL, NULL },
	};
	char *words[] = { (char[]){ "restart=3" }, (char[]){ "on-failure=continue" } };
	struct site site;
	struct error error = { "" };

	assert_true(site_parse(&site, 2, words, &error));
	for (size_t i = 0; i < COUNT(cases); i++) {
		const uint32_t locked = 1u << option_find("on-failure", strlen("on-failure"));
		struct settings settings = site.defaults;
		char list[64];
		assert_true(user_list_read(&settings, cases[i].list, 0, &error));
		assert_string_equal(shown(&settings), cases[i].expected);
		if (cases[i].error == NULL)
			continue;
		settings = site.defaults;
		assert_false(user_list_read(&settings, cases[i].list, locked, &error));
		assert_non_null(strstr(error.text, cases[i].locked));
		snprintf(list, sizeof(list), "%s,on-failure=continue", cases[i].list);
		assert_false(user_list_read(&settings, list, 0, &error));
		assert_non_null(strstr(error.text, cases[i].error));
	}
}

static struct request request_of(const char *site_word)
{
	char *words[] = { (char *)(uintptr_t)site_word };
	struct request request = { .wanted = false };

	assert_true(site_parse(&request.site, 1, words, &request.error));
	request.settings = request.site.defaults;
	return request;
}

TEST(last_list_of_a_process_counts)
{
	static struct request request;
	struct error error = { "" };

	request = request_of("omp=keep");
	assert_false(request.wanted);
	assert_true(request_take_list(&request, "port=30000,off", &error));
	assert_false(request.wanted);
	assert_true(request_take_list(&request, "gpu=error", &error));
	assert_true(request.wanted);
	assert_string_equal(shown(&request.settings), "omp=0 gpu=0 ");
	assert_false(request_take_list(&request, "gpu=maybe", &error));
	assert_non_null(strstr(error.text, "'gpu'"));
	assert_true(request.wanted); /* so that the task says what is wrong */
	request.error = error;
	assert_false(request_take_list(&request, "gpu=error", &error));
	assert_non_null(strstr(error.text, "'gpu' does not take 'maybe'"));
}

TEST(site_locks_keys_of_a_request)
{
	static struct request request;
	struct error error = { "" };

	request = request_of("locked=port,on-failure");
	assert_true(request_locks(&request, "on-failure"));
	assert_false(request_locks(&request, "omp"));
	assert_false(request_take_list(&request, "on-failure=kill", &error));
	assert_non_null(strstr(error.text, "'on-failure' is locked"));
}

TEST(site_limits_keys_of_a_request)
{
	static const struct { const char *list, *named; } above[] = {
		{ "restart=4", "'restart=4' is above this site's limit: it allows restart=3 at most" },
		{ "restart=3,spare=1", "'spare=1' is above this site's limit: it allows spare=0 at most" },
		{ "requeue=1000", "'requeue=1000' is above" },
	};
	char *words[] = { (char[]){ "max-restart=3" }, (char[]){ "max-spare=0" }, (char[]){ "restart=2" },
		          (char[]){ "max-requeue=10" } };
	static struct request request;
	struct error error = { "" };

	assert_true(site_parse(&request.site, COUNT(words), words, &error));
	assert_true(request_take_list(&request, "", &error));
	assert_int_equal(request.settings.restarts, 2);
	assert_true(request_take_list(&request, "restart=3,requeue=10", &error));
	for (size_t i = 0; i < COUNT(above); i++) {
		assert_false(request_take_list(&request, above[i].list, &error));
		if (strstr(error.text, above[i].named) == NULL)
			fail_msg("'%s' does not say %s", error.text, above[i].named);
	}
}

TEST(site_switches_off)
{
	static struct request request;
	struct error error = { "" };

	request = request_of("off");
	assert_false(request.settings.off);
	assert_true(request_take_list(&request, "off", &error));
	assert_false(request.wanted);
	assert_false(request_take_list(&request, "restart=2", &error));
	assert_non_null(strstr(error.text, "the administrator has switched --ddp off"));
	assert_true(request.wanted); /* so that the task says so */
	assert_false(request_take_list(&request, "off=no", &error));
}

TEST(components_have_one_list)
{
	static struct request request;
	struct error error = { "" };

	request = request_of("omp=keep");
	assert_true(request_components_agree(&request, false, &error)); /* the first one has none */
	assert_true(request_take_list(&request, NULL, &error));
	assert_true(request_components_agree(&request, false, &error));
	assert_true(request_components_agree(&request, false, &error)); /* the third one has none */
	assert_true(request_take_list(&request, "(null)", &error));
	assert_true(request_components_agree(&request, false, &error));
	assert_true(request_take_list(&request, "verbose", &error));
	assert_false(request_components_agree(&request, false, &error));
	assert_non_null(strstr(error.text, "--ddp='' and another one has --ddp='verbose'"));
}

/* Takes what sbatch reads for a component: lists with "|" between. */
static bool sbatch_takes(struct request *request, const char *lists, struct error *error)
{
	char text[64], *rest = text, *list;

	snprintf(text, sizeof(text), "%s", lists);
	while (lists[0] != '\0' && (list = strsep(&rest, "|")) != NULL)
		assert_true(request_take_list(request, list, error));
	return request_components_agree(request, true, error);
}

/* sbatch reads the first component's list again for each later one: behind the script's, and before the command line's. */
TEST(sbatch_has_the_first_components_list)
{
	static const struct {
		const char *first, *second, *third;
		bool agree;
	} cases[] = {
		{ "", "", "", true },
		{ "timeout=1", "timeout=1", "timeout=1", true },
		{ "timeout=2|timeout=1", "timeout=1", "timeout=1|timeout=1", true },
		{ "timeout=1", "timeout=2|timeout=1|timeout=1", "timeout=1", true },
		{ "timeout=1", "timeout=2|timeout=1", "timeout=1", false },
		{ "timeout=1", "off|timeout=1", "timeout=1", false },
		{ "timeout=1", "timeout=1|off", "timeout=1", false },
		{ "timeout=1", "timeout=1", "verbose|timeout=1", false },
		{ "", "timeout=1", "", false },
		{ "", "", "timeout=1", false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct request request = { .lists = 0 };
		struct error error = { "" };
		assert_true(site_parse(&request.site, 0, NULL, &error));
		const bool agree = sbatch_takes(&request, cases[i].first, &error) &&
		                   sbatch_takes(&request, cases[i].second, &error) && sbatch_takes(&request, cases[i].third, &error);
		assert_int_equal(agree, cases[i].agree);
		if (!agree && cases[i].first[0] == '\0')
			assert_non_null(strstr(error.text, cases[i].second[0] != '\0' ? "only component 1 has" : "only component 2 has"));
	}
}

TEST(slurms_file_says_yes)
{
	static const struct { const char *text; bool yes; } cases[] = {
		{ "SignalChildrenProcesses=yes\n", true }, { "ConstrainCores=yes\n\tsignalchildrenprocesses = YES # all\n", true },
		{ "CgroupPlugin=cgroup/v2 SignalChildrenProcesses=true", true }, { "SignalChildrenProcesses=1", true },
		{ "", false }, { "SignalChildrenProcesses=no\n", false }, { "# SignalChildrenProcesses=yes\n", false },
		{ "ConstrainCores=yes\n", false }, { "SignalChildrenProcesses\n=\n", false }, { "CgroupPlugin=v2#SignalChildrenProcesses=yes", false },
	};
	char path[] = "/tmp/cgroup.conf.XXXXXX";
	int file = mkstemp(path);

	assert_true(file >= 0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(ftruncate(file, 0), 0);
		assert_int_equal(pwrite(file, cases[i].text, strlen(cases[i].text), 0), strlen(cases[i].text));
		assert_int_equal(site_file_says_yes(path, geteuid(), "SignalChildrenProcesses"), cases[i].yes);
	}
	close(file);
	unlink(path);
	assert_false(site_file_says_yes(path, geteuid(), "SignalChildrenProcesses"));
}
