/* SPDX-License-Identifier: Apache-2.0 */
/* convolution_onednn: convolutions by oneDNN, of the shapes for which it has code for this
   processor and for images that lie channels last. In a library of its own,
   libconvolution.la, so that libddp does not load oneDNN. */
#pragma once

#include "kernels.h"

enum dk_pass { DK_FORWARD, DK_BACKWARD_PARAMS, DK_BACKWARD_INPUT };

/* How convolutions are done, by layer, and the memory that one takes while it runs. One
   thread at a time uses it. */
struct dk_onednn;

/* NULL: it is not built in, or there is no memory. */
struct dk_onednn *dk_onednn_create(void);
/* NULL is allowed. */
void dk_onednn_free(struct dk_onednn *o);

/* Whether oneDNN is to do it, with as many threads as dk_threads(): not where `o` is NULL, or
   the calling thread uses a queue. */
bool dk_onednn_takes(struct dk_onednn *o, enum dk_pass pass, const dk_window *w, int64_t outputs, bool bias);

/* These do what dk_convolution_forward() and so on do, which do what is not left to oneDNN. Only they need
   `work`. */
void dk_onednn_forward(struct dk_onednn *o, float *out, float *work, const float *in,
                       const float *weight, const float *bias, const dk_window *w, int64_t outputs);
void dk_onednn_backward_params(struct dk_onednn *o, float *dweight, float *dbias, float *work,
                               const float *dout, const float *in, const dk_window *w, int64_t outputs);
void dk_onednn_backward_input(struct dk_onednn *o, float *din, float *work, const float *dout,
                              const float *weight, const dk_window *w, int64_t outputs);
