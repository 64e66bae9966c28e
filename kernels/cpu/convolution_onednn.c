/* SPDX-License-Identifier: Apache-2.0 */
/* Weights lie in oneDNN's own order while it works, and are reordered on the way: that is far
   less than what the convolution itself does. Images stay as they are. */
#include "cpu/convolution_onednn.h"

#ifdef HAVE_ONEDNN_CONVOLUTION
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/winograd.h"

/* oneDNN 3 makes descriptions of memory on the heap, and gives convolutions no description
   before the primitive's. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t memory_shape;
typedef const_dnnl_memory_desc_t memory_shape_ref;
#define REF(shape) (shape)
#else
typedef dnnl_memory_desc_t memory_shape;
typedef const dnnl_memory_desc_t *memory_shape_ref;
#define REF(shape) (&(shape))
#endif

/* With fewer places in a line the kernels of this folder compute, because they are mostly faster there. With 8
   they still are for the weight's gradient where the window moves by 2, which is not worth a rule. */
enum { LEAST_ACROSS = 8 };

struct plan {
	struct plan *next;
	enum dk_pass pass;
	dk_window w;
	int64_t outputs;
	bool bias;
	int asked, threads; /* what dk_threads() was, and how many really come */
	bool none;          /* oneDNN is not to do it, or cannot */
	/* `pack` brings weights into oneDNN's order; of a gradient it adds them from that order. */
	dnnl_primitive_t convolution, pack;
	dnnl_memory_t images, places, weight, packed, bias_memory, scratch;
	size_t packed_floats, bias_floats, scratch_floats; /* in `work`, in this order */
};

struct dk_onednn {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	struct plan *plans;
	float *work; /* of the convolution at hand */
	size_t work_floats;
};

struct dk_onednn *dk_onednn_create(void)
{
	struct dk_onednn *o = calloc(1, sizeof(*o));

	if (o == NULL)
		return NULL;
	if (dnnl_engine_create(&o->engine, dnnl_cpu, 0) == dnnl_success &&
	    dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags) == dnnl_success)
		return o;
	dk_onednn_free(o);
	return NULL;
}

/* Leaves what it is a plan for. */
static void clear(struct plan *p)
{
	dnnl_memory_t *const memories[] = {&p->images, &p->places, &p->weight, &p->packed, &p->bias_memory, &p->scratch};

	for (size_t i = 0; i < sizeof(memories) / sizeof(memories[0]); i++) {
		if (*memories[i] != NULL)
			dnnl_memory_destroy(*memories[i]);
		*memories[i] = NULL;
	}
	if (p->convolution != NULL)
		dnnl_primitive_destroy(p->convolution);
	if (p->pack != NULL)
		dnnl_primitive_destroy(p->pack);
	p->convolution = p->pack = NULL;
}

void dk_onednn_free(struct dk_onednn *o)
{
	struct plan *p;

	if (o == NULL)
		return;
	while ((p = o->plans) != NULL) {
		o->plans = p->next;
		clear(p);
		free(p);
	}
	free(o->work);
	if (o->stream != NULL)
		dnnl_stream_destroy(o->stream);
	if (o->engine != NULL)
		dnnl_engine_destroy(o->engine);
	free(o);
}

/* ---- making a plan ---------------------------------------------------------------- */

struct shapes {
	memory_shape images, places, weight, packed, bias;
};

static dnnl_status_t make_shape(memory_shape *shape, int count, const dnnl_dim_t *sides, dnnl_format_tag_t order)
{
#if DNNL_VERSION_MAJOR >= 3
	return dnnl_memory_desc_create_with_tag(shape, count, sides, dnnl_f32, order);
#else
	return dnnl_memory_desc_init_by_tag(shape, count, sides, dnnl_f32, order);
#endif
}

static void free_shapes(struct shapes *s)
{
#if DNNL_VERSION_MAJOR >= 3
	memory_shape all[] = {s->images, s->places, s->weight, s->packed, s->bias};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i] != NULL)
			dnnl_memory_desc_destroy(all[i]);
#else
	(void)s;
#endif
}

