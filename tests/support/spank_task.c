#include "tests/support/spank_task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct identity task(void)
{
	return (struct identity){ .job_id = 7, .step_id = 2, .restart_count = 1, .rank = 3,
		                  .world_size = 4, .local_rank = 1, .local_world_size = 2, .node_rank = 1,
		                  .node_count = 2, .node_name = "n1", .master_node = "n0",
		                  .master_port = 20001, .node_source = "the list",
		                  .port_source = "reserved by Slurm" };
}

struct task_extras extras(char *const *environment)
{
	return (struct task_extras){ .master_address = "n0", .version = "0.1.0", .key = TASK_KEY,
		                     .progress_fd = 200, .gpu = { .device = -1 }, .cpus = 4,
		                     .environment = environment };
}

void build(struct variables *variables, const char *list, const struct identity *identity,
           const struct task_extras *with)
{
	struct settings settings;
	struct fault fault = { "" };

	settings_init(&settings);
	if (!options_parse(&settings, list, 0, &fault) ||
	    !environment_build(variables, identity, &settings, with, &fault))
		fail_msg("%s", fault.text);
}
