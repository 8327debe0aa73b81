#include "server/io/base/fatal.h"

#include "server/io/base/options.h"

#include <stdlib.h>

_Noreturn void io_fatal(const struct amp_log *log, const char *what, const struct amp_error *error)
{
    amp_log(log, AMP_LOG_ERROR, "server", "msg=\"%s, ending\" err=\"%s\"", what, error->text);
    _Exit(error->code == AMP_EDATALOSS ? AMPD_EXIT_DATA_DIR : AMPD_EXIT_FAILED); /* a restart would find it again */
}
