/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/plugin.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "base/clock.h"
#include "spank/base/child.h"
#include "spank/base/end_signal.h"
#include "spank/base/text.h"
#include "spank/launch/check.h"
#include "spank/launch/preflight.h"
#include "spank/launch/prepare.h"
#include "spank/launch/srun_options.h"
#include "spank/slurmctld/comment.h"
#include "spank/slurmctld/query.h"
#include "spank/slurmctld/requeue.h"
#include "spank/srun/dealer.h"
#include "spank/srun/peers.h"
#include "spank/srun/presence.h"
#include "spank/srun/relaunch.h"
#include "spank/srun/relay_srun.h"
#include "spank/srun/step.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"

enum {
	COMMAND_LINE_MAX = 65536,
	SRUN_PORTS = 4,       /* of a step of few nodes */
	NODES_OF_A_PORT = 48, /* of each of two kinds of ports, one for so many nodes */
	FILES = 32,           /* open ones that srun and the plugin need, without those for each node */
};

static struct {
	uint32_t job_id, step_id;
	struct relaunch_step step;
	atomic_bool has_step;
	atomic_bool lost_node; /* one has fallen silent */
	bool owns_job;         /* srun has made the allocation itself */
	int failed_status; /* the first failure's wait status; 0: none */
	bool began;         /* the options of the step's first component are read: */
	bool starts_daemon;
	bool began_to_listen;
	enum srun_say kill;
	long wait_seconds;
	bool outlives_nodes;
	char mpi[32];       /* SLURM_MPI_TYPE of the user; "": not set */
	bool refused;      /* by ddp-preflight; the step starts without programs */
	bool is_preflight; /* another srun has started this one */
	bool tells_releases; /* a dry run, or verbose */
	bool in_a_task; /* another step's task starts this srun */
} srun;

/* srun waits KillWait and two seconds for the tasks of a step that ends. Those of a node that does not answer never
   end, and those of the others get SIGKILL at once, so that two seconds are enough. */
static void wait_no_longer(void)
{
	slurm_conf_t *conf = (slurm_conf_t *)query_configuration();

	if (conf != NULL)
		conf->kill_wait = 0;
}

/* As the user. */
static void end_step(void)
{
	if (atomic_load(&srun.lost_node))
		wait_no_longer();
	if (atomic_load(&srun.has_step))
		kill_step(srun.job_id, srun.step_id);
}

/* An allocation that srun has made for itself ends with the step. Any other one goes on without the nodes: SLURM would
   otherwise keep the step, and nodes for it, until it takes a node for down, and then end the whole job. */
static void lose_nodes(const char *nodes)
{
	bool several = strchr(nodes, ',') != NULL;
	struct error error;

	atomic_store(&srun.lost_node, true);
	if (srun.owns_job || !atomic_load(&srun.has_step))
		return;
	if (shrink_job(srun.job_id, nodes, &error))
		slurm_info("ddp: job %u goes on without node%s %s", srun.job_id, several ? "s" : "", nodes);
	else
		slurm_error("ddp: SLURM does not take node%s %s out of job %u: %s. Until SLURM takes %s for down, "
		            "a step of this job needs srun --exclude=%s --overlap", several ? "s" : "", nodes, srun.job_id,
		            error.text, several ? "them" : "the node", nodes);
}

static bool slurm_ends_it(void)
{
	return atomic_load(&srun.has_step) && query_is_ending(srun.job_id);
}

static bool node_failed(const char *node)
{
	return atomic_load(&srun.has_step) && query_node_failed(srun.job_id, node);
}

static bool lost_node(char node[HOST_NAME_MAX_BYTES])
{
	return atomic_load(&srun.has_step) && query_lost_node(srun.job_id, node);
}

/* srun takes the ports of SrunPortRange as it comes to need them, the last ones after all
   of a plugin's callbacks, and dies without one. So it has the first claim. */
