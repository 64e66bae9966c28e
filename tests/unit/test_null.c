/* SPDX-License-Identifier: Apache-2.0 */
/* runs: asan; all: unit tsan */
/* NULL, by the one rule of ddp.h, in each function and each of its pointers; test_api.sh sees that
   none is left out. Each call is made by a process of its own, so that one that crashes is named. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp.h"
#include "tests/support/options.h"
#include "tests/support/test.h"

static int wrong; /* calls */

static void expect_end(pid_t child, const char *call)
{
	int status;

	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	wrong++;
	fprintf(stderr, "# %s: %s %d\n", call, WIFSIGNALED(status) ? "ended by signal" : "ended with code",
	        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Without cmocka's handler, which would go on with the next test; and not for ever. */
static void be_alone(void)
{
	signal(SIGSEGV, SIG_DFL);
	signal(SIGFPE, SIG_DFL);
	signal(SIGABRT, SIG_DFL);
	alarm(20);
}

/* Whether an error that names NULL came of it. */
static bool is_refused(ddp_status status)
{
	if (status == DDP_ERR_INVALID && strstr(ddp_last_error(), "NULL") != NULL)
		return true;
	fprintf(stderr, "# %s: \"%s\"\n", ddp_status_name(status), ddp_last_error());
	return false;
}

#define IN_A_PROCESS(name, condition) do { \
	const pid_t child = fork(); \
	if (child == 0) { \
		be_alone(); \
		_exit((condition) ? 0 : 1); \
	} \
	expect_end(child, name); \
} while (0)

#define REFUSES(call) IN_A_PROCESS(#call, is_refused(call))
#define GIVES(value, call) IN_A_PROCESS(#call, (call) == (value))
#define DOES_NOTHING(call) IN_A_PROCESS(#call, ((void)(call), true))

static ddp_context *context;
static ddp_comm *comm;
static ddp_model *model;
static ddp_loader *loader;

static ddp_status read_sample(void *self, int64_t index, void *sample)
{
	memset(sample, 0, 4);
	return DDP_OK;
}

static const ddp_param params[] = { { .name = "a", .ndim = 2, .shape = { 4, 2 }, .sparse_rows = 2 } };
static const ddp_dataset dataset = { .size = 8, .sample_bytes = 4, .read = read_sample };
static const ddp_loader_options batches = { DDP_LOADER_OPTIONS_FIELDS, .batch_size = 2 };

static int open_all(void **state)
{
	return ddp_init(NULL, &context) != DDP_OK || (comm = ddp_world(context)) == NULL ||
	       ddp_model_create(context, params, 1, NULL, &model) != DDP_OK ||
	       ddp_loader_create(context, &dataset, &batches, &loader) != DDP_OK;
}

static int close_all(void **state)
{
	ddp_loader_free(loader);
	ddp_model_free(model);
	return ddp_finalize(context) != DDP_OK;
}

TEST(errors_log_and_job)
{
	char text[2048];

	wrong = 0;
	DOES_NOTHING(ddp_status_name((ddp_status)-1));
	DOES_NOTHING(ddp_last_error());
	GIVES(false, ddp_last_error_is_told());
	DOES_NOTHING(ddp_set_error(NULL));
	DOES_NOTHING(ddp_set_log(NULL, NULL, DDP_LOG_WARN));
	DOES_NOTHING(ddp_log_stderr(NULL, DDP_LOG_WARN, NULL));
	DOES_NOTHING(ddp_version());
	REFUSES(ddp_job_json(NULL, text, sizeof(text)));
	REFUSES(ddp_job_json(ddp_get_job(context), NULL, sizeof(text)));
	REFUSES(ddp_spawn(2, NULL));
	REFUSES(ddp_init(NULL, NULL));
	DOES_NOTHING(ddp_context_set_phase(NULL, DDP_PHASE_DATA));
	REFUSES(ddp_context_begin_step(NULL, 1, 0));
	REFUSES(ddp_context_end_step(NULL, &(ddp_step_stats){ .step = 1 }));
	REFUSES(ddp_context_end_step(context, NULL));
	REFUSES(ddp_context_fail(NULL, "no reason"));
	REFUSES(ddp_context_fail(context, NULL));
	GIVES(DDP_OK, ddp_finalize(NULL));
	GIVES(NULL, ddp_get_job(NULL));
	GIVES(NULL, ddp_world(NULL));
	assert_int_equal(wrong, 0);
}

TEST(communicators)
{
	const ddp_operation sum = { .kind = DDP_ALL_REDUCE, .recv = &(float){ 0 }, .count = 1 };
	ddp_request *request;
	ddp_comm_info info;
	ddp_comm *part;
	float x = 0;
	void *memory;

	wrong = 0;
	GIVES(-1, ddp_comm_rank(NULL));
	GIVES(0, ddp_comm_size(NULL));
	REFUSES(ddp_comm_describe(NULL, &info));
	REFUSES(ddp_comm_describe(comm, NULL));
	REFUSES(ddp_mem_alloc(NULL, 8, &memory));
	REFUSES(ddp_mem_alloc(comm, 8, NULL));
	REFUSES(ddp_mem_alloc_local(NULL, 8, &memory));
	REFUSES(ddp_mem_alloc_local(comm, 8, NULL));
	REFUSES(ddp_mem_keep(NULL, &memory));
	REFUSES(ddp_mem_keep(comm, NULL));
	REFUSES(ddp_mem_alloc_on(NULL, DDP_MEMORY_HOST, 8, &memory));
	REFUSES(ddp_mem_alloc_on(comm, DDP_MEMORY_HOST, 8, NULL));
	REFUSES(ddp_mem_free(NULL, &x));
	GIVES(DDP_OK, ddp_mem_free(comm, NULL));
	REFUSES(ddp_issue(NULL, &sum, &request));
	REFUSES(ddp_issue(comm, NULL, &request));
	REFUSES(ddp_issue(comm, &sum, NULL));
	REFUSES(ddp_test(NULL, &(bool){ false }));
	REFUSES(ddp_wait(NULL));
	REFUSES(ddp_wait_for(NULL, 1));
	DOES_NOTHING(ddp_request_free(NULL));
	REFUSES(ddp_wait_on(NULL, NULL));
	REFUSES(ddp_run(NULL, &sum));
	REFUSES(ddp_run(comm, NULL));
	REFUSES(ddp_all_reduce(NULL, NULL, &x, 1, DDP_F32, DDP_SUM));
	REFUSES(ddp_all_reduce(comm, NULL, NULL, 1, DDP_F32, DDP_SUM));
	REFUSES(ddp_all_reduce(comm, &x, NULL, 1, DDP_F32, DDP_SUM));
	REFUSES(ddp_reduce(NULL, NULL, &x, 1, DDP_F32, DDP_SUM, 0));
	REFUSES(ddp_reduce(comm, NULL, NULL, 1, DDP_F32, DDP_SUM, 0));
	REFUSES(ddp_broadcast(NULL, &x, 1, DDP_F32, 0));
	REFUSES(ddp_broadcast(comm, NULL, 1, DDP_F32, 0));
	REFUSES(ddp_reduce_scatter(NULL, NULL, &x, 1, DDP_F32, DDP_SUM));
	REFUSES(ddp_reduce_scatter(comm, NULL, NULL, 1, DDP_F32, DDP_SUM));
	REFUSES(ddp_all_gather(NULL, NULL, &x, 1, DDP_F32));
	REFUSES(ddp_all_gather(comm, &x, NULL, 1, DDP_F32));
	REFUSES(ddp_gather(NULL, NULL, &x, 1, DDP_F32, 0));
	REFUSES(ddp_gather(comm, &x, NULL, 1, DDP_F32, 0));
	REFUSES(ddp_scatter(NULL, NULL, &x, 1, DDP_F32, 0));
	REFUSES(ddp_scatter(comm, NULL, NULL, 1, DDP_F32, 0));
	REFUSES(ddp_all_to_all(NULL, NULL, &x, 1, DDP_F32));
	REFUSES(ddp_all_to_all(comm, NULL, NULL, 1, DDP_F32));
	REFUSES(ddp_send(NULL, &x, 1, DDP_F32, 0, 0));
	REFUSES(ddp_send(comm, NULL, 1, DDP_F32, 0, 0));
	REFUSES(ddp_recv(NULL, &x, 1, DDP_F32, 0, 0));
	REFUSES(ddp_recv(comm, NULL, 1, DDP_F32, 0, 0));
	REFUSES(ddp_barrier(NULL));
	REFUSES(ddp_comm_split(NULL, 0, 0, &part));
	REFUSES(ddp_comm_split(comm, 0, 0, NULL));
	REFUSES(ddp_comm_group(NULL, &(int){ 0 }, 1, &part));
	REFUSES(ddp_comm_group(comm, NULL, 1, &part));
	REFUSES(ddp_comm_group(comm, &(int){ 0 }, 1, NULL));
	REFUSES(ddp_comm_create_group(NULL, &(int){ 0 }, 1, 0, &part));
	REFUSES(ddp_comm_create_group(comm, NULL, 1, 0, &part));
	REFUSES(ddp_comm_create_group(comm, &(int){ 0 }, 1, 0, NULL));
	REFUSES(ddp_comm_shrink(NULL, &part));
	REFUSES(ddp_comm_shrink(comm, NULL));
	REFUSES(ddp_comm_abort(NULL, "no"));
	GIVES(DDP_OK, ddp_comm_free(NULL));
	assert_int_equal(wrong, 0);
}

TEST(kernels)
{
	struct dk_queue *queue;

	wrong = 0;
	REFUSES(ddp_kernels_open(NULL, 0, 0, NULL, &queue));
	REFUSES(ddp_kernels_open(context, 0, 0, NULL, NULL));
	DOES_NOTHING(ddp_kernels_close(NULL));
	assert_int_equal(wrong, 0);
}

TEST(models)
{
	const int32_t index = 0;
	const float values[2] = { 0 };
	ddp_model *other;
	size_t bytes;

	wrong = 0;
	REFUSES(ddp_model_create(NULL, params, 1, NULL, &other));
	REFUSES(ddp_model_create(context, NULL, 1, NULL, &other));
	REFUSES(ddp_model_create(context, params, 1, NULL, NULL));
	DOES_NOTHING(ddp_model_free(NULL));
	REFUSES(ddp_model_bytes(NULL, 1, &bytes, &bytes));
	REFUSES(ddp_model_bytes(params, 1, NULL, &bytes));
	REFUSES(ddp_model_bytes(params, 1, &bytes, NULL));
	GIVES(NULL, ddp_model_param_data(NULL, 0));
	GIVES(NULL, ddp_model_param_grad(NULL, 0));
	GIVES(0, ddp_model_param_count(NULL, 0));
	REFUSES(ddp_model_param_wait(NULL, 0));
	IN_A_PROCESS("ddp_model_comm(NULL)", ddp_model_comm(NULL) == NULL);
	GIVES(NULL, ddp_model_device_loss(NULL));
	GIVES(NULL, ddp_model_param_bf16(NULL, 0));
	REFUSES(ddp_model_broadcast_params(NULL));
	REFUSES(ddp_model_average_params(NULL));
	DOES_NOTHING(ddp_model_set_phase(NULL, DDP_PHASE_IDLE));
	REFUSES(ddp_model_set_sync(NULL, true));
	REFUSES(ddp_model_grad_ready(NULL, 0));
	REFUSES(ddp_model_grad_unused(NULL, 0));
	REFUSES(ddp_model_set_grad_hook(NULL, 0, NULL, NULL));
	REFUSES(ddp_model_grad_rows(NULL, 0, &index, values, 1));
	REFUSES(ddp_model_grad_rows(model, 0, NULL, values, 1));
	REFUSES(ddp_model_grad_rows(model, 0, &index, NULL, 1));
	REFUSES(ddp_model_step(NULL, 1, 0, NULL));
	GIVES(1, ddp_model_loss_scale(NULL));
	REFUSES(ddp_model_join(NULL, NULL));
	REFUSES(ddp_model_reduce_grads(NULL, 1, 0, NULL));
	REFUSES(ddp_model_update_params(NULL, NULL));
	REFUSES(ddp_model_zero_grads(NULL));
	DOES_NOTHING(ddp_model_request_stop(NULL));
	DOES_NOTHING(ddp_model_set_learning_rate(NULL, 1));
	assert_int_equal(wrong, 0);
}

TEST(schedules)
{
	int accumulate = 0;

	assert_null(ddp_optimizer_name((ddp_optimizer)-1));
	assert_null(ddp_schedule_kind_name((ddp_schedule_kind)-1));

	wrong = 0;
	REFUSES(ddp_schedule_check(NULL));
	IN_A_PROCESS("ddp_schedule_rate(NULL, 1)", ddp_schedule_rate(NULL, 1) != ddp_schedule_rate(NULL, 1));
	DOES_NOTHING(ddp_linear_scaling(1, 2, 3));
	REFUSES(ddp_accumulation(4, 2, 2, NULL));
	GIVES(DDP_OK, ddp_accumulation(4, 2, 2, &accumulate));
	assert_int_equal(wrong, 0);
}

TEST(data)
{
	static const ddp_image_transform plain = { DDP_IMAGE_TRANSFORM_FIELDS };
	const ddp_image_shape shape = { 1, 1, 1 };
	const char *const paths[] = { "/dev/null", NULL };
	const unsigned char sample[2] = { 0 };
	ddp_image_shape found;
	ddp_dataset opened;
	ddp_sampler *sampler;
	ddp_loader *other;
	ddp_batch batch;
	float image;
	int32_t label;

	wrong = 0;
	REFUSES(ddp_tokens_open(NULL, DDP_TOKENS_BYTES, 1, 0, 1, &opened));
	REFUSES(ddp_tokens_open("/dev/null", DDP_TOKENS_BYTES, 1, 0, 1, NULL));
	DOES_NOTHING(ddp_dataset_close(NULL));
	REFUSES(ddp_idx_open(NULL, "/dev/null", &found, &opened));
	REFUSES(ddp_idx_open("/dev/null", NULL, &found, &opened));
	REFUSES(ddp_idx_open("/dev/null", "/dev/null", NULL, &opened));
	REFUSES(ddp_idx_open("/dev/null", "/dev/null", &found, NULL));
	REFUSES(ddp_cifar10_open(NULL, 1, &found, &opened));
	REFUSES(ddp_cifar10_open(paths, 2, &found, &opened));
	REFUSES(ddp_cifar10_open(paths, 1, NULL, &opened));
	REFUSES(ddp_cifar10_open(paths, 1, &found, NULL));
	REFUSES(ddp_transform_images(NULL, &plain, sample, 1, 0, &image, &label));
	GIVES(DDP_OK, ddp_transform_images(&shape, NULL, sample, 1, 0, &image, &label));
	REFUSES(ddp_transform_images(&shape, &plain, NULL, 1, 0, &image, &label));
	REFUSES(ddp_transform_images(&shape, &plain, sample, 1, 0, NULL, &label));
	REFUSES(ddp_transform_images(&shape, &plain, sample, 1, 0, &image, NULL));
	REFUSES(ddp_sampler_create(4, 1, 0, 0, false, DDP_TAIL_PAD, NULL));
	REFUSES(ddp_sampler_set_epoch(NULL, 0));
	REFUSES(ddp_sampler_set_place(NULL, 0, 0));
	GIVES(NULL, ddp_sampler_indices(NULL, &(int64_t){ 0 }));
	assert_int_equal(ddp_sampler_create(4, 1, 0, 0, false, DDP_TAIL_PAD, &sampler), DDP_OK);
	DOES_NOTHING(ddp_sampler_indices(sampler, NULL));
	ddp_sampler_free(sampler);
	DOES_NOTHING(ddp_sampler_free(NULL));
	REFUSES(ddp_loader_create(NULL, &dataset, &batches, &other));
	REFUSES(ddp_loader_create(context, NULL, &batches, &other));
	GIVES(DDP_ERR_INVALID, ddp_loader_create(context, &dataset, NULL, &other)); /* it has no batch_size */
	REFUSES(ddp_loader_create(context, &dataset, &batches, NULL));
	REFUSES(ddp_loader_next(NULL, &batch));
	REFUSES(ddp_loader_next(loader, NULL));
	GIVES(0, ddp_loader_batches_per_epoch(NULL));
	GIVES(0, ddp_loader_accumulation(NULL));
	DOES_NOTHING(ddp_loader_free(NULL));
	assert_int_equal(wrong, 0);
}

static ddp_status compute(void *user, ddp_model *of, const ddp_batch *batch, double *weight, double *loss_sum)
{
	*weight = *loss_sum = 1;
	return DDP_OK;
}

TEST(state_and_loop)
{
	static const ddp_train_options steps = { DDP_TRAIN_OPTIONS_FIELDS, .steps = 1 };
	ddp_summary summary;
	size_t bytes = 1;
	int64_t step;

	wrong = 0;
	REFUSES(ddp_checkpoint_save(NULL, NULL, "/tmp", 0));
	REFUSES(ddp_checkpoint_save(model, NULL, NULL, 0));
	REFUSES(ddp_checkpoint_save_async(NULL, NULL, "/tmp", 0));
	REFUSES(ddp_checkpoint_save_async(model, NULL, NULL, 0));
	REFUSES(ddp_checkpoint_wait(NULL));
	REFUSES(ddp_checkpoint_load(NULL, NULL, "/tmp", &step));
	REFUSES(ddp_checkpoint_load(model, NULL, NULL, &step));
	REFUSES(ddp_checkpoint_load(model, NULL, "/tmp", NULL));
	REFUSES(ddp_model_load_params(NULL, "/tmp", NULL, NULL));
	REFUSES(ddp_model_load_params(model, NULL, NULL, NULL));
	REFUSES(ddp_model_set_user_state(NULL, "x", 1));
	REFUSES(ddp_model_set_user_state(model, NULL, 1));
	IN_A_PROCESS("ddp_model_user_state(NULL, &bytes)", ddp_model_user_state(NULL, &bytes) == NULL && bytes == 0);
	DOES_NOTHING(ddp_model_user_state(model, NULL));
	REFUSES(ddp_train(NULL, loader, compute, &steps, NULL));
	REFUSES(ddp_train(model, NULL, compute, &steps, NULL));
	REFUSES(ddp_train(model, loader, NULL, &steps, NULL));
	GIVES(DDP_ERR_INVALID, ddp_train(model, loader, compute, NULL, NULL)); /* no steps */
	REFUSES(ddp_survive(NULL, loader, DDP_OK, NULL));
	GIVES(DDP_OK, ddp_survive(model, NULL, DDP_OK, NULL));
	summary.steps = 7;
	IN_A_PROCESS("ddp_model_summary(NULL, &summary)", (ddp_model_summary(NULL, &summary), summary.steps == 0));
	DOES_NOTHING(ddp_model_summary(model, NULL));
	assert_int_equal(wrong, 0);
}

int main(void)
{
	return test_run(open_all, close_all);
}
