/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/launch/preflight.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/launch/srun_options.h"

struct writer {
	struct preflight_command *command;
	size_t words, used;
	bool full;
};

static void add_command_word(struct writer *w, const char *word)
{
	if (w->words + 1 >= PREFLIGHT_STEP_WORDS) {
		w->full = true;
		return;
	}
	w->command->words[w->words++] = word;
	w->command->words[w->words] = NULL;
}

__attribute__((format(printf, 2, 3))) static void add_text(struct writer *w, const char *format, ...)
{
	size_t room = sizeof(w->command->text) - w->used;
	char *text = w->command->text + w->used;
	va_list arguments;
	int length;

	va_start(arguments, format);
	length = vsnprintf(text, room, format, arguments);
	va_end(arguments);
	if (length < 0 || (size_t)length >= room) {
		w->full = true;
		return;
	}
	w->used += (size_t)length + 1;
	add_command_word(w, text);
}

/* Other keys of the user's are for the program. */
static void add_ddp(struct writer *w, const struct settings *settings)
{
	bool by_ip = option_given(settings, "addr"), by_suffix = option_given(settings, "addr-suffix");

	if (!by_ip && !by_suffix)
		add_command_word(w, "--ddp");
	else
		add_text(w, "--ddp=%s%s%s%s", by_ip ? settings->address == ADDRESS_IP ? "addr=ip" : "addr=nodename" : "",
		         by_ip && by_suffix ? "," : "", by_suffix ? "addr-suffix=" : "", by_suffix ? settings->address_suffix : "");
}

bool preflight_step_command(struct preflight_command *command, const struct preflight_step *step,
                            const struct settings *settings, struct error *error)
{
	struct writer w = { .command = command };
	size_t bytes = step->node_list != NULL ? strlen(step->node_list) + sizeof("--nodelist=") : 0;

	*command = (struct preflight_command){ .node_list = bytes > 0 ? malloc(bytes) : NULL };
	if (bytes > 0 && command->node_list == NULL)
		return error_set(error, "no memory");
	add_command_word(&w, step->srun);
	/* The step that is to follow has the resources already. */
	add_command_word(&w, "--overlap");
	add_command_word(&w, "--quiet");
	add_command_word(&w, "--mpi=none");
	add_command_word(&w, "--input=none");
	add_text(&w, "--jobid=%u", step->job_id);
	add_text(&w, "--nodes=%u", step->nodes);
	add_text(&w, "--ntasks=%u", step->tasks);
	if (step->tasks % step->nodes == 0)
		add_text(&w, "--ntasks-per-node=%u", step->tasks / step->nodes);
	if (step->cpus_per_task != NULL)
		add_text(&w, "--cpus-per-task=%s", step->cpus_per_task);
	if (bytes > 0) {
		snprintf(command->node_list, bytes, "--nodelist=%s", step->node_list);
		add_command_word(&w, command->node_list);
	}
	add_ddp(&w, settings);
	add_command_word(&w, step->program);
	add_command_word(&w, "--for-srun");
	add_command_word(&w, "--quiet");
	return !w.full || error_set(error, "its command is too long");
}

void preflight_step_free(struct preflight_command *command)
{
	free(command->node_list);
	command->node_list = NULL;
}

/* Reads a number and moves behind it and a blank. */
static bool read_number(char **text, uint32_t *number)
{
	char *end;
	unsigned long value = strtoul(*text, &end, 10);

	if (!isdigit((unsigned char)**text) || *end != ' ' || value > UINT32_MAX)
		return false;
	*number = (uint32_t)value;
	*text = end + 1;
	return true;
}

bool preflight_step_answer(char *text, struct preflight_answer *answer)
{
	char *end = strchr(text, '\n');

	*answer = (struct preflight_answer){ .odd = 0 };
	if (end == NULL || !read_number(&text, &answer->odd) || !read_number(&text, &answer->nodes))
		return false;
	*end = '\0';
	for (const char *c = text; *c != '\0'; c++)
		if (!isalnum((unsigned char)*c) && strchr("-._,", *c) == NULL)
			return false;
	answer->node_list = text;
	return true;
}

/* ---- running it ---- */

enum { ANSWER_MAX = 65536, LIMIT_MS = 120000, LEAVE_MS = 10000 };

/* Where it was installed, otherwise where PATH finds it. */
static const char *program(void)
{
	return access(BIN_DIR "/ddp-preflight", X_OK) == 0 ? BIN_DIR "/ddp-preflight" : "ddp-preflight";
}