static bool leaves_room(uint32_t ports)
{
	const slurm_conf_t *conf = query_configuration();
	const uint16_t *range = conf != NULL ? conf->srun_port_range : NULL;

	if (range == NULL || range[0] == 0 || listener_has_room(range[0], range[1], ports))
		return true;
	slurm_error("ddp: SrunPortRange=%u-%u of slurm.conf has less than %u free ports on this host, which srun "
	            "and the plugin need now: the nodes do not report to srun, and a failure may be said once for "
	            "each node", range[0], range[1], ports);
	return false;
}

/* srun has a connection to each node, too, and some that its nodes or slurmctld open meanwhile. */
static bool leaves_files(uint32_t nodes)
{
	const rlim_t wanted = FILES + 2 * (rlim_t)nodes;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
		return true;
	limit.rlim_cur = limit.rlim_max;
	if (limit.rlim_max >= wanted && setrlimit(RLIMIT_NOFILE, &limit) == 0)
		return true;
	slurm_error("ddp: srun may have %llu open files (ulimit -n), and srun and the plugin need %llu for %u nodes: the "
	            "nodes do not report to srun, and a failure may be said once for each node",
	            (unsigned long long)limit.rlim_max, (unsigned long long)wanted, nodes);
	return false;
}

/* Before the step starts: srun is to find the ports and files that it needs for its nodes. False: the plugin has
   none. */
static bool leaves_room_for_srun(uint32_t nodes)
{
	uint32_t each = nodes / NODES_OF_A_PORT + (nodes % NODES_OF_A_PORT > 0);

	if (!srun.began_to_listen || (leaves_room(2 * each) && leaves_files(nodes)))
		return true;
	relay_close();
	unsetenv("SLURM_DDP_RELAY");
	return false;
}

static bool asks(const struct request *request, const char *key)
{
	return option_given(&request->settings, key);
}

/* Where Slurm's own srun would listen: SrunPortRange; without one, anywhere. */
static void listen_for_nodes(const struct request *request)
{
	const struct relay_actions actions = { .say = print_to_user, .end_step = end_step,
		                               .note = request->site.notes_failures ? comment_add_failure : NULL,
		                               .slurm_ends_it = slurm_ends_it,
		                               .node_failed = node_failed,
		                               .lost_node = lost_node,
		                               .lose_nodes = lose_nodes,
		                               .take_frame = dealer_take_frame,
		                               .take_link = dealer_take_link,
		                               .restart = dealer_is_open() ? &dealer_restart : NULL };
	const struct step_policy policy = { .hold_ms = HOLD_MS, .ask_ms = ASK_MS, .timeout_hold_ms = TIMEOUT_HOLD_MS,
		                            .doubt_ms = query_kill_wait_ms() + DOUBT_MS,
		                            .grace_ms = query_grace_ms(&request->settings),
		                            .stop_ms = query_grace_ms(&request->settings),
		                            .slurm_may_grant_more = request->settings.grace_seconds == GRACE_OF_SLURM,
		                            .kill_on_failure = request->settings.kill_on_failure,
		                            .restarts = dealer_is_open(),
		                            .outlives_nodes = srun.outlives_nodes && !dealer_is_open(),
		                            .stall_seconds = request->settings.stall_seconds,
		                            .kill_on_stall = request->settings.kill_on_stall,
		                            .asked = { .stall = asks(request, "stall") && request->settings.stall_seconds > 0,
		                                       .watch = asks(request, "watch") && request->settings.watch,
		                                       .python = asks(request, "python") && request->settings.python },
		                            .slow_percent = request->settings.slow_percent,
		                            .silence_ms = settings_silence_ms(&request->settings) };
	const slurm_conf_t *conf = query_configuration();
	const uint16_t *ports = conf != NULL ? conf->srun_port_range : NULL;
	struct error error;
	char spec[RELAY_SPEC_MAX];

	unsetenv("SLURM_DDP_RELAY");
	/* In a heterogeneous step the first component has made this check. */
	if (!srun.began_to_listen && !leaves_room(SRUN_PORTS + 1))
		return;
	srun.began_to_listen = true;
	/* Without it, each node says by itself what it sees. */
	if (!relay_open(ports != NULL ? ports[0] : 0, ports != NULL ? ports[1] : 0, &policy, &actions,
	                spec, &error))
		slurm_debug("ddp: %s", error.text);
	else if (setenv("SLURM_DDP_RELAY", spec, 1) != 0)
		slurm_debug("ddp: cannot set SLURM_DDP_RELAY: %s", strerror(errno));
}

