/* SPDX-License-Identifier: Apache-2.0 */
/* link_probe NODES SECONDS SILENCE_MS [TASKS]: srun's relay thread, and so many nodes that hold links to it for so long,
   in a process of their own. It prints what srun's side takes of each: for tests and a model of large steps.
   With TASKS, so many a node, the step is one of restart=1: in its middle a rank fails, each other node tells srun that
   its ranks have lost that one, and all nodes begin a new generation as if their programs ended at once. */
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
#include "spank/srun/dealer.h"
#include "spank/srun/relay_srun.h"
#include "spank/wire/deal.h"
#include "spank/wire/relay.h"
#include "spank/wire/timeline.h"

struct pretended {
	struct relay relay;
	struct relay_sender sender;
	struct link link;
	uint64_t due_ns;
};

/* What srun told the nodes, and when it told the last node: to end generation 1, and to begin generations 1 and 2. */
static struct {
	uint32_t begun[3];
	uint64_t started_ns, opened_ns, ended_ns, begun_ns[3], failed_ns;
} heard;

static void take(void *about, const struct frame *frame)
{
	struct pretended *node = about;
	struct deal_clear clear = { .rest = DEAL_ENDED };
	unsigned char payload[DEAL_SMALL_BYTES];
	struct deal_go go;
	bool keep;

	if (frame->type == DEAL_END && deal_unpack_end(frame->payload, frame->bytes, &clear.generation, &keep)) {
		link_send(&node->link, DEAL_CLEAR, payload, deal_pack_clear(&clear, payload));
		heard.ended_ns = ddp_now_ns();
	}
	if (frame->type == DEAL_GO && deal_unpack_go(frame->payload, frame->bytes, &go) && go.generation < 3) {
		heard.begun[go.generation]++;
		heard.begun_ns[go.generation] = ddp_now_ns();
	}
}

static void join(struct pretended *node, uint32_t id, uint32_t tasks)
{
	const struct deal_join join = { .version = DEAL_VERSION, .node_id = id, .task_count = tasks, .release = "1" };
	uint32_t *numbers = calloc(tasks, sizeof(*numbers));
	unsigned char *payload = malloc(deal_join_bytes(tasks));

	if (numbers != NULL && payload != NULL) {
		for (uint32_t i = 0; i < tasks; i++)
			numbers[i] = id * tasks + i;
		link_send(&node->link, DEAL_JOIN, payload, deal_pack_join(&join, numbers, payload));
	}
	free(numbers);
	free(payload);
}

static void begin(struct pretended *node, const struct relay *relay, uint32_t id, uint32_t silence_ms, uint32_t tasks)
{
	struct link_facts facts = { .address = "127.0.0.1", .silence_ms = silence_ms,
		                    .take = tasks > 0 ? take : NULL, .about = node,
		                    .opening = { .node_id = id, .rank = tasks > 0 ? id * tasks : UINT32_MAX, .tasks = tasks > 0 ? tasks : 8 } };

	node->relay = *relay;
	node->relay.reply_ms = 5000;
	node->relay.sender = relay_start_sender(&node->sender);
	facts.relay = &node->relay;
	snprintf(facts.opening.node, sizeof(facts.opening.node), "far%u", id);
	link_start(&node->link, &facts);
	if (tasks > 0)
		join(node, id, tasks);
}

static void fail_rank(struct pretended *node, uint32_t rank)
{
	const int status = W_EXITCODE(3, 0);
	const struct deal_done done = { .generation = 1, .rank = rank, .wait_status = status };
	const struct relay_news news = { .text = "a rank has failed", .generation = 1, .wait_status = status,
		                         .node = node->link.facts.opening.node,
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING } };
	unsigned char payload[DEAL_SMALL_BYTES];

	heard.failed_ns = ddp_now_ns();
	link_send(&node->link, DEAL_DONE, payload, deal_pack_done(&done, payload));
	if (!relay_tell(&node->relay, "127.0.0.1", &news))
		printf("srun did not take the failure\n");
}

/* In a process of its own, beside the links. Ranks that have lost another one end, and each node tells srun once. */
static void tell_hearsay(const struct relay *relay, uint32_t count)
{
	const struct relay_news news = { .text = "a rank has lost another one", .generation = 1,
		                         .wait_status = W_EXITCODE(1, 0),
		                         .facts = { .end = END_CODE, .sent = SENT_NOTHING, .blames_peer = true } };
	const uint64_t began_ns = ddp_now_ns();
	struct relay each = *relay;
	uint32_t taken = 0;

	each.reply_ms = 5000;
	each.sender = NULL;
	for (uint32_t i = 0; i < count; i++)
		taken += relay_tell(&each, "127.0.0.1", &news);
	printf("srun took the word of %u of %u other nodes within %.1f ms\n", taken, count,
	       (double)(ddp_now_ns() - began_ns) / 1e6);
	fflush(stdout);
	_exit(0);
}

