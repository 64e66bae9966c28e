/* comm/agree: do all ranks fare well, and which one does not have what the others have? */
#ifndef DDP_COMM_AGREE_H
#define DDP_COMM_AGREE_H

#include "base/outlier.h"
#include "ddp.h"

/* All ranks tell how they fared, with `mine`. If it is not DDP_OK on all, it is an
   error on all; on the others one that says which rank could not do `what`. */
ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what);

/*
 * Collective, for an error that all ranks give alike: who has not the number, `own` here, that most
 * have. *odd and *usual become the numbers of the two. Takes no memory, so that no rank drops out.
 */
ddp_status ddp_comm_outlier(ddp_comm *comm, double own, ddp_outlier *outlier, double *odd, double *usual);

/* ddp_outlier_names() by ranks of the world, which is how users and the plugin count. */
void ddp_comm_outlier_names(const ddp_comm *comm, const ddp_outlier *o, char odd[DDP_OUTLIER_TEXT],
                            char usual[DDP_OUTLIER_TEXT]);

#endif