/* srun has read its options by getopt(3): the first `optind` words are its own. */
static struct srun_words command_line(void)
{
	static char words[COMMAND_LINE_MAX];

	return (struct srun_words){ .words = words, .bytes = proc_read(words, sizeof(words), "/proc/self/cmdline"),
		                    .own = optind };
}

static void tell_nodes(const char *variable, const char *value)
{
	if (setenv(variable, value, 1) != 0)
		slurm_debug("ddp: cannot set %s: %s", variable, strerror(errno));
}

/* srun's -K is the user's word on the same matter as on-failure=: it counts more than the
   site's default, and less than on-failure= and the site's lock. */
static void take_kill_on_bad_exit(struct request *request, enum srun_say kill)
{
	if (kill == SRUN_SILENT || request_locks(request, "on-failure") ||
	    option_given(&request->settings, "on-failure") ||
	    (request->settings.restarts > 0 && option_given(&request->settings, "restart")))
		return;
	request->settings.kill_on_failure = kill == SRUN_YES;
	tell_nodes("SLURM_DDP_ON_FAILURE", kill == SRUN_YES ? "kill" : "continue");
}

/* The plugin alone ends its step. srun's own ways know nothing of failures and of steps
   that stop: KillOnBadExit and -K have it send SIGTERM as soon as a task has ended
   badly, and WaitTime has it end what runs so long after the first task's end. */
static void override_slurm(const struct request *request, enum srun_say kill, long wait_seconds)
{
	const slurm_conf_t *conf = query_configuration();
	/* The tasks of a node that was replaced end long before the others. */
	bool never_waits = request->settings.restarts > 0 && set_srun_option('W', "0");
	bool kills = kill == SRUN_YES || (kill == SRUN_SILENT && conf != NULL && conf->kill_on_bad_exit != 0);
	uint32_t site_wait = wait_seconds < 0 && !never_waits && conf != NULL ? conf->wait_time : 0;
	const struct srun_ends ends = {
		.kill_on_failure = request->settings.kill_on_failure,
		.grace_given = request->settings.grace_seconds != GRACE_OF_SLURM,
		.grace_seconds = query_grace_ms(&request->settings) / 1000,
		.wait_seconds = never_waits ? 0 : wait_seconds,
		.site_wait = site_wait > 0 && !set_srun_option('W', "0") ? site_wait : 0,
		.kills = kills && !set_srun_option('K', "0"),
	};
	char text[RELAY_TEXT_MAX];

	if (srun_contradicts(&ends, text, sizeof(text)) && !srun.began)
		slurm_error("ddp: %s", text);
}

void srun_note_environment(void)
{
	const char *mpi = getenv("SLURM_MPI_TYPE");

	relaunch_begin();
	snprintf(srun.mpi, sizeof(srun.mpi), "%s", mpi != NULL ? mpi : "");
	srun.is_preflight = getenv("SLURM_DDP_PREFLIGHT") != NULL;
}

/* The site's defaults are meant for the step that follows. */
static void leave_defaults(struct settings *settings)
{
	settings->preflight = PREFLIGHT_NO;
	settings->requeue_most = 0;
	settings_drop_restart(settings);
}

/* The words of a step's first component are those of the step: srun does not tell where
   another one's begin. */
