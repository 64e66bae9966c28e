/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: threads, the readers, read batches ahead into a ring of slots.

   Slot k of the ring holds batches k, k + slots, ... counted from the readers'
   start. Each reader takes the next batch that none has taken; `taken` and
   `consumed` count batches; the batch that the caller holds is number
   consumed - 1, so its slot is free again once the caller asks for the next. A
   failed read is stored in its slot, and no more batches are taken: the caller
   sees the error when it comes to that batch, behind those before it. */
#include "data/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/thread.h"
#include "comm/agree.h"
#include "data/sampler.h"
#include "renewal.h"
#include "watch/watch.h"

enum { PREFETCH_MAX = 1024, READERS_MAX = 256, ALIGNMENT = 64, MESSAGE_MAX = 1024 };

struct slot {
	char *data;
	ddp_batch batch;
	ddp_status status;
	char message[MESSAGE_MAX];
	int64_t ready; /* under lock: the number of the batch that it holds, plus 1 */
};

/* Update u of an epoch, of `accumulate` batches, begins at sample shift + u * update_samples() of the epoch's order.
   `shift` is less than an update; it is not 0 in an epoch that a world of other updates began. */
struct place {
	int64_t epoch;
	int64_t shift;
	int64_t batch;
	int64_t batches; /* of that epoch */
};

/* A thread, whose sampler is at the epoch and shift of the batch that it took last. */
struct reader {
	ddp_loader *loader;
	ddp_sampler *sampler;
	int64_t epoch;
	int64_t shift;
	pthread_t thread;
};

struct ddp_loader {
	ddp_dataset dataset;
	ddp_loader_options options;
	int rank;
	int world_size;
	int accumulate;  /* batches of an update */
	int64_t batches; /* of an epoch without a shift: of whole updates */
	struct place next; /* the batch to be delivered next */

	int slot_count;
	struct slot *slots;
	char *memory;

	struct reader *readers;
	int running;        /* of them */
	struct place begin; /* the batch of number 0 */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int64_t taken; /* under lock, as all below */
	int64_t consumed;
	bool stop;
};

/* Samples of a batch of all ranks. */
static int64_t all_batches(const ddp_loader *loader)
{
	return (int64_t)loader->options.batch_size * loader->world_size;
}

static int64_t samples_of(const ddp_loader *loader, int accumulate)
{
	return loader->options.global_batch > 0 ? loader->options.global_batch : all_batches(loader) * accumulate;
}

static int64_t update_samples(const ddp_loader *loader)
{
	return samples_of(loader, loader->accumulate);
}

/* Batches of a rank that hold its share of a global_batch. */
static int64_t batches_of(const ddp_loader *loader, int64_t samples)
{
	return (samples + all_batches(loader) - 1) / all_batches(loader);
}

/* Whether the batches of an update have room for more samples than it has. Then each rank deals out the whole order. */
static bool is_uneven(const ddp_loader *loader)
{
	return update_samples(loader) != all_batches(loader) * loader->accumulate;
}

/* Batches of an epoch from `shift` on: the same on every rank; and in every world, whatever the tail, as many
   updates of as many samples. */
static int64_t count_batches(const ddp_loader *loader, int accumulate, int64_t shift)
{
	const int64_t update = samples_of(loader, accumulate), samples = loader->dataset.size - shift;
	const bool short_one = loader->options.tail != DDP_TAIL_DROP && samples % update > 0;

	return (samples / update + short_one) * accumulate;
}

/* Where an update begins at a sample of the epoch. If the tail drops the samples that are left, it is the next epoch.
   */
static struct place place_of(const ddp_loader *loader, int64_t epoch, int64_t sample)
{
	const int64_t update = update_samples(loader), shift = sample % update;
	const struct place place = { .epoch = epoch, .shift = shift, .batch = sample / update * loader->accumulate,
	                             .batches = count_batches(loader, loader->accumulate, shift) };

	return place.batch < place.batches ? place : (struct place){ .epoch = epoch + 1, .batches = loader->batches };
}

