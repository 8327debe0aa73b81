/* The files of the page that are compiled into ampd: those of server/page/, and dygraphs (from libjs-dygraphs). */
#include "server/io/page/page_assets.h"

#include "server/io/page/page_impl.h"

#include <string.h>

#define NO_CACHE "no-cache" /* after an upgrade the ampd at this port has other files */

static const struct {
    const char *path, *type;
    const uint8_t *data;
    const size_t *size;
} assets[] = {
    {"/", "text/html; charset=utf-8", io_page_index, &io_page_index_size},
    {"/page.css", "text/css; charset=utf-8", io_page_style, &io_page_style_size},
    {"/page.js", "text/javascript; charset=utf-8", io_page_script, &io_page_script_size},
    {"/document.js", "text/javascript; charset=utf-8", io_page_document, &io_page_document_size},
    {"/plots.js", "text/javascript; charset=utf-8", io_page_plots, &io_page_plots_size},
    {"/icon.svg", "image/svg+xml", io_page_icon, &io_page_icon_size},
    {"/dygraph.js", "text/javascript; charset=utf-8", io_page_dygraph, &io_page_dygraph_size},
    {"/dygraph.css", "text/css; charset=utf-8", io_page_dygraph_style, &io_page_dygraph_style_size},
};

bool io_page_asset(struct io_page_ask *ask, const char *path)
{
    size_t i = 0;
    while (i < sizeof assets / sizeof *assets && strcmp(assets[i].path, path) != 0)
        i++;
    if (i == sizeof assets / sizeof *assets)
        return false;
    if (ask == NULL)
        return true;
    ask->state = IO_PAGE_READY;
    ask->status = IO_PAGE_OK;
    ask->type = assets[i].type;
    ask->cache = NO_CACHE;
    ask->data = assets[i].data;
    ask->size = *assets[i].size;
    return true;
}
