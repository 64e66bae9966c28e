/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options/options.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { SILENCE_SECONDS = 5 };

enum { RESTARTS_MAX = 1000, NODES_MAX = 100000, SECONDS_MAX = 604800 };

/* A key's value, not terminated; text is NULL when the key stood alone. */
struct value {
	const char *text;
	size_t length;
};

static bool value_is(struct value value, const char *word)
{
	return value.length == strlen(word) && memcmp(value.text, word, value.length) == 0;
}

/* Reads a decimal number up to `maximum` and moves the value behind it. */
static bool read_number(struct value *value, uint32_t maximum, uint32_t *number)
{
	uint64_t sum = 0;
	size_t digits = 0;

	while (digits < value->length && isdigit((unsigned char)value->text[digits])) {
		sum = sum * 10 + (uint64_t)(value->text[digits] - '0');
		if (sum > maximum)
			return false;
		digits++;
	}
	if (digits == 0)
		return false;
	value->text += digits;
	value->length -= digits;
	*number = (uint32_t)sum;
	return true;
}

/* The field of the settings that the option sets: `bytes` from `at` on. */
static void *field_of(const struct option *option, struct settings *settings)
{
	return (char *)settings + option->at;
}

/* Flags, enumerations and numbers. */
static void set_number(const struct option *option, struct settings *settings, uint32_t number)
{
	bool flag = number != 0;

	if (option->bytes == sizeof(flag))
		memcpy(field_of(option, settings), &flag, sizeof(flag));
	else
		memcpy(field_of(option, settings), &number, sizeof(number));
}

_Static_assert(sizeof(enum omp_mode) == sizeof(uint32_t), "set_number() sets enumerations");

static bool take_text(char *field, size_t bytes, struct value value)
{
	if (value.text == NULL || value.length >= bytes)
		return false;
	for (size_t i = 0; i < value.length; i++)
		if (iscntrl((unsigned char)value.text[i]))
			return false;
	memcpy(field, value.text, value.length);
	field[value.length] = '\0';
	return true;
}

static bool read_switch(const struct option *option, struct settings *settings, struct value value)
{
	bool yes = value.text == NULL || value_is(value, "yes");

	if (yes || value_is(value, "no"))
		set_number(option, settings, yes);
	return yes || value_is(value, "no");
}

/* One of the words, the index of which is the setting. */
static bool read_word(const struct option *option, struct settings *settings, struct value value)
{
	for (uint32_t i = 0; value.text != NULL && i < WORDS_MAX && option->words[i] != NULL; i++) {
		if (!value_is(value, option->words[i]))
			continue;
		set_number(option, settings, i);
		return true;
	}
	return false;
}

static bool read_count(const struct option *option, struct settings *settings, struct value value)
{
	uint32_t number;

	if (value.text == NULL || !read_number(&value, option->most, &number) || value.length > 0 ||
	    (number < option->least && (number > 0 || !option->or_zero)))
		return false;
	set_number(option, settings, number);
	return true;
}

static bool read_folder(const struct option *option, struct settings *settings, struct value value)
{
	return value.length > 0 && take_text(field_of(option, settings), option->bytes, value);
}

/* Processes of the plugin's write there, which do not know the program's folder. A user turns a site's folder off by
   "no". */
static bool read_record(const struct option *option, struct settings *settings, struct value value)
{
	if (value.text != NULL && value_is(value, "no")) {
		settings->record_dir[0] = '\0';
		return true;
	}
	return value.text != NULL && value.length > 0 && value.text[0] == '/' && read_folder(option, settings, value);
}

/* Whether NCCL or Python is to load something, and perhaps from where. */
static bool read_plugin(const struct option *option, struct settings *settings, struct value value)
{
	if (value.text == NULL || value.length == 0 || value.text[0] != '/')
		return read_switch(option, settings, value);
	if (memchr(value.text, option->splits, value.length) != NULL ||
	    !take_text((char *)settings + option->path, NCCL_PATH_MAX, value))
		return false;
	set_number(option, settings, true);
	return true;
}