static struct place place_behind(const ddp_loader *loader, struct place place, int64_t batches)
{
	const int64_t behind = batches - (place.batches - place.batch);

	if (behind >= 0)
		return (struct place){ .epoch = place.epoch + 1 + behind / loader->batches,
		                       .batch = behind % loader->batches, .batches = loader->batches };
	place.batch += batches;
	return place;
}

static ddp_status fail_all_dropped(const ddp_loader *loader, int accumulate)
{
	return ddp_fail(DDP_ERR_INVALID, "loader: %" PRId64 " samples are less than an update of %" PRId64
	                " (%d x %d x %d: batch_size, ranks, accumulate), and DDP_TAIL_DROP would drop them all",
	                loader->dataset.size, samples_of(loader, accumulate), loader->options.batch_size,
	                loader->world_size, accumulate);
}

/* ---- the readers ----------------------------------------------------------- */

/* The samples of a batch of this rank: how many, and where they are among the sampler's indices, *stride apart. */
static int64_t share_of(const ddp_loader *loader, const ddp_batch *batch, int64_t shift, int64_t count, int64_t *first,
                        int64_t *stride)
{
	const int64_t size = loader->options.batch_size;
	int64_t samples = count - batch->batch * size;

	*first = batch->batch * size;
	*stride = 1;
	if (is_uneven(loader)) {
		const int64_t update = update_samples(loader), begin = shift + batch->batch / loader->accumulate * update;
		const int64_t end = begin + update < count ? begin + update : count;

		*stride = loader->world_size;
		*first = begin + batch->batch % loader->accumulate * all_batches(loader) + loader->rank;
		samples = end > *first ? (end - *first + *stride - 1) / *stride : 0;
	}
	return samples < 0 ? 0 : samples > size ? size : samples;
}

static ddp_status fill(struct reader *reader, struct slot *slot, int64_t shift)
{
	const ddp_loader *loader = reader->loader;
	const int64_t place = is_uneven(loader) ? 0 : shift; /* whole orders begin at their first sample */
	int64_t count, first, stride;

	if (slot->batch.epoch != reader->epoch || place != reader->shift) {
		ddp_status status = ddp_sampler_set_place(reader->sampler, slot->batch.epoch, place);
		if (status != DDP_OK)
			return status;
		reader->epoch = slot->batch.epoch;
		reader->shift = place;
	}
	const int64_t *indices = ddp_sampler_indices(reader->sampler, &count);
	const int64_t samples = share_of(loader, &slot->batch, shift, count, &first, &stride);
	for (int64_t i = 0; i < samples; i++) {
		const int64_t index = indices[first + i * stride];
		char *to = slot->data + (size_t)i * loader->dataset.sample_bytes;
		ddp_forget_error();
		ddp_status status = loader->dataset.read(loader->dataset.self, index, to);
		if (status != DDP_OK && ddp_last_error()[0] == '\0')
			ddp_fail(status, "the dataset's read() failed with %s and gave no reason (ddp_set_error())",
			         ddp_status_name(status));
		if (status != DDP_OK)
			return ddp_fail_context(status, "reading sample %" PRId64 " for batch %" PRId64
			                        " of epoch %" PRId64, index, slot->batch.batch, slot->batch.epoch);
	}
	slot->batch.samples = samples;
	return DDP_OK;
}

/* Waits for a free slot, and takes the next batch; NULL if the reader shall end. */
static struct slot *take(ddp_loader *loader, int64_t *number)
{
	struct slot *slot = NULL;

	pthread_mutex_lock(&loader->lock);
	/* One slot is the caller's: the batch that ddp_loader_next() gave last. */
	while (!loader->stop && loader->taken - loader->consumed >= loader->slot_count - 1)
		pthread_cond_wait(&loader->changed, &loader->lock);
	if (!loader->stop) {
		*number = loader->taken++;
		slot = &loader->slots[*number % loader->slot_count];
	}
	pthread_mutex_unlock(&loader->lock);
	return slot;
}

