/* SPDX-License-Identifier: Apache-2.0 */
/* options: for tests that give options in one initialiser, { DDP_MODEL_OPTIONS_FIELDS, .shard = DDP_SHARD_NONE },
   of which compilers warn, since it gives fields twice. Include it behind other headers. */
#pragma once

#pragma GCC diagnostic ignored "-Woverride-init"