static bool read_port(const struct option *option, struct settings *settings, struct value value)
{
	uint32_t low, high;

	(void)option;
	if (value.text == NULL || !read_number(&value, 65535, &low))
		return false;
	high = low;
	if (value.length > 0) {
		if (value.text[0] != '-')
			return false;
		value.text++;
		value.length--;
		if (!read_number(&value, 65535, &high) || value.length > 0)
			return false;
	}
	if (low < 1024 || high < low)
		return false;
	settings->port_low = (uint16_t)low;
	settings->port_high = (uint16_t)high;
	return true;
}

/* A node name with the suffix must still be a host name. */
static bool read_suffix(const struct option *option, struct settings *settings, struct value value)
{
	for (size_t i = 0; i < value.length; i++) {
		unsigned char c = (unsigned char)value.text[i];
		if (!isalnum(c) && c != '-' && c != '.' && c != '_')
			return false;
	}
	return take_text(field_of(option, settings), option->bytes, value);
}

/* A decimal fraction, 0 < MiB <= 65536, kept as text: the library reads it. */
static bool read_bucket(const struct option *option, struct settings *settings, struct value value)
{
	struct value rest = value;
	uint32_t whole;
	bool positive;

	if (value.text == NULL || !read_number(&rest, 65536, &whole))
		return false;
	positive = whole > 0;
	if (rest.length > 0) {
		if (rest.text[0] != '.' || rest.length < 2 || whole == 65536)
			return false;
		for (size_t i = 1; i < rest.length; i++) {
			if (!isdigit((unsigned char)rest.text[i]))
				return false;
			positive |= rest.text[i] != '0';
		}
	}
	return positive && take_text(field_of(option, settings), option->bytes, value);
}

/* A factor from 1.1 to 100, with two digits behind the point at most; 0: none. */
static bool read_slow(const struct option *option, struct settings *settings, struct value value)
{
	uint32_t whole, percent;

	(void)option;
	if (value.text == NULL || !read_number(&value, 100, &whole))
		return false;
	percent = whole * 100;
	if (value.length > 0) {
		if (value.text[0] != '.' || value.length < 2 || value.length > 3)
			return false;
		for (size_t i = 1, weight = 10; i < value.length; i++, weight = 1) {
			if (!isdigit((unsigned char)value.text[i]))
				return false;
			percent += (uint32_t)(value.text[i] - '0') * (uint32_t)weight;
		}
	}
	if (percent != 0 && (percent < 110 || percent > 10000))
		return false;
	settings->slow_percent = percent;
	return true;
}

static bool read_preflight(const struct option *option, struct settings *settings, struct value value)
{
	if (value.text != NULL)
		return read_word(option, settings, value);
	settings->preflight = PREFLIGHT_WARN;
	return true;
}

static bool read_check(const struct option *option, struct settings *settings, struct value value)
{
	if (value.text == NULL || !value_is(value, "json"))
		return read_switch(option, settings, value);
	settings->check = CHECK_JSON;
	return true;
}

_Static_assert(CHECK_TABLE == true, "check=yes is a table");

static const char *tell_text(const struct option *option, const struct settings *settings, char *text, size_t bytes)
{
	const char *field = (const char *)settings + option->at;

	(void)text;
	(void)bytes;
	return field[0] != '\0' ? field : NULL;
}

static const char *tell_number(const struct option *option, const struct settings *settings, char *text, size_t bytes)
{
	uint32_t number;

	memcpy(&number, (const char *)settings + option->at, sizeof(number));
	if (number == option->unset)
		return NULL;
	snprintf(text, bytes, "%u", number);
	return text;
}

static const char *tell_python(const struct option *option, const struct settings *settings, char *text, size_t bytes)
{
	(void)option;
	(void)text;
	(void)bytes;
	return settings->python ? "yes" : NULL;
}

#define FIELD(field) .at = offsetof(struct settings, field), .bytes = sizeof(((struct settings *)0)->field)

/* The one list of keys. srun --help and the messages are made of it, and a test holds the manual
   against it (tests/unit/test_spank_docs.sh). */
