/* SPDX-License-Identifier: Apache-2.0 */
/* agree: when a model is made, ranks check that the program gave all of them the same
   parameters and options. A rank whose own arguments are wrong also takes part, so the
   other ranks get an error and do not wait for it. */
#pragma once

#include "params/layout.h"
#include "reduce/options.h"

/* Collective. `mine` is what this rank's own preparation gave; if it is not
   DDP_OK, the layout and the settings are not looked at, and it is returned.
   DDP_ERR_MISMATCH names what differs, on all ranks. */
ddp_status ddp_model_agree(ddp_comm *comm, ddp_status mine, const ddp_layout *layout,
                           const ddp_model_settings *settings);

/* A whole number that is another where a parameter of the same name is of another kind or group,
   or decays or not where it did not or did; the order of parameters is no matter. */
double ddp_layout_treatment(const ddp_layout *layout);