static dnnl_status_t make_shapes(struct shapes *s, const struct plan *p)
{
	const dk_window *w = &p->w;
	const dnnl_dims_t images = {w->batch, w->channels, w->height, w->width},
		places = {w->batch, p->outputs, dk_window_places(w, w->height), dk_window_places(w, w->width)},
		weight = {p->outputs, w->channels, w->size, w->size}, bias = {p->outputs};
	dnnl_status_t status = make_shape(&s->images, 4, images, dnnl_nhwc);

	if (status == dnnl_success)
		status = make_shape(&s->places, 4, places, dnnl_nhwc);
	if (status == dnnl_success)
		status = make_shape(&s->weight, 4, weight, dnnl_ohwi);
	if (status == dnnl_success)
		status = make_shape(&s->packed, 4, weight, dnnl_format_tag_any);
	if (status == dnnl_success)
		status = make_shape(&s->bias, 1, bias, dnnl_a);
	return status;
}

/* `forward` is a hint to those backward. */
static dnnl_status_t describe(dnnl_primitive_desc_t *made, enum dk_pass pass, const struct plan *p,
                              const struct shapes *s, dnnl_engine_t engine, dnnl_primitive_attr_t attributes,
                              const_dnnl_primitive_desc_t forward)
{
	const dnnl_dims_t steps = {p->w.stride, p->w.stride}, padding = {p->w.padding, p->w.padding};
	const memory_shape_ref bias = p->bias ? REF(s->bias) : NULL;
#if DNNL_VERSION_MAJOR >= 3
	const dnnl_dims_t holes = {0, 0};

	switch (pass) {
	case DK_FORWARD:
		return dnnl_convolution_forward_primitive_desc_create(made, engine, dnnl_forward_training,
			dnnl_convolution_direct, s->images, s->packed, bias, s->places, steps, holes, padding, padding,
			attributes);
	case DK_BACKWARD_PARAMS:
		return dnnl_convolution_backward_weights_primitive_desc_create(made, engine, dnnl_convolution_direct,
			s->images, s->packed, bias, s->places, steps, holes, padding, padding, forward, attributes);
	default:
		return dnnl_convolution_backward_data_primitive_desc_create(made, engine, dnnl_convolution_direct,
			s->images, s->packed, s->places, steps, holes, padding, padding, forward, attributes);
	}
#else
	dnnl_convolution_desc_t d;
	dnnl_status_t status;

	switch (pass) {
	case DK_FORWARD:
		status = dnnl_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct,
			&s->images, &s->packed, bias, &s->places, steps, padding, padding);
		break;
	case DK_BACKWARD_PARAMS:
		status = dnnl_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct, &s->images,
			&s->packed, bias, &s->places, steps, padding, padding);
		break;
	default:
		status = dnnl_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, &s->images,
			&s->packed, &s->places, steps, padding, padding);
		break;
	}
	return status != dnnl_success ? status : dnnl_primitive_desc_create(made, &d, attributes, engine, forward);
#endif
}

/* Its general code, and matrix products over copied windows, are slower than ours. */
static bool is_compiled(const_dnnl_primitive_desc_t description)
{
	const char *name = NULL;

	return dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success &&
	       name != NULL && (strncmp(name, "jit", 3) == 0 || strncmp(name, "brg", 3) == 0);
}

static size_t floats_of(memory_shape_ref shape)
{
	return (dnnl_memory_desc_get_size(shape) + 63) / 64 * 16;
}

static dnnl_status_t make_memory(dnnl_memory_t *memory, memory_shape_ref shape, dnnl_engine_t engine)
{
	return dnnl_memory_create(memory, shape, engine, DNNL_MEMORY_NONE);
}

static dnnl_status_t append_sum(dnnl_post_ops_t operations)
{
#if DNNL_VERSION_MAJOR >= 3
	return dnnl_post_ops_append_sum(operations, 1, 0, dnnl_data_type_undef);
#else
	return dnnl_post_ops_append_sum(operations, 1);
#endif
}

