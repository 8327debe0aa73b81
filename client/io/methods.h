/* Paths of the methods that the client calls. */
#ifndef AMPCLIENT_METHODS_H
#define AMPCLIENT_METHODS_H

#define AMPCLIENT_PARAMETER_SERVICE "/ampd.v1.ParameterService/"
#define AMPCLIENT_SCALE_SERVICE     "/ampd.v1.ScaleService/"
#define AMPCLIENT_ADMIN_SERVICE     "/ampd.v1.AdminService/"
#define AMPCLIENT_HEALTH_CHECK      "/grpc.health.v1.Health/Check"

/* Largest answer that is read: the server's limit of a message, and room for what is not known yet. */
#define AMPCLIENT_REPLY_MAX ((size_t)2 << 20)

#endif
