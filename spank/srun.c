#include "spank/srun.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/ask.h"
#include "spank/failure/srun_options.h"
#include "spank/failure/kill.h"
#include "spank/failure/relay.h"
#include "spank/failure/step.h"
#include "spank/failure/timeline.h"
#include "spank/launch/prepare.h"
#include "spank/launch/table.h"

enum { COMMAND_LINE_MAX = 65536 };

static struct {
	uint32_t job_id, step_id;
	atomic_bool has_step;
	int failed_status; /* the first failure's wait status; 0: none */
} srun;

/* As the user. */
static void end_step(void)
{
	if (atomic_load(&srun.has_step))
		kill_step(srun.job_id, srun.step_id);
}

static bool slurm_ends_it(void)
{
	return atomic_load(&srun.has_step) && ask_is_ending(srun.job_id);
}

/* Where Slurm's own srun would listen: SrunPortRange; without one, anywhere. */
static void listen_for_nodes(const struct plugin *plugin)
{
	static const struct relay_actions actions = { .say = ask_to_say, .end_step = end_step,
		                                      .slurm_ends_it = slurm_ends_it };
	const struct step_policy policy = { .hold_ms = HOLD_MS, .timeout_hold_ms = TIMEOUT_HOLD_MS,
		                            .doubt_ms = ask_kill_wait_ms() + DOUBT_MS,
		                            .grace_ms = ask_grace_ms(&plugin->settings),
		                            .stop_ms = ask_grace_ms(&plugin->settings),
		                            .slurm_may_grant_more = plugin->settings.grace_seconds == GRACE_OF_SLURM,
		                            .kill_on_failure = plugin->settings.kill_on_failure,
		                            .stall_seconds = plugin->settings.stall_seconds,
		                            .kill_on_stall = plugin->settings.kill_on_stall };
	const slurm_conf_t *conf = ask_configuration();
	const uint16_t *ports = conf != NULL ? conf->srun_port_range : NULL;
	struct error error;
	char spec[RELAY_SPEC_MAX];

	unsetenv("SLURM_DDP_RELAY");
	/* Without it, each node says by itself what it sees. */
	if (!relay_open(ports != NULL ? ports[0] : 0, ports != NULL ? ports[1] : 0, &policy, &actions,
	                spec, &error))
		slurm_debug("ddp: %s", error.text);
	else if (setenv("SLURM_DDP_RELAY", spec, 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_RELAY: %s", strerror(errno));
}

/* What srun was started with, each word with its NUL behind it. srun has read its
   options by getopt(3): the first `optind` words are its own. */
static const char *command_line(size_t *bytes)
{
	static char words[COMMAND_LINE_MAX];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd >= 0 ? read(fd, words, sizeof(words)) : 0;

	if (fd >= 0)
		close(fd);
	*bytes = got > 0 ? (size_t)got : 0;
	return words;
}

/* -K0 is the user's word on the same matter: it counts more than the site's
   default, and less than on-failure= and the site's lock. */
static void take_srun_options(struct plugin *plugin)
{
	size_t bytes;
	const char *words = command_line(&bytes);

	unsetenv("SLURM_DDP_ON_FAILURE");
	unsetenv("SLURM_DDP_NO_WITNESS");
	/* The witness is in the first task's cgroup, which is then to be empty first. */
	if ((srun_waits_for_children(words, bytes, optind) ||
	     getenv("SLURM_WAIT_FOR_CHILDREN") != NULL) && setenv("SLURM_DDP_NO_WITNESS", "1", 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_NO_WITNESS: %s", strerror(errno));
	if (plugin_locks(plugin, "on-failure") || option_given(&plugin->settings, "on-failure") ||
	    !srun_goes_on_after_failure(words, bytes, optind, getenv("SLURM_KILL_BAD_EXIT")))
		return;
	plugin->settings.kill_on_failure = false;
	if (setenv("SLURM_DDP_ON_FAILURE", "continue", 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_ON_FAILURE: %s", strerror(errno));
}

void srun_leave_with_first_code(int status, void *unused)
{
	(void)unused;
	if (status == 0 || srun.failed_status == 0)
		return;
	fflush(NULL);
	_exit(WIFSIGNALED(srun.failed_status) ? 128 + WTERMSIG(srun.failed_status)
	                                       : WEXITSTATUS(srun.failed_status));
}

bool srun_is_salloc_shell(void)
{
	size_t bytes;
	const char *words = command_line(&bytes);

	return srun_starts_a_shell(words, bytes, optind);
}

/* The file by which Slurm lays out the tasks, if -m arbitrary or the file itself says so;
   NULL: none. */
static const char *hostfile(void)
{
	size_t bytes;
	const char *words = command_line(&bytes), *nodes = srun_nodes(words, bytes, optind);

	if (nodes == NULL)
		return getenv("SLURM_HOSTFILE");
	return strchr(nodes, '/') != NULL ? nodes : NULL;
}

bool srun_begin(struct plugin *plugin, const char *stale, struct error *error)
{
	struct error ignored;

	if (plugin->settings.verbose && stale[0] != '\0')
		slurm_spank_log("ddp: replaced in the tasks, as not of this step: %s", stale);
	take_srun_options(plugin);
	listen_for_nodes(plugin);
	if (plugin->settings.check == CHECK_TABLE && !table_begin(&ignored))
		slurm_debug("ddp: %s", ignored.text);
	return launch_prepare(&plugin->settings, hostfile(), error);
}

/* Of a heterogeneous step, Slurm tells of one component, whichever starts first:
   each is a step of the same number in a job of its own, and a request ends all
   of them only if it is for the first one's job. srun has that in its
   environment, and how many tasks all of them have. */
static uint32_t job_to_end(uint32_t job_id, uint32_t component_tasks)
{
	const char *tasks = getenv("SLURM_NTASKS"), *leader = getenv("SLURM_JOB_ID");
	unsigned long first = leader != NULL ? strtoul(leader, NULL, 10) : 0;

	if (tasks == NULL || strtoul(tasks, NULL, 10) <= component_tasks || first == 0 || first >= NO_VAL)
		return job_id;
	return (uint32_t)first;
}

bool srun_take_step(uint32_t job_id, uint32_t step_id, uint32_t tasks)
{
	char text[32];

	if (!atomic_load(&srun.has_step)) {
		srun.job_id = job_to_end(job_id, tasks);
		srun.step_id = step_id;
		atomic_store(&srun.has_step, true);
	}
	snprintf(text, sizeof(text), "%u.%u", job_id, step_id);
	return setenv("DDP_REQUESTED", text, 1) == 0;
}

void srun_end(void)
{
	srun.failed_status = relay_close();
}