static dnnl_status_t make_pack(struct plan *p, memory_shape_ref weight, memory_shape_ref packed,
                               dnnl_engine_t engine)
{
	const bool adds = p->pass == DK_BACKWARD_PARAMS;
	dnnl_primitive_attr_t attributes = NULL;
	dnnl_primitive_desc_t description = NULL;
	dnnl_post_ops_t operations = NULL;
	dnnl_status_t status = dnnl_primitive_attr_create(&attributes);

	if (status == dnnl_success && adds)
		status = dnnl_post_ops_create(&operations);
	if (status == dnnl_success && adds)
		status = append_sum(operations);
	if (status == dnnl_success && adds)
		status = dnnl_primitive_attr_set_post_ops(attributes, operations);
	if (status == dnnl_success)
		status = dnnl_reorder_primitive_desc_create(&description, adds ? packed : weight, engine,
		                                            adds ? weight : packed, engine, attributes);
	if (status == dnnl_success)
		status = dnnl_primitive_create(&p->pack, description);
	if (description != NULL)
		dnnl_primitive_desc_destroy(description);
	if (operations != NULL)
		dnnl_post_ops_destroy(operations);
	if (attributes != NULL)
		dnnl_primitive_attr_destroy(attributes);
	return status;
}

static dnnl_status_t make_primitives(struct plan *p, const struct shapes *s, dnnl_engine_t engine,
                                     const_dnnl_primitive_desc_t description)
{
	const dnnl_query_t what = p->pass == DK_BACKWARD_PARAMS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
	const memory_shape_ref packed = dnnl_primitive_desc_query_md(description, what, 0),
		scratch = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
	dnnl_status_t status = dnnl_primitive_create(&p->convolution, description);

	p->packed_floats = p->bias_floats = 0;
	p->scratch_floats = floats_of(scratch);
	if (status == dnnl_success)
		status = make_memory(&p->images, REF(s->images), engine);
	if (status == dnnl_success)
		status = make_memory(&p->places, REF(s->places), engine);
	if (status == dnnl_success)
		status = make_memory(&p->weight, REF(s->weight), engine);
	if (status == dnnl_success)
		status = make_memory(&p->packed, packed, engine);
	if (status == dnnl_success)
		status = make_memory(&p->bias_memory, REF(s->bias), engine);
	if (status == dnnl_success)
		status = make_memory(&p->scratch, scratch, engine);
	if (p->pass == DK_BACKWARD_PARAMS || !dnnl_memory_desc_equal(packed, REF(s->weight))) {
		p->packed_floats = floats_of(packed);
		if (status == dnnl_success)
			status = make_pack(p, REF(s->weight), packed, engine);
	}
	if (p->pass == DK_BACKWARD_PARAMS && p->bias)
		p->bias_floats = floats_of(REF(s->bias));
	return status;
}

static dnnl_status_t make(struct plan *p, dnnl_engine_t engine)
{
	struct shapes s = {0};
	dnnl_primitive_attr_t attributes = NULL;
	dnnl_primitive_desc_t forward = NULL, description = NULL;
	dnnl_status_t status = make_shapes(&s, p);

	if (status == dnnl_success)
		status = dnnl_primitive_attr_create(&attributes);
	if (status == dnnl_success)
		status = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
	if (status == dnnl_success)
		status = describe(&forward, DK_FORWARD, p, &s, engine, attributes, NULL);
	if (status == dnnl_success && p->pass != DK_FORWARD)
		status = describe(&description, p->pass, p, &s, engine, attributes, forward);
	if (status == dnnl_success) {
		const const_dnnl_primitive_desc_t chosen = p->pass == DK_FORWARD ? forward : description;
		status = is_compiled(chosen) ? make_primitives(p, &s, engine, chosen) : dnnl_unimplemented;
	}
	if (description != NULL)
		dnnl_primitive_desc_destroy(description);
	if (forward != NULL)
		dnnl_primitive_desc_destroy(forward);
	if (attributes != NULL)
		dnnl_primitive_attr_destroy(attributes);
	free_shapes(&s);
	return status;
}

static void fail(dnnl_status_t status)
{
	dk_cpu_fail(status == dnnl_out_of_memory ? "oneDNN's convolution ran out of memory"
	                                         : "oneDNN's convolution refused its arguments");
}

/* oneDNN counts on as many threads as it planned for: those that come, of those asked for. */
static int team(void)
{
	int threads = 1;

	if (omp_get_dynamic())
		return 1;
	#pragma omp parallel num_threads(dk_threads())
	{
		#pragma omp single
		threads = omp_get_num_threads();
	}
	return threads;
}

