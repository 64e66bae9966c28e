/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/restart_policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/slurmctld/ask.h"
#include "spank/srun/dealer.h"
#include "spank/srun/roster.h"

/* Why the programs of the step cannot be started again; NULL: they can. */
static const char *why_no_restart(const struct request *request, const struct restart_policy_facts *facts)
{
	const char *mpi = srun_mpi(facts->given, facts->mpi[0] != '\0' ? facts->mpi : NULL);
	const slurm_conf_t *conf = ask_configuration();

	if (facts->later_component || srun_starts_components(facts->given))
		return "the step has several components: SLURM numbers the ranks of each by itself";
	if (conf != NULL && conf->slurmd_params != NULL && strstr(conf->slurmd_params, "contain_spank") != NULL)
		return "SlurmdParameters=contain_spank of slurm.conf keeps the nodes from looking after their tasks";
	if (mpi != NULL && strcmp(mpi, "none") != 0)
		return "--mpi (or SLURM_MPI_TYPE) is not none: an MPI library's ranks register with SLURM once, and cannot "
		       "come again";
	if (srun_runs_container(facts->given, getenv("SLURM_CONTAINER")))
		return "--container starts each task's container once";
	if (settings_silence_ms(&request->settings) == 0)
		return "silence=0 leaves srun without a connection to its nodes";
	return NULL;
}

/* SLURM chooses a task's program by the number that the task has at the start. */
static bool fit_spares(struct settings *settings, const struct srun_words *given, struct error *error)
{
	if ((settings->spares == 0 && settings->min_nodes == 0) || !srun_starts_several(given))
		return true;
	if (option_given(settings, "spare") || option_given(settings, "min-nodes"))
		return error_set(error, "spare= and min-nodes= do not go together with --multi-prog: a rank that moves to "
		                 "another node would get the program of another rank. Use restart= without them");
	settings->spares = settings->min_nodes = 0;
	return true;
}

/* Says that a key which is the site's default does not count for this step. */
static void say_ignored(const struct settings *settings, const char *key, const char *why)
{
	if (settings->verbose || settings->check != CHECK_NO)
		slurm_spank_log("ddp: %s= of the site is ignored: %s", key, why);
}

bool restart_policy_fit(struct settings *settings, uint32_t nodes, uint32_t tasks, struct error *error)
{
	if (roster_fits(nodes, tasks, settings->spares, settings->min_nodes, error))
		return true;
	if (settings->spares > 0 && !option_given(settings, "spare")) {
		say_ignored(settings, "spare", error->text);
		settings->spares = 0;
		return restart_policy_fit(settings, nodes, tasks, error);
	}
	if (settings->min_nodes > 0 && !option_given(settings, "min-nodes")) {
		say_ignored(settings, "min-nodes", error->text);
		settings->min_nodes = 0;
		return restart_policy_fit(settings, nodes, tasks, error);
	}
	return false;
}

bool restart_policy_decide(struct request *request, const struct restart_policy_facts *facts, struct error *error)
{
	struct settings *settings = &request->settings;
	const char *why;

	if (!dealer_is_open())
		unsetenv("SLURM_DDP_RESTART");
	if (!settings->kill_on_failure || settings->check != CHECK_NO || facts->starts_daemon)
		settings->restarts = 0;
	why = settings->restarts > 0 ? why_no_restart(request, facts) : NULL;
	/* The second case: the first component is already to be restarted. */
	if (why != NULL && (option_given(settings, "restart") || dealer_is_open()))
		return error_set(error, "the step cannot be restarted, as restart=%u asks for: %s. Leave restart= out%s",
		                 settings->restarts, why, option_given(settings, "restart") ? "" : ", by --ddp=restart=0");
	if (why != NULL) {
		say_ignored(settings, "restart", why);
		settings->restarts = settings->spares = settings->min_nodes = 0;
	}
	if (!fit_spares(settings, facts->given, error))
		return false;
	if (settings->restarts > 0) {
		const struct plan_policy policy = { .restarts = settings->restarts, .spares = settings->spares,
			                            .min_nodes = settings->min_nodes,
			                            .silence_ms = settings_silence_ms(settings) };
		dealer_open(&policy);
		if (setenv("SLURM_DDP_RESTART", "yes", 1) != 0)
			slurm_debug("ddp: cannot set SLURM_DDP_RESTART: %s", strerror(errno));
	}
	return true;
}

bool restart_policy_without_port(struct settings *settings, struct error *error)
{
	static const char why[] = "the nodes need to reach srun, and srun has too few ports (SrunPortRange) or open files "
	                          "(ulimit -n)";

	if (option_given(settings, "restart"))
		return error_set(error, "the step cannot be restarted, as restart=%u asks for: %s", settings->restarts, why);
	say_ignored(settings, "restart", why);
	settings->restarts = settings->spares = settings->min_nodes = 0;
	dealer_close();
	unsetenv("SLURM_DDP_RESTART");
	return true;
}
