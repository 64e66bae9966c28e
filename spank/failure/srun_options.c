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

/* The same of an option of one letter, which may stand behind others in the word. */
static const char *value_of_letter(const char *word, char option)
{
	/* Of srun's options of one letter those without a value: behind them, in the same
	   word, others may follow. */
	static const char flags[] = "EHOQVXZhlsuv";
	size_t letter = 1 + strspn(word + (word[0] != '\0'), flags);

	return word[0] == '-' && word[letter] == option ? word + letter + 1 : NULL;
}

/* "0" of -K0 and --kill-on-bad-exit=0, "" of -K. */
static const char *value_of_kill(const char *word)
{
	const char *value = value_of_letter(word, 'K');

	return value != NULL ? value : value_of(word, "--kill-on-bad-exit", sizeof("--k") - 1);
}

/* "" where the value is the next word. */
static const char *value_of_nodes(const char *word)
{
	const char *value = value_of_letter(word, 'w');

	if (value == NULL)
		value = value_of_letter(word, 'F');
	if (value == NULL)
		value = value_of(word, "--nodelist", sizeof("--nodel") - 1);
	return value != NULL ? value : value_of(word, "--nodefile", sizeof("--nodef") - 1);
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

const char *srun_nodes(const char *words, size_t bytes, int own_words)
{
	const char *word, *end = words + bytes, *last = NULL;

	while ((word = take_word(&words, end, &own_words)) != NULL) {
		const char *value = value_of_nodes(word);
		if (value != NULL && value[0] == '\0')
			value = take_word(&words, end, &own_words);
		if (value != NULL)
			last = value;
	}
	return last;
}

bool srun_starts_a_shell(const char *words, size_t bytes, int own_words)
{
	const char *word, *end = words + bytes;

	while ((word = take_word(&words, end, &own_words)) != NULL)
		if (value_of(word, "--interactive", sizeof("--int") - 1) != NULL)
			return true;
	return false;
}