/* ---- use ---------------------------------------------------------------------------- */

static bool same_layer(const struct plan *p, enum dk_pass pass, const dk_window *w, int64_t outputs,
                       bool bias)
{
	return p->pass == pass && p->outputs == outputs && p->bias == bias && p->w.height == w->height &&
	       p->w.width == w->width && p->w.channels == w->channels && p->w.size == w->size &&
	       p->w.stride == w->stride && p->w.padding == w->padding;
}

/* A layer has one plan, which is made anew for another number of images or threads. NULL:
   oneDNN is not to do it. */
static struct plan *find(struct dk_onednn *o, enum dk_pass pass, const dk_window *w, int64_t outputs, bool bias)
{
	struct plan *p;

	if (o == NULL || dk_in_use() != NULL || dk_window_places(w, w->width) < LEAST_ACROSS || dk_winograd(w, outputs) != NULL)
		return NULL;
	p = o->plans;
	while (p != NULL && !same_layer(p, pass, w, outputs, bias))
		p = p->next;
	if (p == NULL) {
		p = calloc(1, sizeof(*p));
		if (p == NULL)
			return NULL;
		p->next = o->plans;
		o->plans = p;
	}
	if (p->w.batch != w->batch || p->asked != dk_threads()) {
		const int allowed = omp_get_max_threads();
		clear(p);
		*p = (struct plan){.next = p->next, .pass = pass, .w = *w, .outputs = outputs, .bias = bias,
			.asked = dk_threads(), .threads = team()};
		omp_set_num_threads(p->threads);
		/* Whatever it lacks, memory for its code, say, the kernels here do without. */
		p->none = make(p, o->engine) != dnnl_success;
		omp_set_num_threads(allowed);
	}
	return p->none ? NULL : p;
}

/* Reserves at least so many numbers. False: there is no memory, and the failure is kept. */
static bool reserve(struct dk_onednn *o, size_t floats)
{
	enum { PAGE_FLOATS = 1024 };

	if (floats < o->work_floats)
		return true;
	free(o->work);
	o->work_floats = (floats / PAGE_FLOATS + 1) * PAGE_FLOATS;
	o->work = aligned_alloc(PAGE_FLOATS * sizeof(float), o->work_floats * sizeof(float));
	if (o->work == NULL) {
		o->work_floats = 0;
		fail(dnnl_out_of_memory);
	}
	return o->work != NULL;
}

/* in or din, out or dout, and the parameters or, of DK_BACKWARD_PARAMS, their gradients. */
struct operands {
	float *images, *places, *weight, *bias;
};

/* oneDNN takes an address without const of an array that a pass only reads. */
static float *only_read(const float *x)
{
	return (float *)(uintptr_t)x;
}

static dnnl_status_t pack(const struct dk_onednn *o, const struct plan *p)
{
	const bool adds = p->pass == DK_BACKWARD_PARAMS;
	const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, adds ? p->packed : p->weight},
		{DNNL_ARG_TO, adds ? p->weight : p->packed}};

	return dnnl_primitive_execute(p->pack, o->stream, 2, args);
}

static dnnl_status_t convolve(const struct dk_onednn *o, const struct plan *p)
{
	const bool forward = p->pass == DK_FORWARD, params = p->pass == DK_BACKWARD_PARAMS;
	const dnnl_exec_arg_t args[] = {
		{p->pass == DK_BACKWARD_INPUT ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, p->images},
		{forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, p->places},
		{params ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, p->packed},
		{DNNL_ARG_SCRATCHPAD, p->scratch},
		{params ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, p->bias_memory},
	};

	return dnnl_primitive_execute(p->convolution, o->stream, p->bias && p->pass != DK_BACKWARD_INPUT ? 5 : 4, args);
}

static dnnl_status_t point(const struct plan *p, const struct operands *a, float *work)
{
	float *const sums = work + p->packed_floats, *const scratch = sums + p->bias_floats;
	dnnl_status_t status = dnnl_memory_set_data_handle(p->images, a->images);

	if (status == dnnl_success)
		status = dnnl_memory_set_data_handle(p->places, a->places);
	if (status == dnnl_success)
		status = dnnl_memory_set_data_handle(p->weight, a->weight);
	if (status == dnnl_success)
		status = dnnl_memory_set_data_handle(p->packed, p->packed_floats > 0 ? work : a->weight);
	if (status == dnnl_success && p->bias)
		status = dnnl_memory_set_data_handle(p->bias_memory, p->bias_floats > 0 ? sums : a->bias);
	if (status == dnnl_success)
		status = dnnl_memory_set_data_handle(p->scratch, scratch);
	return status;
}