static const struct option options[] = {
	{ .name = "port", .read = read_port,
	  .expects = "a port from 1024 to 65535, or a range such as 21000-28999" },
	{ .name = "addr", .read = read_word, FIELD(address), .words = { "nodename", "ip" },
	  .expects = "nodename or ip" },
	{ .name = "addr-suffix", .read = read_suffix, FIELD(address_suffix),
	  .expects = "letters, digits, '.', '-' or '_', at most 63" },
	{ .name = "omp", .read = read_word, FIELD(omp), .words = { "keep", "1", "cpus" }, .expects = "keep, 1 or cpus" },
	{ .name = "gpu", .read = read_word, FIELD(gpu), .words = { "error", "warn", "ignore" },
	  .expects = "error, warn or ignore" },
	{ .name = "launcher", .read = read_switch, FIELD(launcher), .expects = "no value, yes or no" },
	{ .name = "bucket-mb", .read = read_bucket, FIELD(bucket_mb),
	  .expects = "a number of MiB, above 0 and at most 65536",
	  .variable = "DDP_BUCKET_MB", .tell = tell_text },
	{ .name = "timeout", .read = read_count, FIELD(timeout_seconds), .least = 1, .most = SECONDS_MAX,
	  .expects = "seconds from 1 to 604800", .variable = "DDP_TIMEOUT", .tell = tell_number },
	{ .name = "trace", .read = read_folder, FIELD(trace_dir), .expects = "a directory of at most 1023 bytes",
	  .variable = "DDP_TRACE_DIR", .tell = tell_text },
	{ .name = "record", .read = read_record, FIELD(record_dir),
	  .expects = "a directory that begins with /, of at most 1023 bytes, or no",
	  .variable = "DDP_RECORD_DIR", .tell = tell_text },
	{ .name = "log", .read = read_folder, FIELD(log_dir), .expects = "a directory of at most 1023 bytes",
	  .not_for_sites = "it would put the rank in front of the lines of every srun" },
	{ .name = "watch", .read = read_plugin, FIELD(watch), .path = offsetof(struct settings, watch_path),
	  .expects = "no value, yes, no, or the path of libnccl-profiler-ddp.so, at most 254 bytes" },
	/* In PYTHONPATH a colon would split the folder's name. */
	{ .name = "python", .read = read_plugin, FIELD(python), .path = offsetof(struct settings, python_path), .splits = ':',
	  .expects = "no value, yes, no, or the path of the folder with slurm_ddp, at most 254 bytes",
	  .variable = "DDP_PYTHON", .tell = tell_python },
	/* NCCL takes a comma for the next plugin. */
	{ .name = "nccl-net", .read = read_plugin, FIELD(nccl_net), .path = offsetof(struct settings, nccl_net_path),
	  .splits = ',', .expects = "no value, yes, no, or the path of libnccl-net-ddpucx.so, at most 254 bytes" },
	{ .name = "on-failure", .read = read_word, FIELD(kill_on_failure), .words = { "continue", "kill" },
	  .expects = "kill or continue" },
	{ .name = "grace", .read = read_count, FIELD(grace_seconds), .most = SECONDS_MAX,
	  .expects = "seconds from 0 to 604800" },
	{ .name = "stall", .read = read_count, FIELD(stall_seconds), .most = SECONDS_MAX,
	  .expects = "seconds from 1 to 604800, or 0 for never" },
	{ .name = "stall-action", .read = read_word, FIELD(kill_on_stall), .words = { "report", "kill" },
	  .expects = "report or kill" },
	{ .name = "slow", .read = read_slow, .expects = "a factor from 1.1 to 100, as 1.5, or 0 for never" },
	{ .name = "restart", .read = read_count, FIELD(restarts), .most = RESTARTS_MAX, .expects = "a number from 0 to 1000" },
	{ .name = "spare", .read = read_count, FIELD(spares), .most = NODES_MAX,
	  .expects = "a number of nodes from 0 to 100000" },
	{ .name = "min-nodes", .read = read_count, FIELD(min_nodes), .most = NODES_MAX,
	  .expects = "a number of nodes from 1 to 100000, or 0 for all but the spares" },
	{ .name = "silence", .read = read_count, FIELD(silence_seconds), .least = 2, .or_zero = true, .most = 3600,
	  .expects = "seconds from 2 to 3600, or 0 for never",
	  .variable = "DDP_SILENCE", .tell = tell_number, .unset = SILENCE_BY_DEFAULT },
	{ .name = "requeue", .read = read_count, FIELD(requeue_most), .most = RESTARTS_MAX,
	  .expects = "a number from 0 to 1000" },
	{ .name = "preflight", .read = read_preflight, FIELD(preflight), .words = { "no", "warn", "stop", "exclude" },
	  .expects = "warn, stop, exclude or no" },
	{ .name = "absent", .read = read_word, FIELD(refuse_absent), .words = { "warn", "refuse" },
	  .expects = "refuse or warn" },
	{ .name = "verbose", .read = read_switch, FIELD(verbose), .expects = "no value, yes or no" },
	{ .name = "check", .read = read_check, FIELD(check), .expects = "no value, yes, no or json",
	  .not_for_sites = "it would keep every job's program from running, and call that a success" },
	{ .name = "off", .read = read_switch, FIELD(off), .expects = "no value, yes or no" },
};

