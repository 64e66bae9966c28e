#include "spank/ask.h"

#include <dlfcn.h>
#include <sched.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "spank/failure/step.h"
#include "spank/failure/timeline.h"

bool ask_fact(spank_t spank, spank_item_t item, const char *name, uint32_t *fact,
              struct fault *fault)
{
	spank_err_t error = spank_get_item(spank, item, fact);

	return error == ESPANK_SUCCESS ||
	       fault_set(fault, "Slurm does not give %s: %s", name, spank_strerror(error));
}

const slurm_conf_t *ask_configuration(void)
{
	return dlsym(RTLD_DEFAULT, "slurm_conf");
}

bool ask_tracks_groups(void)
{
	const slurm_conf_t *conf = ask_configuration();

	return conf == NULL || conf->proctrack_type == NULL ||
	       strcmp(conf->proctrack_type, "proctrack/pgid") == 0;
}

uint32_t ask_kill_wait_ms(void)
{
	const slurm_conf_t *conf = ask_configuration();

	return (conf != NULL && conf->kill_wait > 0 ? conf->kill_wait : KILL_WAIT_SECONDS) * 1000u;
}

uint32_t ask_grace_ms(const struct settings *settings)
{
	return settings->grace_seconds == GRACE_OF_SLURM ? ask_kill_wait_ms()
	                                                 : settings->grace_seconds * 1000;
}

uint32_t ask_stop_ms(const struct settings *settings)
{
	return settings->grace_seconds == GRACE_OF_SLURM ? STOP_BY_SLURM : settings->grace_seconds * 1000;
}

uint32_t ask_affinity(void)
{
	enum { CPUS_MAX = 8192 };
	unsigned long mask[CPUS_MAX / (8 * sizeof(unsigned long))] = { 0 };
	uint32_t count = 0;

	if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)mask) != 0)
		return 0;
	for (size_t i = 0; i < sizeof(mask) / sizeof(mask[0]); i++)
		count += (uint32_t)__builtin_popcountl(mask[i]);
	return count;
}

void ask_to_say(const char *text)
{
	slurm_error("ddp: %s", text);
}
