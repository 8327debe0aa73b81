/*
 * Declares store_sqlite_<name> for each row of storage/store_calls.def, whose contracts are those of the public
 * functions ampd_store_<name>. sqlite_store.c has the table of them.
 */
#ifndef AMPD_SQLITE_OPS_H
#define AMPD_SQLITE_OPS_H

#include "storage/store_impl.h"

#define AMPD_STORE_CALL(name, parameters, arguments) int store_sqlite_##name parameters;
#define AMPD_STORE_OP(name, parameters)              int store_sqlite_##name parameters;
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP

#endif
