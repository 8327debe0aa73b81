/*
 * Declares the handlers of all RPCs, one for each row of proto/methods.def: ampd_handle_<c_name>. Each is defined in
 * the file that answers the RPC.
 */
#ifndef AMPD_IO_HANDLERS_H
#define AMPD_IO_HANDLERS_H

#include "rpc/method.h"

#define AMPD_METHOD(service_, name_, c_name_, ...) extern const struct arpc_handler ampd_handle_##c_name_;
#include "proto/methods.def"
#undef AMPD_METHOD

#endif
