/* SPDX-License-Identifier: Apache-2.0 */
/* generate: text from a byte model. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "models/gpt.h"

/* Writes `bytes` bytes to `out`, each drawn from what the model expects after
   those before it, a little sharpened. Control characters come as '.', so
   that no terminal is upset. False if memory ran out. */
bool generate_text(gpt *model, const gpt_config *config, int bytes, uint64_t seed, FILE *out);
