/*
 * Who may see the page. It is for this machine: to other machines it would be sent unencrypted, as gRPC without TLS, so
 * they are refused unless --insecure is given. Its data requires the same token and role as the RPC with the same data
 * (server/io/auth), on this machine, too.
 *
 * A connection both ends of which have the same address comes from this machine, too, where the port does not listen on
 * loopback: the answer to a packet that claims such an address does not leave the machine, as for 127.0.0.1.
 *
 * A request from this machine can still be that of somebody else's web page in a browser here, whose own name resolves
 * to an address of this machine (DNS rebinding). Then the header Host has that name, so Host must be an address or
 * localhost. Requests that another site's page makes are refused, too (Sec-Fetch-Site).
 */
#include "base/assert.h"
#include "rpc/arpc_peer.h"
#include "rpc/method.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/page/page_impl.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct arpc_method methods[] = {
#define AMPD_METHOD(service_, name_, c_name_, request_, response_, kind_, idempotent_, roles_, limit_)                 \
    {.service = "ampd.v1." #service_, .name = #name_, .roles = AMPD_ROLES_##roles_},
#include "proto/methods.def"
#undef AMPD_METHOD
};

static const struct arpc_method *method_of(const char *name)
{
    size_t i = 0;
    while (i < sizeof methods / sizeof *methods && strcmp(methods[i].name, name) != 0)
        i++;
    AMP_ASSERT(i < sizeof methods / sizeof *methods); /* page.c names them */
    return &methods[i];
}

/* As "127.0.0.1:7421", "[::1]:7421" or "localhost", which cannot be the name of another site. */
bool io_page_host_is_ours(const char *host)
{
    char text[INET6_ADDRSTRLEN + 2];
    struct in6_addr address;
    bool six = host[0] == '[';
    size_t size = strcspn(host + six, six ? "]" : ":");
    const char *port = host + six + size;
    if (size == 0 || size >= sizeof text || (six && *port++ != ']'))
        return false;
    if (port[0] != 0 && (port[0] != ':' || strspn(port + 1, "0123456789") != strlen(port + 1)))
        return false;
    memcpy(text, host + six, size);
    text[size] = 0;
    return inet_pton(six ? AF_INET6 : AF_INET, text, &address) == 1 || (!six && strcasecmp(text, "localhost") == 0);
}

/* Whether a connection from `peer` to `local`, addresses with ports, can only come from this machine. */
static bool is_from_here(const char *peer, const char *local)
{
    const char *port = strrchr(peer, ':');
    return arpc_is_loopback(peer) || (port != NULL && strncmp(peer, local, (size_t)(port - peer) + 1) == 0);
}

static void refuse_beyond(struct io_page_ask *ask, const char *local)
{
    char text[AMP_ERROR_TEXT_MAX];
    bool tls = ask->page->server->options->auth->cert_file != NULL; /* then ampd may refuse --insecure */
    (void)snprintf(text, sizeof text,
                   "this page is shown only to the machine of the server: connect through ssh -L %s:%s HOST, or "
                   "through a proxy with TLS on that machine%s",
                   strrchr(local, ':') + 1, local, tls ? "" : "; ampd --insecure shows it to everybody");
    io_page_answer_refusal(ask, IO_PAGE_DENIED, "NOT_LOCAL", text);
}

static bool ask_who(struct io_page_ask *ask, bool again, struct amp_error *error)
{
    const struct io_page_caller *asked_by = &ask->caller;
    const struct ampd_auth_caller caller = {.transport = asked_by->local ? AMPD_AUTH_LOOPBACK : AMPD_AUTH_PLAINTEXT,
                                            .authorization =
                                                asked_by->authorization[0] != 0 ? asked_by->authorization : NULL,
                                            .authorization_size = strlen(asked_by->authorization)};
    return ampd_auth_admit_http(ask->page->server->auth, &caller, method_of(ask->method), asked_by->peer, again,
                                error) == 0;
}

bool io_page_admit(struct io_page_ask *ask, const struct io_page_request *request, bool data)
{
    struct amp_error error = {0};
    bool insecure = ask->page->server->options->auth->insecure;
    bool named = request->host != NULL && io_page_host_is_ours(request->host);
    ask->caller.local = is_from_here(request->peer, request->local);
    if (!ask->caller.local && !insecure) {
        refuse_beyond(ask, request->local);
        return false;
    }
    /* With --insecure an address beyond loopback may be asked for by any name of the machine. */
    if (!named && (!insecure || arpc_is_loopback(request->peer))) {
        io_page_answer_refusal(
            ask, IO_PAGE_MISDIRECTED, "HOST",
            "the Host header does not name this machine: use its address or localhost; a proxy has to send one of "
            "these");
        return false;
    }
    if (data && request->site != NULL && strcmp(request->site, "same-origin") != 0 &&
        strcmp(request->site, "none") != 0) {
        io_page_answer_refusal(ask, IO_PAGE_DENIED, "OTHER_SITE",
                               "the request comes from a page of another site: open the page of this server");
        return false;
    }
    size_t size = request->authorization != NULL ? strlen(request->authorization) : 0;
    bool fits = size < sizeof ask->caller.authorization;
    (void)snprintf(ask->caller.authorization, sizeof ask->caller.authorization, "%s",
                   size > 0 && fits ? request->authorization
                   : size > 0       ? "?"
                                    : "");
    (void)snprintf(ask->caller.peer, sizeof ask->caller.peer, "%s", request->peer);
    if (!data || ask_who(ask, false, &error))
        return true;
    io_page_answer_error(ask, &error);
    return false;
}

bool io_page_admit_again(struct io_page_ask *ask)
{
    struct amp_error error = {0};
    return ask_who(ask, true, &error);
}
