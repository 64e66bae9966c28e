/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/spank_task.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/options/site.h"
#include "spank/wire/timeline.h"
#include "tests/support/test.h"

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
	return (struct task_extras){ .master_address = "n0", .version = "0.2.0", .key = TASK_KEY,
		                     .progress_fd = 200, .gpu = { .device = -1 }, .cpus = 4,
		                     .environment = environment };
}

void build(struct variables *variables, const char *list, const struct identity *identity,
           const struct task_extras *with)
{
	struct settings settings;
	struct error error = { "" };

	settings_init(&settings);
	if (!user_list_read(&settings, list, 0, &error) ||
	    !environment_build(variables, identity, &settings, with, &error))
		fail_msg("%s", error.text);
}

char said[STEP_TEXT_MAX];
atomic_int times_said, times_ended;

static void say(const char *text)
{
	snprintf(said, sizeof(said), "%s", text);
	atomic_fetch_add(&times_said, 1);
}

static void end_step(void)
{
	atomic_fetch_add(&times_ended, 1);
}

const struct relay_actions actions = { .say = say, .end_step = end_step };

struct relay open_srun(const struct step_policy *policy)
{
	char spec[RELAY_SPEC_MAX];
	struct error error = { "" };
	struct relay relay;

	said[0] = '\0';
	atomic_store(&times_said, 0);
	atomic_store(&times_ended, 0);
	if (!relay_open(0, 0, policy, &actions, spec, &error))
		fail_msg("%s", error.text);
	relay = relay_parse(spec);
	assert_int_not_equal(relay.port, 0);
	assert_int_equal(relay.reply_ms, REPLY_MS);
	/* A node that hangs up has spoken itself: on a busy machine, srun would then
	   say nothing, rightly. */
	relay.reply_ms = LONG_MS;
	return relay;
}

void kill_witness(const struct witness *witness)
{
	siginfo_t info;

	/* First, as it would make another witness. */
	if (witness->keeper > 0 && kill(witness->keeper, SIGKILL) == 0)
		assert_int_equal(waitid(P_PID, (id_t)witness->keeper, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(kill(witness->pid, SIGKILL), 0);
	assert_int_equal(waitid(P_PID, (id_t)witness->pid, &info, WEXITED | WNOWAIT), 0);
	assert_true(witness_was_killed(witness));
}

void wait_for(atomic_int *count, int wanted)
{
	for (int i = 0; i < 2000 && atomic_load(count) < wanted; i++)
		usleep(10000);
	assert_int_equal(atomic_load(count), wanted);
}

int listen_here(uint16_t *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	*port = ntohs(address.sin_port);
	return fd;
}

int connect_here(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port),
	                               .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}
