/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/printer.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/text.h"
#include "spank/base/worker.h"
#include "spank/srun/step.h"

enum { SENTENCES_MAX = 8 };

struct sentence {
	void (*say)(const char *text);
	char text[STEP_TEXT_MAX];
};

static struct {
	pthread_mutex_t lock;
	struct sentence waiting[SENTENCES_MAX]; /* the oldest first */
	int count;
	bool works;  /* the thread will look for more before it ends */
	bool started; /* it has been started, and not joined */
	struct worker worker;
} printer = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static void drop_first(void)
{
	printer.count--;
	memmove(&printer.waiting[0], &printer.waiting[1], (size_t)printer.count * sizeof(printer.waiting[0]));
}

static bool take_sentence(struct sentence *sentence)
{
	bool any;

	pthread_mutex_lock(&printer.lock);
	any = printer.count > 0;
	if (any) {
		*sentence = printer.waiting[0];
		drop_first();
	}
	printer.works = any;
	pthread_mutex_unlock(&printer.lock);
	return any;
}

/* SLURM's log drops a line that stderr does not take within 5 s. */
static void wait_for_reader(void)
{
	struct pollfd error_output = { .fd = STDERR_FILENO, .events = POLLOUT };

	while (poll(&error_output, 1, -1) < 0 && errno == EINTR)
		continue;
}

static void print_all(void)
{
	struct sentence sentence;

	while (take_sentence(&sentence)) {
		wait_for_reader();
		sentence.say(sentence.text);
	}
}

/* With the lock. True if there is no thread to say what waits. */
static bool start(void)
{
	if (printer.works)
		return false;
	if (printer.started)
		worker_join(&printer.worker, INT_MAX); /* it is about to end */
	printer.started = printer.works = worker_start(&printer.worker, print_all);
	return !printer.started;
}

void printer_print(void (*say)(const char *text), const char *text)
{
	struct sink sink;
	bool alone;

	pthread_mutex_lock(&printer.lock);
	if (printer.count == SENTENCES_MAX)
		drop_first();
	printer.waiting[printer.count].say = say;
	sink = sink_on(printer.waiting[printer.count].text, sizeof(printer.waiting[0].text));
	sink_add(&sink, "%s", text);
	printer.count++;
	alone = start();
	pthread_mutex_unlock(&printer.lock);
	if (alone)
		print_all();
}

void printer_finish(void)
{
	bool started;

	pthread_mutex_lock(&printer.lock);
	started = printer.started;
	printer.started = false;
	pthread_mutex_unlock(&printer.lock);
	while (started && !worker_join(&printer.worker, INT_MAX))
		continue;
}
