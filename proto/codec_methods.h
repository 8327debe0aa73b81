/*
 * Codecs of the requests and responses of a service, by the rows of proto/methods.def. A codec_*.c that has the
 * service's own parts defines AMPD_METHOD to be AMPD_CODEC_METHOD for the service, and nothing for the others.
 */
#ifndef AMPD_PROTO_CODEC_METHODS_H
#define AMPD_PROTO_CODEC_METHODS_H

#include "proto/codec_messages.h"

#define AMPD_CODEC_METHOD(name_, c_name_, request_, response_)                                                         \
    AMPD_CODEC_##request_(ampd_v1_##name_##Request, ampd_msg_##c_name_##_request)                                      \
        AMPD_CODEC_##response_(ampd_v1_##name_##Response, ampd_msg_##c_name_##_response)

#define AMPD_CODEC_NONE(T, S)
#define AMPD_CODEC_PLAIN(T, S)  AMPD_CODEC(T, S) AMPD_CODEC_PUBLIC(T, S)
#define AMPD_CODEC_OWNING(T, S) AMPD_CODEC_PLAIN(T, S) AMPD_CODEC_PUBLIC_FREE(T, S)

#endif
