#include "spank/failure/srun_options.h"

#include <string.h>

/* The value that a word gives to a long option, "" without one; NULL if it is another
   word. The option may be cut short, but not so far that it could be another one. */
static const char *value_of(const char *word, const char *option, size_t shortest)
{
	size_t length = strcspn(word, "=");

	if (length < shortest || strncmp(word, option, length) != 0)
		return NULL;
	return word[length] == '=' ? word + length + 1 : "";
}

/* "0" of -K0 and --kill-on-bad-exit=0, "" of -K. */
static const char *value_of_kill(const char *word)
{
	/* Of srun's options of one letter those without a value: behind them, in the same
	   word, others may follow. */
	static const char flags[] = "EHOQVXZhlsuv";
	size_t letter = 1 + strspn(word + (word[0] != '\0'), flags);

	if (word[0] == '-' && word[letter] == 'K')
		return word + letter + 1;
	return value_of(word, "--kill-on-bad-exit", sizeof("--k") - 1);
}

/* The next of srun's own words, of which `*left` are left; NULL behind the last. */
static const char *take_word(const char **words, const char *end, int *left)
{
	const char *word = *words;

	if (*left <= 0 || word >= end || memchr(word, '\0', (size_t)(end - word)) == NULL)
		return NULL;
	--*left;
	*words += strlen(word) + 1;
	return word;
}

bool srun_goes_on_after_failure(const char *words, size_t bytes, int own_words, const char *variable)
{
	const char *last = variable, *word, *end = words + bytes;

	while ((word = take_word(&words, end, &own_words)) != NULL) {
		const char *value = value_of_kill(word);
		if (value != NULL)
			last = value;
	}
	return last != NULL && strcmp(last, "0") == 0;
}

bool srun_waits_for_children(const char *words, size_t bytes, int own_words)
{
	const char *word, *end = words + bytes;

	while ((word = take_word(&words, end, &own_words)) != NULL)
		if (value_of(word, "--wait-for-children", sizeof("--wait-f") - 1) != NULL)
			return true;
	return false;
}
