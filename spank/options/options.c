/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/options/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { SILENCE_SECONDS = 5 };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { RESTARTS_MAX = 1000, NODES_MAX = 100000 };

/* A key's value, not terminated; text is NULL when the key stood alone. */
struct value {
	const char *text;
	size_t length;
};

static bool value_is(struct value value, const char *word)
{
	return value.length == strlen(word) && memcmp(value.text, word, value.length) == 0;
}

static bool read_switch(bool *flag, struct value value)
{
	if (value.text == NULL || value_is(value, "yes")) {
		*flag = true;
		return true;
	}
	if (value_is(value, "no")) {
		*flag = false;
		return true;
	}
	return false;
}

/* Index of the value among `count` words, or -1. */
static int read_word(struct value value, const char *const *words, int count)
{
	for (int i = 0; value.text != NULL && i < count; i++)
		if (value_is(value, words[i]))
			return i;
	return -1;
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

static bool read_port(struct settings *settings, struct value value)
{
	uint32_t low, high;

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

static bool read_address(struct settings *settings, struct value value)
{
	static const char *const words[] = { [ADDRESS_NODENAME] = "nodename", [ADDRESS_IP] = "ip" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->address = (enum address_mode)word;
	return true;
}

/* A node name with the suffix must still be a host name. */
static bool read_suffix(struct settings *settings, struct value value)
{
	if (value.text == NULL || value.length >= sizeof(settings->address_suffix))
		return false;
	for (size_t i = 0; i < value.length; i++) {
		unsigned char c = (unsigned char)value.text[i];
		if (!isalnum(c) && c != '-' && c != '.' && c != '_')
			return false;
	}
	memcpy(settings->address_suffix, value.text, value.length);
	settings->address_suffix[value.length] = '\0';
	return true;
}

static bool read_omp(struct settings *settings, struct value value)
{
	static const char *const words[] = { [OMP_KEEP] = "keep", [OMP_ONE] = "1", [OMP_CPUS] = "cpus" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->omp = (enum omp_mode)word;
	return true;
}

static bool read_gpu(struct settings *settings, struct value value)
{
	static const char *const words[] = { [GPU_ERROR] = "error", [GPU_WARN] = "warn", [GPU_IGNORE] = "ignore" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->gpu = (enum gpu_mode)word;
	return true;
}

static bool read_launcher(struct settings *settings, struct value value)
{
	return read_switch(&settings->launcher, value);
}

/* A decimal fraction, 0 < MiB <= 65536, kept as text: the library reads it. */
static bool read_bucket(struct settings *settings, struct value value)
{
	struct value rest = value;
	uint32_t whole;
	bool positive;

	if (value.text == NULL || value.length >= sizeof(settings->bucket_mb) ||
	    !read_number(&rest, 65536, &whole))
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
	if (!positive)
		return false;
	memcpy(settings->bucket_mb, value.text, value.length);
	settings->bucket_mb[value.length] = '\0';
	return true;
}

static bool read_timeout(struct settings *settings, struct value value)
{
	uint32_t seconds;

	if (value.text == NULL || !read_number(&value, 604800, &seconds) ||
	    value.length > 0 || seconds == 0)
		return false;
	settings->timeout_seconds = seconds;
	return true;
}

static bool read_folder(char dir[PATH_TEXT_MAX], struct value value)
{
	if (value.text == NULL || value.length == 0 || value.length >= PATH_TEXT_MAX)
		return false;
	for (size_t i = 0; i < value.length; i++)
		if (iscntrl((unsigned char)value.text[i]))
			return false;
	memcpy(dir, value.text, value.length);
	dir[value.length] = '\0';
	return true;
}

static bool read_trace(struct settings *settings, struct value value)
{
	return read_folder(settings->trace_dir, value);
}

/* Processes of the plugin's write there, which do not know the program's folder. A user turns a site's folder off by
   "no". */
static bool read_record(struct settings *settings, struct value value)
{
	if (value.text != NULL && value_is(value, "no")) {
		settings->record_dir[0] = '\0';
		return true;
	}
	return value.text != NULL && value.length > 0 && value.text[0] == '/' && read_folder(settings->record_dir, value);
}

static bool read_log(struct settings *settings, struct value value)
{
	return read_folder(settings->log_dir, value);
}

/* Whether NCCL or Python is to load something, and perhaps from where. */
static bool read_plugin(bool *wanted, char path[NCCL_PATH_MAX], struct value value)
{
	if (value.text == NULL || value.length == 0 || value.text[0] != '/')
		return read_switch(wanted, value);
	if (value.length >= NCCL_PATH_MAX)
		return false;
	for (size_t i = 0; i < value.length; i++)
		if (iscntrl((unsigned char)value.text[i]))
			return false;
	memcpy(path, value.text, value.length);
	path[value.length] = '\0';
	*wanted = true;
	return true;
}

static bool read_watch(struct settings *settings, struct value value)
{
	return read_plugin(&settings->watch, settings->watch_path, value);
}

/* NCCL takes a comma for the next plugin. */
static bool read_nccl_net(struct settings *settings, struct value value)
{
	return (value.text == NULL || memchr(value.text, ',', value.length) == NULL) &&
	       read_plugin(&settings->nccl_net, settings->nccl_net_path, value);
}

static bool read_python(struct settings *settings, struct value value)
{
	/* In PYTHONPATH a colon would split the folder's name. */
	return (value.text == NULL || memchr(value.text, ':', value.length) == NULL) &&
	       read_plugin(&settings->python, settings->python_path, value);
}

static bool read_on_failure(struct settings *settings, struct value value)
{
	static const char *const words[] = { "continue", "kill" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->kill_on_failure = word == 1;
	return true;
}

static bool read_seconds(struct value value, uint32_t *seconds)
{
	uint32_t number;

	if (value.text == NULL || !read_number(&value, 604800, &number) || value.length > 0)
		return false;
	*seconds = number;
	return true;
}

static bool read_grace(struct settings *settings, struct value value)
{
	return read_seconds(value, &settings->grace_seconds);
}

static bool read_stall(struct settings *settings, struct value value)
{
	return read_seconds(value, &settings->stall_seconds);
}

/* A factor from 1.1 to 100, with two digits behind the point at most; 0: none. */
static bool read_slow(struct settings *settings, struct value value)
{
	uint32_t whole, percent;

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

static bool read_stall_action(struct settings *settings, struct value value)
{
	static const char *const words[] = { "report", "kill" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->kill_on_stall = word == 1;
	return true;
}

static bool read_restart(struct settings *settings, struct value value)
{
	uint32_t number;

	if (value.text == NULL || !read_number(&value, RESTARTS_MAX, &number) || value.length > 0)
		return false;
	settings->restarts = number;
	return true;
}

static bool read_nodes(struct value value, uint32_t *nodes)
{
	uint32_t number;

	if (value.text == NULL || !read_number(&value, NODES_MAX, &number) || value.length > 0)
		return false;
	*nodes = number;
	return true;
}

static bool read_spare(struct settings *settings, struct value value)
{
	return read_nodes(value, &settings->spares);
}

static bool read_min_nodes(struct settings *settings, struct value value)
{
	return read_nodes(value, &settings->min_nodes);
}

static bool read_silence(struct settings *settings, struct value value)
{
	uint32_t seconds;

	if (!read_seconds(value, &seconds) || seconds == 1 || seconds > 3600)
		return false;
	settings->silence_seconds = seconds;
	return true;
}

static bool read_requeue(struct settings *settings, struct value value)
{
	uint32_t most;

	if (value.text == NULL || !read_number(&value, RESTARTS_MAX, &most) || value.length > 0)
		return false;
	settings->requeue_most = most;
	return true;
}

static bool read_preflight(struct settings *settings, struct value value)
{
	static const char *const words[] = { [PREFLIGHT_NO] = "no", [PREFLIGHT_WARN] = "warn", [PREFLIGHT_STOP] = "stop",
		                             [PREFLIGHT_EXCLUDE] = "exclude" };
	int word = value.text == NULL ? (int)PREFLIGHT_WARN : read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->preflight = (enum preflight_mode)word;
	return true;
}

static bool read_absent(struct settings *settings, struct value value)
{
	static const char *const words[] = { "warn", "refuse" };
	int word = read_word(value, words, COUNT(words));

	if (word < 0)
		return false;
	settings->refuse_absent = word == 1;
	return true;
}

static bool read_verbose(struct settings *settings, struct value value)
{
	return read_switch(&settings->verbose, value);
}

static bool read_check(struct settings *settings, struct value value)
{
	bool table;

	if (value.text != NULL && value_is(value, "json")) {
		settings->check = CHECK_JSON;
		return true;
	}
	if (!read_switch(&table, value))
		return false;
	settings->check = table ? CHECK_TABLE : CHECK_NO;
	return true;
}

static bool read_off(struct settings *settings, struct value value)
{
	return read_switch(&settings->off, value);
}

static const char *tell_bucket(const struct settings *settings, char *text, size_t bytes)
{
	(void)text;
	(void)bytes;
	return settings->bucket_mb[0] != '\0' ? settings->bucket_mb : NULL;
}

static const char *tell_timeout(const struct settings *settings, char *text, size_t bytes)
{
	if (settings->timeout_seconds == 0)
		return NULL;
	snprintf(text, bytes, "%u", settings->timeout_seconds);
	return text;
}

static const char *tell_silence(const struct settings *settings, char *text, size_t bytes)
{
	if (settings->silence_seconds == SILENCE_BY_DEFAULT)
		return NULL;
	snprintf(text, bytes, "%u", settings->silence_seconds);
	return text;
}

static const char *tell_trace(const struct settings *settings, char *text, size_t bytes)
{
	(void)text;
	(void)bytes;
	return settings->trace_dir[0] != '\0' ? settings->trace_dir : NULL;
}

static const char *tell_python(const struct settings *settings, char *text, size_t bytes)
{
	(void)text;
	(void)bytes;
	return settings->python ? "yes" : NULL;
}

static const char *tell_record(const struct settings *settings, char *text, size_t bytes)
{
	(void)text;
	(void)bytes;
	return settings->record_dir[0] != '\0' ? settings->record_dir : NULL;
}

/* The one list of keys. srun --help and the messages are made of it, and a test holds the manual
   against it (tests/unit/test_spank_docs.sh). */
static const struct option options[] = {
	{ .name = "port", .read = read_port,
	  .expects = "a port from 1024 to 65535, or a range such as 21000-28999" },
	{ .name = "addr", .read = read_address, .expects = "nodename or ip" },
	{ .name = "addr-suffix", .read = read_suffix,
	  .expects = "letters, digits, '.', '-' or '_', at most 63" },
	{ .name = "omp", .read = read_omp, .expects = "keep, 1 or cpus" },
	{ .name = "gpu", .read = read_gpu, .expects = "error, warn or ignore" },
	{ .name = "launcher", .read = read_launcher, .expects = "no value, yes or no" },
	{ .name = "bucket-mb", .read = read_bucket,
	  .expects = "a number of MiB, above 0 and at most 65536",
	  .variable = "DDP_BUCKET_MB", .tell = tell_bucket },
	{ .name = "timeout", .read = read_timeout, .expects = "seconds from 1 to 604800",
	  .variable = "DDP_TIMEOUT", .tell = tell_timeout },
	{ .name = "trace", .read = read_trace, .expects = "a directory of at most 1023 bytes",
	  .variable = "DDP_TRACE_DIR", .tell = tell_trace },
	{ .name = "record", .read = read_record, .expects = "a directory that begins with /, of at most 1023 bytes, or no",
	  .variable = "DDP_RECORD_DIR", .tell = tell_record },
	{ .name = "log", .read = read_log, .expects = "a directory of at most 1023 bytes",
	  .not_for_sites = "it would put the rank in front of the lines of every srun" },
	{ .name = "watch", .read = read_watch,
	  .expects = "no value, yes, no, or the path of libnccl-profiler-ddp.so, at most 254 bytes" },
	{ .name = "python", .read = read_python,
	  .expects = "no value, yes, no, or the path of the folder with slurm_ddp, at most 254 bytes",
	  .variable = "DDP_PYTHON", .tell = tell_python },
	{ .name = "nccl-net", .read = read_nccl_net,
	  .expects = "no value, yes, no, or the path of libnccl-net-ddpucx.so, at most 254 bytes" },
	{ .name = "on-failure", .read = read_on_failure, .expects = "kill or continue" },
	{ .name = "grace", .read = read_grace, .expects = "seconds from 0 to 604800" },
	{ .name = "stall", .read = read_stall, .expects = "seconds from 1 to 604800, or 0 for never" },
	{ .name = "stall-action", .read = read_stall_action, .expects = "report or kill" },
	{ .name = "slow", .read = read_slow, .expects = "a factor from 1.1 to 100, as 1.5, or 0 for never" },
	{ .name = "restart", .read = read_restart, .expects = "a number from 0 to 1000" },
	{ .name = "spare", .read = read_spare, .expects = "a number of nodes from 0 to 100000" },
	{ .name = "min-nodes", .read = read_min_nodes,
	  .expects = "a number of nodes from 1 to 100000, or 0 for all but the spares" },
	{ .name = "silence", .read = read_silence, .expects = "seconds from 2 to 3600, or 0 for never",
	  .variable = "DDP_SILENCE", .tell = tell_silence },
	{ .name = "requeue", .read = read_requeue, .expects = "a number from 0 to 1000" },
	{ .name = "preflight", .read = read_preflight, .expects = "warn, stop, exclude or no" },
	{ .name = "absent", .read = read_absent, .expects = "refuse or warn" },
	{ .name = "verbose", .read = read_verbose, .expects = "no value, yes or no" },
	{ .name = "check", .read = read_check, .expects = "no value, yes, no or json",
	  .not_for_sites = "it would keep every job's program from running, and call that a success" },
	{ .name = "off", .read = read_off, .expects = "no value, yes or no" },
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
	if (options[index].read(settings, given))
		return true;
	if (value == NULL)
		return error_set(error, "key '%s' needs a value: %s", options[index].name,
		                 options[index].expects);
	return error_set(error, "key '%s' does not take '%s': it takes %s", options[index].name,
	                 quoted(given, shown, sizeof(shown)), options[index].expects);
}