static pid_t fail(struct pretended *node, uint32_t rank, const struct relay *relay, uint32_t others)
{
	fail_rank(node, rank);
	const pid_t pid = fork();
	if (pid == 0)
		tell_hearsay(relay, others);
	return pid;
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
	return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

static void tell_restart(uint32_t count)
{
	printf("links: open after %.1f ms, generation 1 on %u nodes after %.1f ms\n",
	       ms_between(heard.started_ns, heard.opened_ns), heard.begun[1], ms_between(heard.started_ns, heard.begun_ns[1]));
	printf("generation 2: on %u of %u nodes, told to end after %.1f ms, to begin after %.1f ms\n", heard.begun[2], count,
	       ms_between(heard.failed_ns, heard.ended_ns), ms_between(heard.failed_ns, heard.begun_ns[2]));
}

static bool all_open(const struct pretended *nodes, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (nodes[i].link.now.state != LINE_OPEN)
			return false;
	return true;
}

/* Acts as all nodes until `end_ns`. A rank of one node fails at `failure_ns`. Returns how many links are open at the end. */
static uint32_t be_nodes(const struct relay *relay, uint32_t count, uint64_t failure_ns, uint64_t end_ns, uint32_t silence_ms,
                         uint32_t tasks)
{
	struct pretended *nodes = calloc(count, sizeof(*nodes));
	struct pollfd *ready = calloc((size_t)LINK_FDS * count, sizeof(*ready));
	pid_t hearsay = 0;
	uint32_t open = 0;
	uint64_t now_ns;

	if (nodes == NULL || ready == NULL)
		return 0;
	heard.started_ns = ddp_now_ns();
	for (uint32_t i = 0; i < count; i++)
		begin(&nodes[i], relay, i, silence_ms, tasks);
	while ((now_ns = ddp_now_ns()) < end_ns) {
		uint64_t due_ns = failure_ns < end_ns && heard.failed_ns == 0 ? failure_ns : end_ns;
		if (now_ns >= failure_ns && heard.failed_ns == 0)
			hearsay = fail(&nodes[count / 2], count / 2 * tasks, relay, count - 1);
		if (heard.opened_ns == 0 && all_open(nodes, count))
			heard.opened_ns = now_ns;
		for (uint32_t i = 0; i < count; i++) {
			struct pollfd *of = &ready[LINK_FDS * i];
			if (nodes[i].due_ns <= now_ns || of[0].revents != 0 || of[1].revents != 0)
				nodes[i].due_ns = now_ns + (uint64_t)link_tick(&nodes[i].link) * 1000000;
			if (link_asked(&nodes[i].link) != 0)
				link_answer(&nodes[i].link);
			if (nodes[i].due_ns < due_ns)
				due_ns = nodes[i].due_ns;
			link_poll(&nodes[i].link, of);
		}
		poll(ready, (nfds_t)LINK_FDS * count, due_ns > now_ns ? (int)((due_ns - now_ns) / 1000000) + 1 : 0);
	}
	if (hearsay > 0)
		waitpid(hearsay, NULL, 0);
	if (tasks > 0)
		tell_restart(count);
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

static uint32_t number(int argc, char **argv, int i)
{
	return i < argc ? (uint32_t)strtoul(argv[i], NULL, 10) : 0;
}

/* srun's side of the step. */
static bool open_step(uint32_t count, uint32_t silence_ms, uint32_t tasks, char spec[RELAY_SPEC_MAX])
{
	const struct step_policy policy = { .hold_ms = HOLD_MS, .ask_ms = ASK_MS, .kill_on_failure = true, .silence_ms = silence_ms,
		                            .restarts = tasks > 0 };
	const struct plan_policy plan = { .restarts = 1, .silence_ms = silence_ms };
	const struct relay_actions actions = { .say = say, .end_step = end_step, .take_frame = dealer_take_frame,
		                               .take_link = dealer_take_link,
		                               .restart = tasks > 0 ? &dealer_restart : NULL };
	struct error error;

	if (tasks > 0)
		dealer_open(&plan);
	if (!relay_open(0, 0, &policy, &actions, spec, &error) ||
	    (tasks > 0 && !dealer_begin(count, count * tasks, 0, 1, &error))) {
		fprintf(stderr, "link_probe: %s\n", error.text);
		return false;
	}
	return true;
}

/* Milliseconds of srun's processor time in each second, for so long. */
static double watch(double seconds)
{
	const double began_ms = cpu_ms();
	const uint64_t began_ns = ddp_now_ns();

	usleep((useconds_t)(seconds * 1e6));
	return (cpu_ms() - began_ms) / ((double)(ddp_now_ns() - began_ns) * 1e-9);
}

int main(int argc, char **argv)
{
	const uint32_t count = number(argc, argv, 1), seconds = number(argc, argv, 2);
	const uint32_t silence_ms = number(argc, argv, 3), tasks = number(argc, argv, 4);
	char spec[RELAY_SPEC_MAX];
	int status = 1;
	pid_t nodes;

	if (argc < 4 || argc > 5 || count == 0 || seconds < 2 || silence_ms == 0) {
		fprintf(stderr, "usage: link_probe NODES SECONDS SILENCE_MS [TASKS]\n");
		return 2;
	}
	if (!open_step(count, silence_ms, tasks, spec))
		return 1;
	const struct relay relay = relay_parse(spec);
	const uint64_t end_ns = ddp_now_ns() + seconds * 1000000000ull;
	const uint64_t failure_ns = tasks > 0 ? end_ns - (seconds - 1) * 500000000ull : UINT64_MAX;
	nodes = fork();
	if (nodes == 0) {
		raise_limit();
		uint32_t open = be_nodes(&relay, count, failure_ns, end_ns, silence_ms, tasks);
		printf("links open: %u\n", open);
		fflush(stdout);
		_exit(open == count && (tasks == 0 || heard.begun[2] == count) ? 0 : 1);
	}
	/* The links open meanwhile. */
	sleep(1);
	const double idle = watch((seconds - 2) * (tasks > 0 ? 0.5 : 1.0));
	printf("of srun: CPU %.1f ms/s, descriptors %d, memory %ld KiB\n", idle, descriptors(), memory_kib());
	if (tasks > 0) {
		const double half = (seconds - 2) * 0.5;
		printf("the restart took %.1f ms of CPU more\n", (watch(half) - idle) * half);
	}
	fflush(stdout);
	waitpid(nodes, &status, 0);
	relay_close();
	dealer_close();
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