static void *read_ahead(void *argument)
{
	struct reader *reader = argument;
	ddp_loader *loader = reader->loader;
	struct slot *slot;
	int64_t number;

	while ((slot = take(loader, &number)) != NULL) {
		const struct place place = place_behind(loader, loader->begin, number);

		slot->batch = (ddp_batch){ .data = slot->data, .epoch = place.epoch, .batch = place.batch };
		slot->status = fill(reader, slot, place.shift);
		if (slot->status != DDP_OK) {
			strncpy(slot->message, ddp_last_error(), sizeof(slot->message) - 1);
			slot->message[sizeof(slot->message) - 1] = '\0';
		}
		pthread_mutex_lock(&loader->lock);
		slot->ready = number + 1;
		loader->stop = loader->stop || slot->status != DDP_OK;
		pthread_cond_broadcast(&loader->changed);
		pthread_mutex_unlock(&loader->lock);
	}
	return NULL;
}

static void stop(ddp_loader *loader)
{
	pthread_mutex_lock(&loader->lock);
	loader->stop = true;
	pthread_cond_broadcast(&loader->changed);
	pthread_mutex_unlock(&loader->lock);
	while (loader->running > 0)
		pthread_join(loader->readers[--loader->running].thread, NULL);
}

static ddp_status start(ddp_loader *loader)
{
	loader->begin = loader->next;
	loader->taken = 0;
	loader->consumed = 0;
	loader->stop = false;
	for (int i = 0; i < loader->slot_count; i++)
		loader->slots[i].ready = 0;
	while (loader->running < loader->options.readers) {
		struct reader *reader = &loader->readers[loader->running];
		int error = ddp_thread_start(&reader->thread, read_ahead, reader);
		if (error != 0) {
			stop(loader);
			return ddp_fail_errno(DDP_ERR_NOMEM, error, "loader: cannot start a thread that reads (see ulimit -u)");
		}
		loader->running++;
	}
	return DDP_OK;
}

/* ---- the caller's side ------------------------------------------------------ */

ddp_status ddp_loader_next(ddp_loader *loader, ddp_batch *batch)
{
	if (loader == NULL)
		return ddp_fail_null("ddp_loader_next", "loader");
	if (batch == NULL)
		return ddp_fail_null("ddp_loader_next", "batch");
	if (loader->running == 0) {
		ddp_status status = start(loader);
		if (status != DDP_OK)
			return status;
	}
	pthread_mutex_lock(&loader->lock);
	const struct slot *slot = &loader->slots[loader->consumed % loader->slot_count];
	while (slot->ready != loader->consumed + 1)
		pthread_cond_wait(&loader->changed, &loader->lock);
	if (slot->status == DDP_OK) {
		loader->consumed++;
		pthread_cond_broadcast(&loader->changed);
	}
	pthread_mutex_unlock(&loader->lock);

	/* A failed batch is not consumed: it fails again until a seek. */
	if (slot->status != DDP_OK)
		return ddp_fail(slot->status, "%s", slot->message);
	*batch = slot->batch;
	loader->next = place_behind(loader, loader->next, 1);
	return DDP_OK;
}

int64_t ddp_loader_batches_per_epoch(const ddp_loader *loader)
{
	return loader != NULL ? loader->batches : 0;
}

int ddp_loader_accumulation(const ddp_loader *loader)
{
	return loader != NULL ? loader->accumulate : 0;
}

void ddp_loader_place(const ddp_loader *loader, int *rank, int *ranks)
{
	*rank = loader->rank;
	*ranks = loader->world_size;
}

int ddp_loader_accumulate(const ddp_loader *loader)
{
	return loader->options.global_batch > 0 ? loader->accumulate : loader->options.accumulate;
}

