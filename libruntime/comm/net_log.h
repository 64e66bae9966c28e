/* comm/net_log: UCX prints to stdout unless told otherwise. */
#ifndef DDP_COMM_NET_LOG_H
#define DDP_COMM_NET_LOG_H

/* From now on UCX's messages go to the log, as details. */
void ddp_net_redirect_log(void);

#endif