static bool start_preflight(const struct preflight_command *command, int out, pid_t *pid, struct error *error)
{
	static char mark[] = "SLURM_DDP_PREFLIGHT=yes";
	posix_spawn_file_actions_t actions;
	char **variables = srun_environment(environ, true, mark);
	int reason = variables != NULL ? posix_spawn_file_actions_init(&actions) : ENOMEM;

	if (reason == 0) {
		reason = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
		if (reason == 0)
			reason = posix_spawn(pid, command->words[0], &actions, NULL, (char *const *)command->words, variables);
		posix_spawn_file_actions_destroy(&actions);
	}
	free(variables);
	return reason == 0 || error_set(error, "cannot start %s: %s", command->words[0], strerror(reason));
}

/* Reads until the other end is closed. False: the time is up. */
static bool read_all(int fd, char *text, size_t room)
{
	uint64_t end = ddp_now_ns() + LIMIT_MS * NS_PER_MS, now;
	size_t used = 0;

	while ((now = ddp_now_ns()) < end) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };
		int count = poll(&ready, 1, (int)((end - now) / NS_PER_MS) + 1);
		ssize_t got = count;
		if (count > 0)
			got = read(fd, text + used, room - 1 - used);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	text[used] = '\0';
	return now < end;
}

/* The other srun has closed its output, or its time is up. SIGTERM has it end its step. Gives its wait status; -1: it
   does not end, and goes on beside the next step. */
static int end_preflight(pid_t pid)
{
	static const int signals[] = { SIGTERM, SIGKILL };
	int status = -1;

	for (size_t i = 0; !child_reap(pid, LEAVE_MS, &status); i++) {
		if (i == sizeof(signals) / sizeof(signals[0]))
			return -1;
		kill(pid, signals[i]);
	}
	return status;
}

/* Sets what the program has written. */
static bool run_preflight(const struct preflight_command *command, char *text, size_t room, struct error *error)
{
	bool in_time = true;
	int ends[2], status;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) != 0)
		return error_set(error, "cannot make a pipe: %s", strerror(errno));
	bool started = start_preflight(command, ends[1], &pid, error);
	close(ends[1]);
	if (started)
		in_time = read_all(ends[0], text, room);
	close(ends[0]);
	if (!started)
		return false;
	status = end_preflight(pid);
	if (!in_time)
		return error_set(error, "it took more than %d s", LIMIT_MS / 1000);
	if (status == 0)
		return true;
	if (status == -1)
		return error_set(error, "its srun does not end");
	if (WIFSIGNALED(status))
		return error_set(error, "it was ended by signal %d", WTERMSIG(status));
	return error_set(error, "it exited with code %d", WEXITSTATUS(status));
}

/* Decides by the answer whether the step starts, and which nodes it avoids. */
static bool decide(const struct settings *settings, const struct preflight_answer *answer, char **avoid,
                   struct error *error)
{
	if (answer->odd == 0 || settings->preflight == PREFLIGHT_WARN)
		return true;
	if (settings->preflight == PREFLIGHT_STOP)
		return error_set(error, "ddp-preflight has found %u thing%s odd, and preflight=stop does not let the step start",
		                 answer->odd, answer->odd == 1 ? "" : "s");
	if (answer->nodes == 0)
		return error_set(error, "ddp-preflight has found something odd that is of no single node, so preflight=exclude does "
		                 "not let the step start");
	if (answer->nodes > settings->spares)
		return error_set(error, "ddp-preflight has found %u nodes odd (%s), which is more than the %u of spare=",
		                 answer->nodes, answer->node_list, settings->spares);
	*avoid = strdup(answer->node_list);
	return *avoid != NULL || error_set(error, "srun has no memory for the list of odd nodes");
}

bool preflight_run(const struct settings *settings, const struct preflight_step *follows, void (*say)(const char *text),
                   char **avoid, struct error *error)
{
	static char text[ANSWER_MAX], srun[4096];
	ssize_t length = readlink("/proc/self/exe", srun, sizeof(srun) - 1);
	struct preflight_step step = *follows;
	struct preflight_command command;
	struct preflight_answer answer;
	struct error why = { "" };
	bool measured;

	step.srun = srun;
	step.program = program();
	step.cpus_per_task = getenv("SLURM_CPUS_PER_TASK");
	*avoid = NULL;
	srun[length > 0 ? length : 0] = '\0';
	if (length <= 0 || step.nodes == 0)
		return error_set(error, "preflight=: srun does not know its own program");
	measured = preflight_step_command(&command, &step, settings, &why) &&
	           run_preflight(&command, text, sizeof(text), &why);
	preflight_step_free(&command);
	if (measured && !preflight_step_answer(text, &answer)) {
		error_set(&why, "its answer is not one");
		measured = false;
	}
	if (measured)
		return decide(settings, &answer, avoid, error);
	if (settings->preflight != PREFLIGHT_WARN)
		return error_set(error, "ddp-preflight could not measure, and preflight=%s wants it to: %s",
		                 settings->preflight == PREFLIGHT_STOP ? "stop" : "exclude", why.text);
	snprintf(text, sizeof(text), "ddp-preflight could not measure: %s", why.text);
	say(text);
	return true;
}
