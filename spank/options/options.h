/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of --ddp[=KEY=VALUE,...] and of the site's plugstack line, and what each key takes. Pure: text
   in, settings or a sentence out. Runs as root too, on what a user typed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spank/base/text.h"

enum { GRACE_OF_SLURM = UINT32_MAX, SILENCE_BY_DEFAULT = UINT32_MAX };
enum { OPTION_COUNT_MAX = 32, OPTION_NAMES_MAX = 256, PATH_TEXT_MAX = 1024, SUFFIX_MAX = 64 };
enum { NCCL_PATH_MAX = 255 }; /* NCCL cuts longer names of plugins */

enum address_mode { ADDRESS_NODENAME, ADDRESS_IP };
enum omp_mode { OMP_KEEP, OMP_ONE, OMP_CPUS };
enum check_mode { CHECK_NO, CHECK_TABLE, CHECK_JSON };
enum preflight_mode { PREFLIGHT_NO, PREFLIGHT_WARN, PREFLIGHT_STOP, PREFLIGHT_EXCLUDE };
enum gpu_mode { GPU_ERROR, GPU_WARN, GPU_IGNORE };

struct settings {
	uint16_t port_low, port_high; /* equal: that very port */
	enum address_mode address;
	char address_suffix[SUFFIX_MAX];
	enum omp_mode omp;
	enum gpu_mode gpu;
	bool launcher;
	bool kill_on_failure;
	uint32_t grace_seconds;        /* GRACE_OF_SLURM: not given */
	uint32_t stall_seconds;        /* 0: nobody looks for a stall */
	bool kill_on_stall;
	uint32_t slow_percent;         /* of the median's time: a rank that computes as long in a step is told; 0: none */
	uint32_t restarts;             /* of the step's programs, at most; 0: none */
	uint32_t spares;               /* so many of the step's nodes wait; only with restarts */
	uint32_t min_nodes;            /* the step goes on with so many; 0: with all but the spares; only with restarts */
	uint32_t silence_seconds;      /* SILENCE_BY_DEFAULT: not given; see settings_silence_ms() */
	uint32_t requeue_most;         /* so often srun has the job start again; 0: never */
	enum preflight_mode preflight; /* ddp-preflight runs before the programs */
	bool refuse_absent;            /* nodes without the plugin end the step */
	bool verbose;
	enum check_mode check;
	bool off;
	char bucket_mb[16];            /* "" : the library's default */
	uint32_t timeout_seconds;      /* 0: the library's default */
	char trace_dir[PATH_TEXT_MAX]; /* "" : no trace */
	char record_dir[PATH_TEXT_MAX]; /* of flight records; "": none are written */
	char log_dir[PATH_TEXT_MAX];   /* of the tasks' output; "": none is kept */
	bool watch;                    /* NCCL programs, too */
	char watch_path[NCCL_PATH_MAX]; /* of the plugin of NCCL's that does so; "": where it is installed */
	bool nccl_net;                 /* NCCL goes through UCX */
	char nccl_net_path[NCCL_PATH_MAX]; /* of its plugin; "": where it is installed */
	bool python;                   /* slurm_ddp starts in programs of Python */
	char python_path[NCCL_PATH_MAX]; /* of the folder that has it; "": where it is installed */
	uint32_t given;                /* bit i: key i of the table was given by the user */
};

/* The built-in defaults. */
void settings_init(struct settings *settings);

/* The step is not restarted: clears restart= and what goes with it. */
void settings_drop_restart(struct settings *settings);

/* After how many milliseconds of silence a node counts as lost; 0: nobody looks for it. */
uint32_t settings_silence_ms(const struct settings *settings);

struct value;

enum { WORDS_MAX = 4 };

/* A row of the table of keys. */
struct option {
	const char *name;
	const char *expects; /* what it takes, for messages */
	bool (*read)(const struct option *option, struct settings *settings, struct value value);
	size_t at, bytes;              /* the field of the settings that `read` sets */
	size_t path;                   /* where the field of a path is */
	char splits;                   /* no path holds this character */
	const char *words[WORDS_MAX];  /* it takes these words: the index is the setting */
	uint32_t least, most;          /* a number lies between them */
	bool or_zero;                  /* a number may also be 0 */
	/* Where libddp or another library reads the setting from a variable: its name, and its value,
	   or NULL, which may be written to `text`. A user may set the variable, too. */
	const char *variable;
	const char *(*tell)(const struct option *option, const struct settings *settings, char *text, size_t bytes);
	uint32_t unset;                /* the number that is not told */
	const char *not_for_sites; /* why it cannot be a site's default; NULL: it can */
};

/* The key at an index, NULL behind the last. */
const struct option *option_at(int index);
/* The index of a key in the table, or -1. */
int option_find(const char *key, size_t length);
/* The text of --ddp in srun --help. */
void option_usage(char *text, size_t bytes);
/* Whether the user gave this key (one of the table's names). */
bool option_given(const struct settings *settings, const char *key);

/* Sets one key. `value` NULL: the key stood alone. The settings are unchanged
   after an error. */
bool option_set(struct settings *settings, const char *key, size_t key_length,
                const char *value, size_t value_length, struct error *error);