static bool take_srun_options(struct request *request, struct error *error)
{
	const struct srun_words given = command_line();
	struct restart_policy_facts facts = { &given, srun.mpi, .later_component = srun.began };
	char *program[1];

	if (!srun.began) {
		program[0] = (char *)srun_program(&given);
		srun.starts_daemon = daemon_is_launched(1, program);
		srun.kill = srun_kill_on_bad_exit(&given, getenv("SLURM_KILL_BAD_EXIT"));
		srun.outlives_nodes = srun_outlives_nodes(&given, getenv("SLURM_NO_KILL"));
		srun.wait_seconds = srun_wait_seconds(&given, getenv("SLURM_WAIT"));
		srun.in_a_task = getenv("SLURM_STEP_ID") != NULL;
		srun.owns_job &= !srun_names_job(&given);
		unsetenv("SLURM_DDP_ON_FAILURE");
		unsetenv("SLURM_DDP_NO_WITNESS");
		/* The witness is in the first task's cgroup, which is then to be empty first. */
		if (srun_waits_for_children(&given) || getenv("SLURM_WAIT_FOR_CHILDREN") != NULL)
			tell_nodes("SLURM_DDP_NO_WITNESS", "1");
	}
	if (srun.is_preflight)
		leave_defaults(&request->settings);
	srun.tells_releases = request->settings.verbose || request->settings.check != CHECK_NO;
	take_kill_on_bad_exit(request, srun.kill);
	facts.starts_daemon = srun.starts_daemon;
	if (!restart_policy_decide(request, &facts, error))
		return false;
	/* The nodes leave an MPI launcher's daemons alone. */
	if (!srun.starts_daemon)
		override_slurm(request, srun.kill, srun.wait_seconds);
	srun.began = true;
	return true;
}

/* A step whose nodes lack the plugin has gone wrong, whatever its programs say. What has
   ended it before it could be known is no such reason. */
static void leave_without_nodes(int status)
{
	char text[RELAY_TEXT_MAX + 1];
	struct sink sink = sink_on(text, sizeof(text));
	struct presence *presence = relay_presence();
	bool refuse;

	if (srun.failed_status != 0 || status > 128 || presence == NULL ||
	    !presence_has_silent(presence, status == 0, &sink, &refuse))
		return;
	slurm_error("ddp: %s", text);
	if (status == 0 && refuse) {
		fflush(NULL);
		_exit(1);
	}
}

/* The file by which Slurm lays out the tasks, if -m arbitrary or the file itself says so;
   NULL: none. */
static const char *hostfile(void)
{
	const struct srun_words given = command_line();
	const char *nodes = srun_nodes(&given);

	if (nodes == NULL)
		return getenv("SLURM_HOSTFILE");
	return strchr(nodes, '/') != NULL ? nodes : NULL;
}

/* True: SLURM could not start the step, which was said. */
static bool leave_unstarted(int status)
{
	const struct presence *presence = relay_presence();
	const struct srun_words given = command_line();
	bool was_sent;

	if (status == 0 || srun.failed_status != 0 || srun.starts_daemon || relay_was_stopping() ||
	    !atomic_load(&srun.has_step) || presence == NULL)
		return false;
	/* srun itself kills tasks if others do not start. */
	was_sent = status == 128 + SIGINT || status == 128 + SIGTERM ||
	           (status == 128 + SIGKILL && !presence_launch_timed_out(presence, ddp_now_ns()));
	if (was_sent)
		return false;
	/* If the Prolog fails, SLURM requeues a job of sbatch, and ends any other one. Of a command line that is cut, the rest
	   is not known. */
	srun.step.may_go_on &= (srun.owns_job || query_job_state(srun.job_id) == JOB_RUNNING) && hostfile() == NULL &&
	                       given.bytes < COMMAND_LINE_MAX - 1 &&
	                       srun_fits_fewer_nodes(&given, getenv("SLURM_GPUS"), getenv("SLURM_DISTRIBUTION"));
	return relaunch_unstarted(&srun.step, presence, &given);
}

