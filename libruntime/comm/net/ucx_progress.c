/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/ucx_progress.h"

#include "comm/net/ucx_connect.h"
#include "comm/net/ucx_credit.h"
#include "comm/net/ucx_failure.h"
#include "comm/net/ucx_inquiry.h"
#include "comm/net/ucx_receive.h"
#include "comm/net/ucx_silence.h"

enum { TURNS_MAX = 64 }; /* of UCX's progress at a time, though there is more to move */

void ddp_ucx_lock(ddp_worker *worker, const ddp_net *net)
{
	pthread_mutex_lock(&worker->lock);
	worker->current = net;
}

bool ddp_ucx_try_lock(ddp_worker *worker, const ddp_net *net)
{
	if (pthread_mutex_trylock(&worker->lock) != 0)
		return false;
	worker->current = net;
	return true;
}

void ddp_ucx_unlock(ddp_worker *worker)
{
	ddp_doorbell *bell = &worker->roster->doorbell;
	const bool news = worker->news, alarm = worker->alarm;

	worker->news = worker->alarm = false;
	worker->current = NULL;
	pthread_mutex_unlock(&worker->lock);
	if (news)
		ddp_doorbell_notify_own(bell);
	if (alarm)
		ddp_doorbell_notify_attention(bell);
}

/* Sends what callbacks left to be sent. A credit that cannot be sent now stays. */
static bool send_due(ddp_worker *worker)
{
	connection *due = worker->due;
	bool sent = false;

	worker->due = NULL;
	for (connection *c = due, *next; c != NULL; c = next) {
		next = c->next_due;
		c->listed = false;
		sent = sent || c->first_due || c->handshake_due;
		if (c->first_due || c->handshake_due)
			ddp_ucx_answer_handshake(c);
		if (c->closed_due != 0)
			ddp_ucx_answer_closed(c);
		if (c->credit_due && !ddp_ucx_send_credit(c))
			ddp_ucx_due(c);
	}
	return sent;
}

bool ddp_ucx_progress(ddp_worker *worker)
{
	bool moved = false;

	if (worker->ended)
		return false;
	/* The turns end when something has come that a rank may wait for: over TCP, a turn in which nothing moves costs a
	   system call. */
	worker->came = false;
	for (int i = 0; i < TURNS_MAX && !worker->came && ucp_worker_progress(worker->worker) != 0; i++)
		moved = true;
	ddp_ucx_silence(worker);
	if (send_due(worker))
		moved = true;
	if (ddp_ucx_receive_deferred(worker))
		moved = true;
	ddp_ucx_answer_inquiries(worker);
	return moved;
}