static void run(struct dk_onednn *o, const struct plan *p, const struct operands *a)
{
	const int allowed = omp_get_max_threads();

	if (!reserve(o, p->packed_floats + p->bias_floats + p->scratch_floats))
		return;
	omp_set_num_threads(p->threads);
	dnnl_status_t status = point(p, a, o->work);
	if (status == dnnl_success && p->pack != NULL && p->pass != DK_BACKWARD_PARAMS)
		status = pack(o, p);
	if (status == dnnl_success)
		status = convolve(o, p);
	if (status == dnnl_success && p->pass == DK_BACKWARD_PARAMS)
		status = pack(o, p);
	if (status == dnnl_success)
		status = dnnl_stream_wait(o->stream);
	omp_set_num_threads(allowed);
	if (status != dnnl_success)
		fail(status);
	else if (p->bias_floats > 0)
		dk_inner()->add(a->bias, a->bias, o->work + p->packed_floats, p->outputs);
}

bool dk_onednn_takes(struct dk_onednn *o, enum dk_pass pass, const dk_window *w, int64_t outputs, bool bias)
{
	return find(o, pass, w, outputs, bias) != NULL;
}

void dk_onednn_forward(struct dk_onednn *o, float *out, float *work, const float *in,
                       const float *weight, const float *bias, const dk_window *w, int64_t outputs)
{
	const struct plan *p = find(o, DK_FORWARD, w, outputs, bias != NULL);

	if (p == NULL)
		dk_convolution_forward(out, work, in, weight, bias, w, outputs);
	else
		run(o, p, &(struct operands){only_read(in), out, only_read(weight), only_read(bias)});
}

void dk_onednn_backward_params(struct dk_onednn *o, float *dweight, float *dbias, float *work,
                               const float *dout, const float *in, const dk_window *w, int64_t outputs)
{
	const struct plan *p = find(o, DK_BACKWARD_PARAMS, w, outputs, dbias != NULL);

	if (p == NULL)
		dk_convolution_backward_params(dweight, dbias, work, dout, in, w, outputs);
	else
		run(o, p, &(struct operands){only_read(in), only_read(dout), dweight, dbias});
}

void dk_onednn_backward_input(struct dk_onednn *o, float *din, float *work, const float *dout,
                              const float *weight, const dk_window *w, int64_t outputs)
{
	const struct plan *p = find(o, DK_BACKWARD_INPUT, w, outputs, false);

	if (p == NULL)
		dk_convolution_backward_input(din, work, dout, weight, w, outputs);
	else
		run(o, p, &(struct operands){din, only_read(dout), only_read(weight), NULL});
}

#else

struct dk_onednn *dk_onednn_create(void)
{
	return NULL;
}

void dk_onednn_free(struct dk_onednn *o)
{
	(void)o;
}

bool dk_onednn_takes(struct dk_onednn *o, enum dk_pass pass, const dk_window *w, int64_t outputs, bool bias)
{
	(void)o, (void)pass, (void)w, (void)outputs, (void)bias;
	return false;
}

void dk_onednn_forward(struct dk_onednn *o, float *out, float *work, const float *in,
                       const float *weight, const float *bias, const dk_window *w, int64_t outputs)
{
	(void)o;
	dk_convolution_forward(out, work, in, weight, bias, w, outputs);
}

void dk_onednn_backward_params(struct dk_onednn *o, float *dweight, float *dbias, float *work,
                               const float *dout, const float *in, const dk_window *w, int64_t outputs)
{
	(void)o;
	dk_convolution_backward_params(dweight, dbias, work, dout, in, w, outputs);
}

void dk_onednn_backward_input(struct dk_onednn *o, float *din, float *work, const float *dout,
                              const float *weight, const dk_window *w, int64_t outputs)
{
	(void)o;
	dk_convolution_backward_input(din, work, dout, weight, w, outputs);
}

#endif