/* While nodes are upgraded, an administrator wants to know which are left. */
static void say_releases(void)
{
	char text[RELAY_TEXT_MAX + 1];

	if (srun.tells_releases && relay_has_other_releases(text))
		slurm_spank_log("ddp: %s", text);
}

void srun_leave_with_first_code(int status, void *unused)
{
	bool succeeded = dealer_has_succeeded() || relay_has_survived(), unstarted;

	(void)unused;
	say_releases();
	if (srun.refused) {
		fflush(NULL);
		_exit(1);
	}
	/* SLURM's status also counts nodes whose places other nodes took, and ranks without which the others went on. */
	if (succeeded)
		status = srun.failed_status = 0;
	else
		leave_without_nodes(status);
	unstarted = leave_unstarted(status);
	/* Slurm's own status may be 0: a task can hide its rank's error. */
	if (srun.failed_status != 0)
		status = WIFSIGNALED(srun.failed_status) ? 128 + WTERMSIG(srun.failed_status)
		                                         : WEXITSTATUS(srun.failed_status);
	requeue_finish(status, srun.failed_status != 0 || unstarted, relay_was_stopping(), relay_failed_at());
	if (srun.failed_status == 0 && !succeeded)
		return;
	fflush(NULL);
	_exit(status);
}

void srun_note_job(void)
{
	srun.owns_job = getenv("SLURM_JOB_ID") == NULL && getenv("SLURM_JOBID") == NULL;
}

bool srun_is_salloc_shell(void)
{
	const struct srun_words given = command_line();

	return srun_starts_a_shell(&given);
}

bool srun_begin(struct request *request, const char *stale, struct error *error)
{
	struct error ignored;

	if (request->settings.verbose && stale[0] != '\0')
		slurm_spank_log("ddp: replaced in the tasks, as not of this step: %s", stale);
	if (!take_srun_options(request, error))
		return false;
	listen_for_nodes(request);
	if (dealer_is_open() && getenv("SLURM_DDP_RELAY") == NULL && !restart_policy_without_port(&request->settings, error))
		return false;
	if (request->settings.check == CHECK_TABLE && !table_begin(&ignored))
		slurm_debug("ddp: %s", ignored.text);
	return launch_prepare(&request->settings, hostfile(), error);
}

/* Slurm tells of one component of a heterogeneous step, whichever starts first:
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

/* An MPI launcher's daemons do not report. */
static void expect_nodes(const struct request *request)
{
	const struct presence_policy policy = { .refuse = request->settings.refuse_absent,
		                                .unsure = task_plugin_comes_before(),
		                                .check = request->settings.check != CHECK_NO };

	if (!srun.starts_daemon)
		relay_expect(&policy);
}

bool srun_take_words(const struct request *request, int count, char *words[], uint32_t tasks,
                     struct error *error)
{
	const struct srun_words given = command_line();

	if (request->settings.check == CHECK_NO || srun.starts_daemon)
		return true;
	/* Slurm shows the words of one component, whichever starts first. */
	if (presence_tasks_of_table() > tasks)
		return error_set(error, "--ddp=check is for a step of one component: on a node without the "
		                 "plugin the others' programs would run. Check each component in a step of "
		                 "its own");
	/* srun frees the word itself, and copies what it names. */
	if (srun_broadcasts(&given, getenv("SLURM_BCAST")))
		return error_set(error, "--ddp=check starts no program, so --bcast (or SLURM_BCAST) has none to "
		                 "copy: leave it out");
	return launch_replace_command(count, words, srun_starts_several(&given)) ||
	       error_set(error, "--ddp=check: srun does not show its command, which would run on a node "
	                 "without the plugin");
}

/* A step that a task starts has the option of its job, but its end is that task's matter. */
static void prepare_requeue(const struct settings *settings)
{
	if (!srun.in_a_task && !srun.starts_daemon && settings->check == CHECK_NO)
		requeue_begin(srun.job_id, settings->requeue_most, option_given(settings, "requeue"));
}

