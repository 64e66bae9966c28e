#include "spank/ask.h"

#include <dlfcn.h>
#include <sched.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

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

uint32_t ask_grace_ms(const struct settings *settings)
{
	const slurm_conf_t *conf = ask_configuration();
	uint32_t seconds = settings->grace_seconds;

	if (seconds == GRACE_OF_SLURM)
		seconds = conf != NULL && conf->kill_wait > 0 ? conf->kill_wait : GRACE_SECONDS;
	return seconds * 1000;
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
