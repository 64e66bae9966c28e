/* SPDX-License-Identifier: Apache-2.0 */
/* link_probe NODES SECONDS SILENCE_MS: srun's relay thread, and so many nodes that hold links to it for so long, in a
   process of their own. It prints what srun's side takes of each: for tests of large steps. */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "spank/node/link.h"
#include "spank/srun/relay_srun.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"

struct pretended {
	struct relay relay;
	struct relay_sender sender;
	struct link link;
	uint64_t due_ns;
};

static void begin(struct pretended *node, const struct relay *relay, uint32_t id, uint32_t silence_ms)
{
	struct link_facts facts = { .address = "127.0.0.1", .silence_ms = silence_ms,
		                    .opening = { .node_id = id, .rank = UINT32_MAX, .tasks = 8 } };

	node->relay = *relay;
	node->relay.sender = relay_start_sender(&node->sender);
	facts.relay = &node->relay;
	snprintf(facts.opening.node, sizeof(facts.opening.node), "far%u", id);
	link_start(&node->link, &facts);
}

/* All nodes, until then; tells how many links are open at the end. */
static uint32_t be_nodes(const struct relay *relay, uint32_t count, uint64_t end_ns, uint32_t silence_ms)
{
	struct pretended *nodes = calloc(count, sizeof(*nodes));
	struct pollfd *ready = calloc((size_t)LINK_FDS * count, sizeof(*ready));
	uint32_t open = 0;
	uint64_t now_ns;

	if (nodes == NULL || ready == NULL)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		begin(&nodes[i], relay, i, silence_ms);
	while ((now_ns = ddp_now_ns()) < end_ns) {
		uint64_t due_ns = end_ns;
		for (uint32_t i = 0; i < count; i++) {
			struct pollfd *of = &ready[LINK_FDS * i];
			if (nodes[i].due_ns <= now_ns || of[0].revents != 0 || of[1].revents != 0)
				nodes[i].due_ns = now_ns + (uint64_t)link_tick(&nodes[i].link) * 1000000;
			if (nodes[i].due_ns < due_ns)
				due_ns = nodes[i].due_ns;
			link_poll(&nodes[i].link, of);
		}
		poll(ready, (nfds_t)LINK_FDS * count, due_ns > now_ns ? (int)((due_ns - now_ns) / 1000000) + 1 : 0);
	}
	for (uint32_t i = 0; i < count; i++) {
		open += nodes[i].link.now.state == LINE_OPEN;
		link_end(&nodes[i].link);
	}
	free(nodes);
	free(ready);
	return open;
}

static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static double cpu_ms(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (folder != NULL && readdir(folder) != NULL)
		count++;
	if (folder != NULL)
		closedir(folder);
	return count;
}

static long memory_kib(void)
{
	FILE *stream = fopen("/proc/self/status", "re");
	char line[256];
	long kib = 0;

	while (stream != NULL && fgets(line, sizeof(line), stream) != NULL)
		if (strncmp(line, "VmRSS:", 6) == 0)
			kib = strtol(line + 6, NULL, 10);
	if (stream != NULL)
		fclose(stream);
	return kib;
}

static void say(const char *text)
{
	printf("said: %s\n", text);
}

static void end_step(void)
{
}

int main(int argc, char **argv)
{
	const uint32_t count = argc == 4 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
	const uint64_t seconds = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
	const uint32_t silence_ms = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
	const struct step_policy policy = { .hold_ms = HOLD_MS, .kill_on_failure = true, .silence_ms = silence_ms };
	const struct relay_actions actions = { .say = say, .end_step = end_step };
	char spec[RELAY_SPEC_MAX];
	struct error error;
	int status = 1;
	pid_t nodes;

	if (count == 0 || seconds < 2 || silence_ms == 0 || !relay_open(0, 0, &policy, &actions, spec, &error)) {
		fprintf(stderr, "link_probe NODES SECONDS SILENCE_MS\n");
		return 2;
	}
	const struct relay relay = relay_parse(spec);
	const uint64_t end_ns = ddp_now_ns() + seconds * 1000000000;
	nodes = fork();
	if (nodes == 0) {
		raise_limit();
		uint32_t open = be_nodes(&relay, count, end_ns, silence_ms);
		printf("links open: %u\n", open);
		fflush(stdout);
		_exit(open == count ? 0 : 1);
	}
	/* The links open meanwhile. */
	sleep(1);
	const double began_ms = cpu_ms();
	const uint64_t began_ns = ddp_now_ns();
	sleep((unsigned int)seconds - 2);
	printf("of srun: CPU %.1f ms/s, descriptors %d, memory %ld KiB\n",
	       (cpu_ms() - began_ms) / ((double)(ddp_now_ns() - began_ns) * 1e-9), descriptors(), memory_kib());
	fflush(stdout);
	waitpid(nodes, &status, 0);
	relay_close();
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
