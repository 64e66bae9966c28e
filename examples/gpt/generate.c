/* SPDX-License-Identifier: Apache-2.0 */
#include "gpt/generate.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double temperature = 0.8;

static int draw(const float *logits, int count, unsigned short random[3])
{
	double top = logits[0], total = 0;

	for (int i = 1; i < count; i++)
		top = fmax(top, logits[i]);
	for (int i = 0; i < count; i++)
		total += exp((logits[i] - top) / temperature);
	double point = erand48(random) * total;
	for (int i = 0; i < count; i++) {
		point -= exp((logits[i] - top) / temperature);
		if (point < 0)
			return i;
	}
	return count - 1;
}

bool generate_text(gpt *model, const gpt_config *config, int bytes, uint64_t seed, FILE *out)
{
	unsigned short random[3] = {(unsigned short)seed, (unsigned short)(seed >> 16), 0x330e};
	int32_t *tokens = calloc((size_t)config->length, sizeof(*tokens));
	float *logits = calloc((size_t)config->vocab, sizeof(*logits));
	int used = 1;
	bool possible = tokens != NULL && logits != NULL;

	if (possible)
		tokens[0] = '\n' < config->vocab ? '\n' : 0;
	for (int i = 0; possible && i < bytes; i++) {
		gpt_next_logits(model, tokens, used, logits);
		int token = draw(logits, config->vocab, random);
		bool plain = token == '\n' || token == '\t' || (token < 128 ? isprint(token) : token < 256);
		putc(plain ? token : '.', out);
		/* A full window slides by half, so that most bytes see a long past. */
		if (used == config->length) {
			used = (config->length + 1) / 2;
			memmove(tokens, tokens + config->length - used, (size_t)used * sizeof(*tokens));
		}
		if (used < config->length)
			tokens[used++] = token;
		else
			tokens[used - 1] = token;
	}
	putc('\n', out);
	free(tokens);
	free(logits);
	return possible;
}
