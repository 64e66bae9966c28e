/* What the process was asked for, by the site's line and by --ddp. */
#ifndef SPANK_PLUGIN_H
#define SPANK_PLUGIN_H

#include <stdbool.h>

#include "spank/error.h"
#include "spank/options.h"
#include "spank/site.h"

struct plugin {
	struct site site;
	struct settings settings;
	bool requested;     /* --ddp was given, and not taken back by off */
	struct error error; /* what is wrong with the site's line or the option; "" */
};

/* Whether the site keeps the key for itself. */
bool plugin_locks(const struct plugin *plugin, const char *key);

#endif