enum { OPTION_COUNT = sizeof(options) / sizeof(options[0]) };

_Static_assert((int)OPTION_COUNT <= (int)OPTION_COUNT_MAX, "settings.given has a bit for each key");

void settings_init(struct settings *settings)
{
	*settings = (struct settings){
		.port_low = 21000,
		.port_high = 28999,
		.address = ADDRESS_NODENAME,
		.omp = OMP_CPUS,
		.gpu = GPU_WARN,
		.kill_on_failure = true,
		.grace_seconds = GRACE_OF_SLURM,
		.refuse_absent = true,
		.silence_seconds = SILENCE_BY_DEFAULT,
	};
}

void settings_drop_restart(struct settings *settings)
{
	settings->restarts = settings->spares = settings->min_nodes = 0;
}

uint32_t settings_silence_ms(const struct settings *settings)
{
	return (settings->silence_seconds == SILENCE_BY_DEFAULT ? SILENCE_SECONDS : settings->silence_seconds) * 1000;
}

int option_find(const char *key, size_t length)
{
	for (int i = 0; i < OPTION_COUNT; i++)
		if (strlen(options[i].name) == length && memcmp(options[i].name, key, length) == 0)
			return i;
	return -1;
}

const struct option *option_at(int index)
{
	return index >= 0 && index < OPTION_COUNT ? &options[index] : NULL;
}

/* "port, addr, ..." */
static void option_names(char *text, size_t bytes)
{
	size_t used = 0;

	text[0] = '\0';
	for (int i = 0; i < OPTION_COUNT && used < bytes; i++)
		used += (size_t)snprintf(text + used, bytes - used, "%s%s",
		                         i > 0 ? ", " : "", options[i].name);
}

void option_usage(char *text, size_t bytes)
{
	char names[OPTION_NAMES_MAX];

	option_names(names, sizeof(names));
	snprintf(text, bytes, "[ddp] tell each task its rank for data-parallel training; keys: %s "
	         "(see srun-ddp(7))", names);
}

bool option_given(const struct settings *settings, const char *key)
{
	int index = option_find(key, strlen(key));

	return index >= 0 && (settings->given >> index & 1) != 0;
}

/* A quoted value for a message: short, and printable as root's log needs it. */
static const char *quoted(struct value value, char *text, size_t bytes)
{
	size_t length = value.length < bytes - 1 ? value.length : bytes - 1;

	for (size_t i = 0; i < length; i++)
		text[i] = isprint((unsigned char)value.text[i]) ? value.text[i] : '?';
	text[length] = '\0';
	return text;
}

bool option_set(struct settings *settings, const char *key, size_t key_length,
                const char *value, size_t value_length, struct error *error)
{
	struct value name = { key, key_length };
	struct value given = { value, value != NULL ? value_length : 0 };
	char shown[80], names[OPTION_NAMES_MAX];
	int index = option_find(key, key_length);

	if (index < 0) {
		option_names(names, sizeof(names));
		return error_set(error, "unknown key '%s'; the keys are %s",
		                 quoted(name, shown, sizeof(shown)), names);
	}
	if (options[index].read(&options[index], settings, given))
		return true;
	if (value == NULL)
		return error_set(error, "key '%s' needs a value: %s", options[index].name,
		                 options[index].expects);
	return error_set(error, "key '%s' does not take '%s': it takes %s", options[index].name,
	                 quoted(given, shown, sizeof(shown)), options[index].expects);
}
