/* SPDX-License-Identifier: Apache-2.0 */
#include "spank/srun/voice.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "spank/base/sink.h"
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
	bool speaks;  /* the thread will look for more before it ends */
	bool started; /* it has been started, and not joined */
	struct worker worker;
} voice = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static void drop_first(void)
{
	voice.count--;
	memmove(&voice.waiting[0], &voice.waiting[1], (size_t)voice.count * sizeof(voice.waiting[0]));
}

static bool take(struct sentence *sentence)
{
	bool any;

	pthread_mutex_lock(&voice.lock);
	any = voice.count > 0;
	if (any) {
		*sentence = voice.waiting[0];
		drop_first();
	}
	voice.speaks = any;
	pthread_mutex_unlock(&voice.lock);
	return any;
}

/* SLURM's log drops a line that stderr does not take within 5 s. */
static void wait_for_reader(void)
{
	struct pollfd error_output = { .fd = STDERR_FILENO, .events = POLLOUT };

	while (poll(&error_output, 1, -1) < 0 && errno == EINTR)
		continue;
}

static void speak(void)
{
	struct sentence sentence;

	while (take(&sentence)) {
		wait_for_reader();
		sentence.say(sentence.text);
	}
}

/* With the lock. True if there is no thread to say what waits. */
static bool start(void)
{
	if (voice.speaks)
		return false;
	if (voice.started)
		worker_join(&voice.worker, INT_MAX); /* it is about to end */
	voice.started = voice.speaks = worker_start(&voice.worker, speak);
	return !voice.started;
}

void voice_say(void (*say)(const char *text), const char *text)
{
	struct sink sink;
	bool alone;

	pthread_mutex_lock(&voice.lock);
	if (voice.count == SENTENCES_MAX)
		drop_first();
	voice.waiting[voice.count].say = say;
	sink = sink_on(voice.waiting[voice.count].text, sizeof(voice.waiting[0].text));
	sink_add(&sink, "%s", text);
	voice.count++;
	alone = start();
	pthread_mutex_unlock(&voice.lock);
	if (alone)
		speak();
}

void voice_finish(void)
{
	bool started;

	pthread_mutex_lock(&voice.lock);
	started = voice.started;
	voice.started = false;
	pthread_mutex_unlock(&voice.lock);
	while (started && !worker_join(&voice.worker, INT_MAX))
		continue;
}