/* Runs ddp-preflight on the step's nodes; its answer may make some of them spares. */
static bool look_ahead(const struct request *request, const struct preflight_step *place, struct error *error)
{
	struct settings settings = request->settings;
	char *avoid;

	if (presence_tasks_of_table() > place->tasks)
		return error_set(error, "preflight= is for a step of one component: run ddp-preflight on each component");
	/* On other nodes of the job, ddp-preflight would say nothing about the step. */
	if (place->node_list == NULL)
		return error_set(error, "preflight=: Slurm does not tell the nodes of the step");
	/* A key that needs spares is the site's default here, as the user's would have been refused. */
	if (settings.preflight == PREFLIGHT_EXCLUDE && !dealer_is_open())
		settings.preflight = PREFLIGHT_WARN;
	if (!preflight_run(&settings, place, print_to_user, &avoid, error))
		return false;
	if (avoid != NULL)
		dealer_avoid(avoid);
	return true;
}

/* Lets the step start without programs. If srun exited now, the step would keep its resources until its job ends: SLURM
   ends no step that was never launched. */
static void start_nothing(int count, char *words[])
{
	const struct srun_words given = command_line();

	srun.refused = true;
	relay_close();
	unsetenv("SLURM_DDP_RELAY");
	unsetenv("SLURM_DDP_RESTART");
	tell_nodes("SLURM_DDP_REFUSED", "yes");
	/* On a node without the plugin, the program would run. srun copies what the word names. */
	if (!srun_broadcasts(&given, getenv("SLURM_BCAST")))
		(void)launch_replace_command(count, words, srun_starts_several(&given));
}

bool srun_looks_ahead(const struct request *request, const struct srun_step *step, int count, char *words[])
{
	struct preflight_step place = { .job_id = step->job_id, .tasks = step->tasks, .nodes = step->nodes };
	struct error error;
	char *nodes;
	bool starts;

	if (request->settings.preflight == PREFLIGHT_NO || request->settings.check != CHECK_NO || srun.starts_daemon)
		return true;
	place.node_list = nodes = query_step_nodes(step->job_id, step->step_id);
	starts = look_ahead(request, &place, &error);
	free(nodes);
	if (starts)
		return true;
	slurm_error("ddp: %s", error.text);
	start_nothing(count, words);
	return false;
}

bool srun_take_step(struct request *request, uint32_t job_id, uint32_t step_id, uint32_t tasks,
                    uint32_t nodes, struct error *error)
{
	struct settings *settings = &request->settings;
	uint32_t jobs = settings->restarts;
	char text[32];

	relaunch_take_rest(&settings->spares, &jobs);
	if (dealer_is_open())
		end_signal_heed();
	if (!leaves_room_for_srun(nodes) && dealer_is_open() && !restart_policy_without_port(settings, error))
		return false;
	if (!restart_policy_fit(settings, nodes, tasks, error) ||
	    !dealer_begin(nodes, tasks, settings->spares, settings->min_nodes, error))
		return false;
	expect_nodes(request);
	if (!atomic_load(&srun.has_step)) {
		srun.job_id = job_to_end(job_id, tasks);
		srun.step_id = step_id;
		srun.step = (struct relaunch_step){ .nodes = nodes, .tasks = tasks, .spares = settings->spares,
			                            .min_nodes = settings->min_nodes, .jobs = jobs,
			                            .own_job = srun.owns_job ? job_id : 0, .may_go_on = dealer_is_open() };
		atomic_store(&srun.has_step, true);
		prepare_requeue(&request->settings);
		if (request->site.notes_failures)
			comment_begin(srun.job_id, step_id);
	}
	snprintf(text, sizeof(text), "%u.%u", job_id, step_id);
	return setenv("DDP_REQUESTED", text, 1) == 0 ||
	       error_set(error, "cannot set DDP_REQUESTED: %s", strerror(errno));
}

void srun_end(void)
{
	requeue_end_watch();
	srun.failed_status = relay_close();
	comment_end();
	dealer_close();
}
