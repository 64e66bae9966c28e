/* spank/options and spank/site: what --ddp and the plugstack line accept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "spank/options.h"
#include "spank/site.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct settings defaults(void)
{
	struct settings settings;

	settings_init(&settings);
	return settings;
}

/* All settings that a list can change, as text: one line tells two apart. */
static const char *shown(const struct settings *s)
{
	static char text[2048];

	snprintf(text, sizeof(text),
	         "port=%u-%u addr=%d suffix=%s omp=%d gpu=%d launcher=%d bucket=%s timeout=%u trace=%s "
	         "kill=%d verbose=%d check=%d off=%d", s->port_low, s->port_high, s->address,
	         s->address_suffix, s->omp, s->gpu, s->launcher, s->bucket_mb, s->timeout_seconds,
	         s->trace_dir, s->kill_on_failure, s->verbose, s->check, s->off);
	return text;
}

#define BASE_BEHIND_PORT "addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 trace= kill=1 " \
	"verbose=0 check=0 off=0"
#define BASE "port=21000-28999 " BASE_BEHIND_PORT

static void grace_is_in_seconds(void **state)
{
	static const struct { const char *list; bool taken; uint32_t seconds; } cases[] = {
		{ "", true, GRACE_OF_SLURM }, { "grace=0", true, 0 }, { "grace=300", true, 300 },
		{ "grace=604800", true, 604800 }, { "grace=604801", false, 0 }, { "grace", false, 0 },
		{ "grace=", false, 0 }, { "grace=5m", false, 0 }, { "grace=-1", false, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct settings settings;
		struct error error = { "" };
		settings_init(&settings);
		assert_int_equal(options_parse(&settings, cases[i].list, 0, &error), cases[i].taken);
		if (cases[i].taken)
			assert_int_equal(settings.grace_seconds, cases[i].seconds);
		else
			assert_non_null(strstr(error.text, "'grace'"));
	}
}

static void each_key_sets_what_it_says(void **state)
{
	static const struct { const char *list, *expected; } cases[] = {
		{ NULL, BASE }, { "", BASE }, { "(null)", BASE },
		{ "port=29500", "port=29500-29500 " BASE_BEHIND_PORT },
		{ "port=1024", "port=1024-1024 " BASE_BEHIND_PORT },
		{ "port=65535", "port=65535-65535 " BASE_BEHIND_PORT },
		{ "port=20000-29999", "port=20000-29999 " BASE_BEHIND_PORT },
		{ "port=20000-20000", "port=20000-20000 " BASE_BEHIND_PORT },
		{ "port=1024-65535", "port=1024-65535 " BASE_BEHIND_PORT },
		{ "port=0021000", "port=21000-21000 " BASE_BEHIND_PORT },
		{ "addr=nodename", BASE },
		{ "addr=ip", "port=21000-28999 addr=1 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 "
		             "trace= kill=1 verbose=0 check=0 off=0" },
		{ "addr-suffix=-ib0", "port=21000-28999 addr=0 suffix=-ib0 omp=2 gpu=1 launcher=0 bucket= "
		                      "timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "addr-suffix=.hsn.example.org", "port=21000-28999 addr=0 suffix=.hsn.example.org omp=2 "
		  "gpu=1 launcher=0 bucket= timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "addr-suffix=", BASE },
		{ "omp=keep", "port=21000-28999 addr=0 suffix= omp=0 gpu=1 launcher=0 bucket= timeout=0 "
		              "trace= kill=1 verbose=0 check=0 off=0" },
		{ "omp=1", "port=21000-28999 addr=0 suffix= omp=1 gpu=1 launcher=0 bucket= timeout=0 "
		           "trace= kill=1 verbose=0 check=0 off=0" },
		{ "omp=cpus", BASE },
		{ "gpu=error", "port=21000-28999 addr=0 suffix= omp=2 gpu=0 launcher=0 bucket= timeout=0 "
		               "trace= kill=1 verbose=0 check=0 off=0" },
		{ "gpu=warn", BASE },
		{ "gpu=ignore", "port=21000-28999 addr=0 suffix= omp=2 gpu=2 launcher=0 bucket= timeout=0 "
		                "trace= kill=1 verbose=0 check=0 off=0" },
		{ "launcher", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=1 bucket= timeout=0 "
		              "trace= kill=1 verbose=0 check=0 off=0" },
		{ "launcher=yes", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=1 bucket= "
		                  "timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "launcher=no", BASE },
		{ "bucket-mb=25", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket=25 "
		                  "timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "bucket-mb=0.5", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket=0.5 "
		                   "timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "bucket-mb=65536", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket=65536 "
		                     "timeout=0 trace= kill=1 verbose=0 check=0 off=0" },
		{ "timeout=1", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=1 "
		               "trace= kill=1 verbose=0 check=0 off=0" },
		{ "timeout=604800", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= "
		                    "timeout=604800 trace= kill=1 verbose=0 check=0 off=0" },
		{ "trace=/scratch/a=b c", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= "
		                          "timeout=0 trace=/scratch/a=b c kill=1 verbose=0 check=0 off=0" },
		{ "on-failure=kill", BASE },
		{ "on-failure=continue", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= "
		                         "timeout=0 trace= kill=0 verbose=0 check=0 off=0" },
		{ "verbose", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 "
		             "trace= kill=1 verbose=1 check=0 off=0" },
		{ "verbose=no", BASE },
		{ "check", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 "
		           "trace= kill=1 verbose=0 check=1 off=0" },
		{ "check=json", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 "
		           "trace= kill=1 verbose=0 check=2 off=0" },
		{ "check=no", BASE },
		{ "off", "port=21000-28999 addr=0 suffix= omp=2 gpu=1 launcher=0 bucket= timeout=0 trace= "
		         "kill=1 verbose=0 check=0 off=1" },
		{ "off=no", BASE },
		{ "verbose,port=30000,omp=1,gpu=ignore,timeout=90,on-failure=continue,addr=ip,bucket-mb=4",
		  "port=30000-30000 addr=1 suffix= omp=1 gpu=2 launcher=0 bucket=4 timeout=90 trace= kill=0 "
		  "verbose=1 check=0 off=0" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct settings settings = defaults();
		struct error error = { "" };
		if (!options_parse(&settings, cases[i].list, 0, &error))
			fail_msg("'%s': %s", cases[i].list, error.text);
		assert_string_equal(shown(&settings), cases[i].expected);
	}
}

static void wrong_words_are_refused_by_name(void **state)
{
	static const struct { const char *list, *named; } cases[] = {
		{ "prot=29500", "unknown key 'prot'" }, { "PORT=29500", "unknown key 'PORT'" },
		{ " port=29500", "unknown key ' port'" }, { "port =1", "unknown key 'port '" },
		{ "=1", "unknown key ''" }, { "=", "unknown key ''" },
		{ "x", "unknown key 'x'" }, { "por", "unknown key 'por'" }, { "ports=1", "unknown key 'ports'" },
		{ "locked=port", "unknown key 'locked'" },
		{ "\033[31m", "unknown key '?[31m'" },
		{ ",", "empty" }, { "verbose,", "empty" }, { ",verbose", "empty" },
		{ "verbose,,check", "empty" },
		{ "verbose,verbose", "'verbose' is given twice" },
		{ "port=2000,port=2000", "'port' is given twice" },
		{ "port", "'port' needs a value" }, { "port=", "'port'" }, { "port=0", "'port'" },
		{ "port=1023", "'port'" }, { "port=65536", "'port'" }, { "port=4294988296", "'port'" },
		{ "port=99999999999999999999", "'port'" }, { "port=-1", "'port'" }, { "port=+2000", "'port'" },
		{ "port=2000-", "'port'" }, { "port=-2000", "'port'" }, { "port=3000-2000", "'port'" },
		{ "port=2000-3000-4000", "'port'" }, { "port=2000:3000", "'port'" }, { "port=abc", "'port'" },
		{ "port=0x5000", "'port'" }, { "port=2000 ", "'port'" }, { "port=500-3000", "'port'" },
		{ "addr", "'addr' needs a value" }, { "addr=", "'addr'" }, { "addr=IP", "'addr'" },
		{ "addr=10.0.0.1", "'addr'" }, { "addr=ipx", "'addr'" },
		{ "addr-suffix", "'addr-suffix' needs a value" }, { "addr-suffix=a b", "'addr-suffix'" },
		{ "addr-suffix=;reboot", "'addr-suffix'" }, { "addr-suffix=$(x)", "'addr-suffix'" },
		{ "addr-suffix=/etc", "'addr-suffix'" },
		{ "addr-suffix=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "'addr-suffix'" },
		{ "omp", "'omp' needs a value" }, { "omp=2", "'omp'" }, { "omp=", "'omp'" },
		{ "omp=cpu", "'omp'" }, { "gpu", "'gpu' needs a value" }, { "gpu=no", "'gpu'" },
		{ "gpu=warning", "'gpu'" }, { "launcher=1", "'launcher'" }, { "launcher=", "'launcher'" },
		{ "bucket-mb", "'bucket-mb' needs a value" }, { "bucket-mb=0", "'bucket-mb'" },
		{ "bucket-mb=0.0", "'bucket-mb'" }, { "bucket-mb=-1", "'bucket-mb'" },
		{ "bucket-mb=1e3", "'bucket-mb'" }, { "bucket-mb=nan", "'bucket-mb'" },
		{ "bucket-mb=1.", "'bucket-mb'" }, { "bucket-mb=.5", "'bucket-mb'" },
		{ "bucket-mb=65537", "'bucket-mb'" }, { "bucket-mb=65536.5", "'bucket-mb'" },
		{ "bucket-mb=1.0000000000000000", "'bucket-mb'" }, { "bucket-mb=1.2.3", "'bucket-mb'" },
		{ "timeout", "'timeout' needs a value" }, { "timeout=0", "'timeout'" },
		{ "timeout=604801", "'timeout'" }, { "timeout=5m", "'timeout'" }, { "timeout=1.5", "'timeout'" },
		{ "trace", "'trace' needs a value" }, { "trace=", "'trace'" }, { "trace=a\nb", "'trace'" },
		{ "on-failure", "'on-failure' needs a value" }, { "on-failure=stop", "'on-failure'" },
		{ "stall", "'stall' needs a value" }, { "stall=604801", "'stall' does not take" },
		{ "stall=-1", "'stall' does not take" }, { "stall=1.5", "'stall' does not take" },
		{ "stall-action", "'stall-action' needs a value" }, { "stall-action=stop", "'stall-action'" },
		{ "stall=5,launcher", "'stall' and 'launcher'" }, { "launcher=yes,stall=5", "'stall' and 'launcher'" },
		{ "verbose=1", "'verbose'" }, { "check=maybe", "'check'" }, { "off=on", "'off'" },
		{ "verbose,port=99,check", "'port'" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct settings settings = defaults(), before = settings;
		struct error error = { "" };
		if (options_parse(&settings, cases[i].list, 0, &error))
			fail_msg("'%s' was accepted", cases[i].list);
		if (strstr(error.text, cases[i].named) == NULL)
			fail_msg("'%s': '%s' does not say \"%s\"", cases[i].list, error.text, cases[i].named);
		assert_memory_equal(&settings, &before, sizeof(before));
	}
}

static void unknown_key_comes_with_the_known_ones(void **state)
{
	struct settings settings = defaults();
	struct error error;

	(void)state;
	assert_false(options_parse(&settings, "x=1", 0, &error));
	for (int i = 0; option_name(i) != NULL; i++)
		assert_non_null(strstr(error.text, option_name(i)));
}

static void trace_directory_has_a_longest_length(void **state)
{
	char list[2000] = "trace=";
	struct settings settings = defaults();
	struct error error;

	(void)state;
	memset(list + 6, 'd', 1023);
	list[6 + 1023] = '\0';
	assert_true(options_parse(&settings, list, 0, &error));
	assert_int_equal(strlen(settings.trace_dir), 1023);
	strcat(list, "d");
	assert_false(options_parse(&settings, list, 0, &error));
	assert_non_null(strstr(error.text, "'trace'"));
}

static void watch_takes_a_switch_or_a_path(void **state)
{
	char list[600] = "watch=/";
	struct settings settings = defaults();
	struct error error;

	(void)state;
	assert_false(settings.watch);
	assert_true(options_parse(&settings, "watch", 0, &error));
	assert_true(settings.watch);
	assert_string_equal(settings.watch_path, "");
	assert_true(options_parse(&settings, "watch=no", 0, &error));
	assert_false(settings.watch);
	memset(list + 7, 'd', 253);
	assert_true(options_parse(&settings, list, 0, &error));
	assert_true(settings.watch);
	assert_int_equal(strlen(settings.watch_path), 254);
	strcat(list, "d");
	assert_false(options_parse(&settings, list, 0, &error));
	assert_non_null(strstr(error.text, "'watch'"));
	assert_false(options_parse(&settings, "watch=libx.so", 0, &error));
	assert_false(options_parse(&settings, "watch=/a\nb", 0, &error));
	assert_false(options_parse(&settings, "watch=", 0, &error));
}

static void nccl_net_takes_a_switch_or_one_path(void **state)
{
	struct settings settings = defaults();
	struct error error;

	(void)state;
	assert_false(settings.nccl_net);
	assert_true(option_set(&settings, "nccl-net", 8, "/opt/a.so", 9, &error));
	assert_true(settings.nccl_net);
	assert_string_equal(settings.nccl_net_path, "/opt/a.so");
	assert_false(settings.watch);
	assert_true(options_parse(&settings, "nccl-net=no", 0, &error));
	assert_false(settings.nccl_net);
	/* NCCL would take what follows a comma for another plugin. */
	assert_false(option_set(&settings, "nccl-net", 8, "/a,/b", 5, &error));
	assert_non_null(strstr(error.text, "'nccl-net'"));
	assert_false(options_parse(&settings, "nccl-net=ddpucx", 0, &error));
	assert_false(settings.nccl_net);
}

static void later_list_starts_from_the_defaults_it_is_given(void **state)
{
	struct settings first = defaults(), second = defaults();
	struct error error;

	(void)state;
	assert_true(options_parse(&first, "port=30000,verbose", 0, &error));
	assert_true(option_given(&first, "port"));
	assert_true(options_parse(&second, "omp=1", 0, &error));
	assert_false(option_given(&second, "port"));
	assert_true(option_given(&second, "omp"));
	assert_false(second.verbose);
}

static void site_gives_defaults_and_locks_keys(void **state)
{
	char *words[] = { "port=25000-25999", "addr-suffix=-ib", "omp=keep", "locked=port,addr-suffix" };
	struct site site;
	struct settings settings;
	struct error error = { "" };

	(void)state;
	assert_true(site_parse(&site, 4, words, &error));
	settings = site.defaults;
	assert_int_equal(settings.port_low, 25000);
	assert_string_equal(settings.address_suffix, "-ib");
	assert_false(option_given(&settings, "port"));
	assert_true(options_parse(&settings, "omp=1", site.locked, &error));
	assert_int_equal(settings.port_high, 25999);
	assert_false(options_parse(&settings, "port=30000", site.locked, &error));
	assert_non_null(strstr(error.text, "'port' is locked by this site"));
	assert_false(options_parse(&settings, "verbose,addr-suffix=", site.locked, &error));
	assert_non_null(strstr(error.text, "'addr-suffix' is locked"));
}

static void wrong_site_lines_are_refused_by_name(void **state)
{
	static const struct { const char *words[3], *named; } cases[] = {
		{ { "prot=1" }, "'prot'" }, { { "port=1" }, "'port'" }, { { "locked=" }, "unknown key ''" },
		{ { "locked=port,prot" }, "'prot'" }, { { "locked" }, "unknown key 'locked'" },
		{ { "verbose", "verbose=no" }, "'verbose' is given twice" },
		{ { "port=25000,verbose" }, "'port'" }, { { "" }, "unknown key ''" },
		{ { "omp=cpus", "gpu=fatal" }, "'gpu'" }, { { "locked=port," }, "unknown key ''" },
		{ { "check" }, "'check' is for users" }, { { "omp=1", "check=json" }, "'check' is for users" },
		{ { "off" }, "'off' is for users" },
	};

	(void)state;
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

static void site_may_say_what_holds_anyway(void **state)
{
	char *words[] = { (char[]){ "check=no" }, (char[]){ "off=no" }, (char[]){ "locked=check,off" } };
	struct site site;
	struct error error;

	(void)state;
	assert_true(site_parse(&site, 3, words, &error));
}

static void empty_site_line_is_the_built_in_defaults(void **state)
{
	struct settings base = defaults();
	struct site site;
	struct error error;

	(void)state;
	assert_true(site_parse(&site, 0, NULL, &error));
	assert_memory_equal(&site.defaults, &base, sizeof(base));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grace_is_in_seconds),
		cmocka_unit_test(each_key_sets_what_it_says),
		cmocka_unit_test(wrong_words_are_refused_by_name),
		cmocka_unit_test(unknown_key_comes_with_the_known_ones),
		cmocka_unit_test(trace_directory_has_a_longest_length),
		cmocka_unit_test(watch_takes_a_switch_or_a_path),
		cmocka_unit_test(nccl_net_takes_a_switch_or_one_path),
		cmocka_unit_test(later_list_starts_from_the_defaults_it_is_given),
		cmocka_unit_test(site_gives_defaults_and_locks_keys),
		cmocka_unit_test(wrong_site_lines_are_refused_by_name),
		cmocka_unit_test(site_may_say_what_holds_anyway),
		cmocka_unit_test(empty_site_line_is_the_built_in_defaults),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