ddp_status ddp_loader_set_accumulate(ddp_loader *loader, int accumulate)
{
	const int said = loader->options.accumulate;

	/* Their number follows from the samples of an update. */
	if (loader->options.global_batch > 0)
		return DDP_OK;
	if (said > 0 && said != accumulate)
		return ddp_fail(DDP_ERR_INVALID, "training option accumulate is %d, and the loader's is %d; give the same, "
		                "or one of them", accumulate, said);
	if (accumulate == loader->accumulate)
		return DDP_OK;
	const int64_t batches = count_batches(loader, accumulate, 0);
	if (batches == 0)
		return fail_all_dropped(loader, accumulate);
	const ddp_loader_state at = ddp_loader_get_state(loader);
	stop(loader);
	loader->accumulate = accumulate;
	loader->batches = batches;
	loader->next = place_of(loader, at.epoch, at.samples);
	return DDP_OK;
}

static ddp_status check_options(const ddp_dataset *dataset, const ddp_loader_options *options)
{
	if (dataset == NULL)
		return ddp_fail(DDP_ERR_INVALID, "loader: the dataset is NULL");
	if (dataset->read == NULL || dataset->size < 1 || dataset->sample_bytes < 1)
		return ddp_fail(DDP_ERR_INVALID, "loader: the dataset has no samples or no read()");
	const ddp_status status = ddp_reserved_check("the dataset", dataset);
	if (status != DDP_OK)
		return status;
	if (options->batch_size < 1)
		return ddp_fail(DDP_ERR_INVALID, "loader: batch_size is %d, must be at least 1",
		                options->batch_size);
	if (options->accumulate < 1 && options->accumulate != DDP_AUTO)
		return ddp_fail(DDP_ERR_INVALID, "loader: accumulate is %d, must be at least 1, or DDP_AUTO",
		                options->accumulate);
	if (options->global_batch < 0 || (options->global_batch > 0 && options->accumulate != DDP_AUTO))
		return ddp_fail(DDP_ERR_INVALID, "loader: global_batch is %" PRId64 " and accumulate %d; give one of them: "
		                "global_batch, above 0, says how many batches an update takes", options->global_batch,
		                options->accumulate);
	if (options->prefetch < 0 || options->prefetch > PREFETCH_MAX)
		return ddp_fail(DDP_ERR_INVALID, "loader: prefetch is %d, must be 0 .. %d",
		                options->prefetch, PREFETCH_MAX);
	if (options->readers < 1 || options->readers > READERS_MAX)
		return ddp_fail(DDP_ERR_INVALID, "loader: readers is %d, must be 1 .. %d",
		                options->readers, READERS_MAX);
	return DDP_OK;
}

static ddp_status allocate_slots(ddp_loader *loader)
{
	size_t bytes, total;

	loader->slot_count = loader->options.prefetch + 1;
	if (__builtin_mul_overflow((size_t)loader->options.batch_size,
	                           loader->dataset.sample_bytes, &bytes) ||
	    __builtin_add_overflow(bytes, ALIGNMENT - 1, &bytes) ||
	    __builtin_mul_overflow(bytes / ALIGNMENT * ALIGNMENT, (size_t)loader->slot_count, &total))
		return ddp_fail(DDP_ERR_INVALID, "loader: batches of %d samples of %zu bytes do not fit "
		                "in memory", loader->options.batch_size, loader->dataset.sample_bytes);
	bytes = bytes / ALIGNMENT * ALIGNMENT;
	loader->slots = calloc((size_t)loader->slot_count, sizeof(*loader->slots));
	loader->memory = aligned_alloc(ALIGNMENT, total);
	if (loader->slots == NULL || loader->memory == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "loader: no memory for %d batches of %zu bytes",
		                loader->slot_count, bytes);
	for (int i = 0; i < loader->slot_count; i++)
		loader->slots[i].data = loader->memory + (size_t)i * bytes;
	return DDP_OK;
}

static void free_readers(const ddp_loader *loader, struct reader *readers)
{
	for (int i = 0; readers != NULL && i < loader->options.readers; i++)
		ddp_sampler_free(readers[i].sampler);
	free(readers);
}

