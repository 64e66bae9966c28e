/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_cases: tries kernels in each place and type that a program is linked with. Memory that
   a case has from here, the host's or the place's, is freed behind it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "tests/support/kernel_place.h"

/* Plain versions take most of the time; under a sanitizer it would be minutes. */
#define SLOW __attribute__((no_sanitize("address", "thread", "undefined")))

/* Where the case at hand is tried. */
extern kernel_place place;

/* Runs the test for each type, or for those only whose memory is of f32, or for each with its
   queue in use; or skips it where there is no place at all. */
void in_each_place(void (*test)(void));
void in_each_place_of_f32(void (*test)(void));
void on_each_queue(void (*test)(void));

/* Computes a whole GPT forward and backward in a place whose memory is the host's, and compares it with the host
   (model_case.c). */
void try_model_case(void);

/* Whether a case of so many numbers is not too large for the place. */
bool fits(int64_t n);

/* Memory of the host, zeroed. */
float *floats(int64_t n);
double *doubles(int64_t n);
/* Memory of the place, with whatever is in there. */
void *bytes_there(size_t bytes);

/* The type of parameters' gradients in the place. */
dk_type gradient_type(void);

/* A copy there of the host's numbers, in this type or in the place's; and back. */
void *give_as(dk_type type, const void *from, int64_t n);
void take_as(dk_type type, void *to, const void *there, int64_t n);
void *give(const void *from, int64_t n);
void take(void *to, const void *there, int64_t n);
