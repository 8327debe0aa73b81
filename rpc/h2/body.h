/* What the files of rpc/h2 that speak with nghttp2 share. */
#ifndef ARPC_H2_BODY_H
#define ARPC_H2_BODY_H

#include <nghttp2/nghttp2.h>

/* nghttp2's read callback for the body of the call that source->ptr is. */
ssize_t arpc_link_read_body(nghttp2_session *session, int32_t stream_id, uint8_t *buf, size_t length, uint32_t *flags,
                            nghttp2_data_source *source, void *arg);

#endif