static ddp_status make_readers(ddp_loader *loader)
{
	const ddp_loader_options *options = &loader->options;
	const bool whole = is_uneven(loader);
	ddp_status status = DDP_OK;

	loader->readers = calloc((size_t)options->readers, sizeof(*loader->readers));
	if (loader->readers == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "loader: no memory for %d threads that read", options->readers);
	for (int i = 0; i < options->readers && status == DDP_OK; i++) {
		loader->readers[i].loader = loader;
		status = ddp_sampler_create(loader->dataset.size, whole ? 1 : loader->world_size, whole ? 0 : loader->rank,
		                            options->seed, !options->sequential, whole ? DDP_TAIL_UNEVEN : options->tail,
		                            &loader->readers[i].sampler);
	}
	return status;
}

ddp_status ddp_loader_make(int rank, int world_size, const ddp_dataset *dataset,
                           const ddp_loader_options *given, ddp_loader **loader)
{
	ddp_loader_options options = DDP_LOADER_OPTIONS;

	ddp_status status = ddp_options_copy("ddp_loader_options", given, &options, sizeof(options));
	if (status == DDP_OK)
		status = check_options(dataset, &options);
	if (status != DDP_OK)
		return status;

	ddp_loader *made = calloc(1, sizeof(*made));
	if (made == NULL)
		return ddp_fail(DDP_ERR_NOMEM, "no memory for a loader");
	made->dataset = *dataset;
	made->options = options;
	if (made->options.prefetch < made->options.readers)
		made->options.prefetch = made->options.readers;
	made->rank = rank;
	made->world_size = world_size;
	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->changed, NULL);

	made->accumulate = options.accumulate > 0 ? options.accumulate : 1;
	if (options.global_batch > 0)
		made->accumulate = (int)batches_of(made, options.global_batch);
	made->batches = count_batches(made, made->accumulate, 0);
	made->next = place_of(made, 0, 0);
	if (made->batches == 0) {
		status = fail_all_dropped(made, made->accumulate);
		goto failed;
	}
	status = make_readers(made);
	if (status != DDP_OK)
		goto failed;
	status = allocate_slots(made);
	if (status != DDP_OK)
		goto failed;
	*loader = made;
	return DDP_OK;

failed:
	ddp_loader_free(made);
	return status;
}

/* With other orders, or other samples, ranks would train on some twice, and on others never. */
static ddp_status agree(ddp_comm *comm, ddp_status mine, const ddp_loader *loader)
{
	ddp_fact facts[] = {
		{ "the number of samples in the dataset", 0 }, { "sample_bytes", 0 },
		{ "batch_size", 0 }, { "seed", 0 }, { "the seed's upper half", 0 },
		{ "sequential", 0 }, { "tail", 0 }, { "the digest of the dataset's contents", 0 },
		{ "accumulate", 0 }, { "global_batch", 0 },
	};
	int differs;

	if (mine == DDP_OK) {
		const ddp_loader_options *options = &loader->options;
		const double values[] = {
			(double)loader->dataset.size, (double)loader->dataset.sample_bytes,
			options->batch_size, (double)(options->seed & UINT32_MAX),
			(double)(options->seed >> 32), options->sequential, options->tail,
			(double)(loader->dataset.digest >> 12), /* what a double can hold */
			options->accumulate, (double)options->global_batch,
		};
		for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
			facts[i].value = values[i];
	}
	return ddp_facts_agree(comm, mine, "loader", facts, sizeof(facts) / sizeof(facts[0]),
	                       &differs);
}

ddp_status ddp_loader_create(ddp_context *context, const ddp_dataset *dataset,
                             const ddp_loader_options *options, ddp_loader **loader)
{
	ddp_loader *made = NULL;
	int rank, ranks;
	ddp_comm *comm;

	if (context == NULL)
		return ddp_fail_null("ddp_loader_create", "context");
	ddp_status status = ddp_comm_choose(context->world, ddp_options_pointer(options, comm), "ddp_loader_create()",
	                                    &comm);
	if (status != DDP_OK)
		return status;
	ddp_renewal_place(context, comm, &rank, &ranks);
	status = loader == NULL ? ddp_fail_null("ddp_loader_create", "loader")
	                        : ddp_loader_make(rank, ranks, dataset, options, &made);
	status = agree(comm, status, made);
	if (status != DDP_OK) {
		if (context->watch != NULL)
			ddp_watch_error(context->watch, status);
		ddp_loader_free(made);
		return status;
	}
	if (context->watch != NULL)
		ddp_watch_go_on(context->watch);
	*loader = made;
	return DDP_OK;
}

