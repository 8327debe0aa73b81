/* The files of the page and of dygraphs, from which the build makes arrays (cmake/embed.cmake). */
#ifndef AMPD_IO_PAGE_ASSETS_H
#define AMPD_IO_PAGE_ASSETS_H

#include <stddef.h>
#include <stdint.h>

#define IO_PAGE_ASSET(name)                                                                                            \
    extern const uint8_t io_page_##name[];                                                                             \
    extern const size_t io_page_##name##_size;

IO_PAGE_ASSET(index)
IO_PAGE_ASSET(style)
IO_PAGE_ASSET(script)
IO_PAGE_ASSET(document)
IO_PAGE_ASSET(plots)
IO_PAGE_ASSET(icon)
IO_PAGE_ASSET(dygraph)
IO_PAGE_ASSET(dygraph_style)

#endif