void ddp_loader_free(ddp_loader *loader)
{
	if (loader == NULL)
		return;
	stop(loader);
	pthread_cond_destroy(&loader->changed);
	pthread_mutex_destroy(&loader->lock);
	free_readers(loader, loader->readers);
	free(loader->memory);
	free(loader->slots);
	free(loader);
}

/* ---- position ----------------------------------------------------------------- */

ddp_loader_state ddp_loader_get_state(const ddp_loader *loader)
{
	const int64_t update = loader->next.batch / loader->accumulate;
	const int64_t samples = loader->next.shift + update * update_samples(loader) +
	                        loader->next.batch % loader->accumulate * all_batches(loader);

	return (ddp_loader_state){
		.epoch = loader->next.epoch,
		/* Behind them an epoch has only empty batches. */
		.samples = samples < loader->dataset.size ? samples : loader->dataset.size,
		.global_batch = update_samples(loader),
		.size = loader->dataset.size,
		.seed = loader->options.seed,
		.sequential = loader->options.sequential,
		.tail = loader->options.tail,
		.digest = loader->dataset.digest,
	};
}

/* The order of samples; how many of them make a batch does not change it. */
static ddp_status check_order(const ddp_loader_state *own, const ddp_loader_state *state)
{
	const struct { const char *name; uint64_t theirs, ours; } order[] = {
		{ "dataset size", (uint64_t)state->size, (uint64_t)own->size },
		{ "seed", state->seed, own->seed },
		{ "sequential", state->sequential, own->sequential },
		{ "tail", (uint64_t)state->tail, (uint64_t)own->tail },
	};

	for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
		if (order[i].theirs != order[i].ours)
			return ddp_fail(DDP_ERR_INVALID, "loader: %s is %" PRIu64 " here, but was %" PRIu64
			                " where the position was saved: the sample order would be another; "
			                "set it to that", order[i].name, order[i].ours, order[i].theirs);
	return DDP_OK;
}

ddp_status ddp_loader_seek(ddp_loader *loader, const ddp_loader_state *state)
{
	const ddp_loader_state own = ddp_loader_get_state(loader);

	ddp_status status = check_order(&own, state);
	if (status != DDP_OK)
		return status;
	if (state->epoch < 0 || state->samples < 0 || state->samples > own.size)
		return ddp_fail(DDP_ERR_INVALID, "loader: epoch %" PRId64 " has no sample %" PRId64, state->epoch,
		                state->samples);
	if (state->global_batch != own.global_batch && loader->rank == 0)
		ddp_log(DDP_LOG_WARN, "loader: an update (batch_size x ranks x accumulate) has %" PRId64 " samples here, and had %"
		        PRId64 " where the position was saved; it goes on at sample %" PRId64 " of epoch %" PRId64,
		        own.global_batch, state->global_batch, state->samples, state->epoch);
	stop(loader);
	loader->next = place_of(loader, state->epoch, state->samples);
	return DDP_OK;
}

ddp_status ddp_loader_refit(ddp_loader *loader, int rank, int ranks)
{
	struct reader *readers = loader->readers;

	stop(loader); /* until then threads read ahead */
	const ddp_loader former = *loader;
	loader->options.global_batch = update_samples(loader);
	loader->rank = rank;
	loader->world_size = ranks;
	loader->accumulate = (int)batches_of(loader, loader->options.global_batch);
	ddp_status status = make_readers(loader);
	if (status != DDP_OK) {
		free_readers(loader, loader->readers);
		loader->readers = readers;
		loader->options = former.options;
		loader->rank = former.rank;
		loader->world_size = former.world_size;
		loader->accumulate = former.accumulate;
		return status;
	}
	free_readers(loader, readers);
	loader->batches = count_batches(loader, loader->accumulate, 0);
	loader->next = place_of(loader, former.next.epoch, 0);
	return DDP_OK;
}
