/*
 * A program that unloads libampclient while the system's resolver has not answered yet: a lookup is left to a thread of
 * its own (rpc/io/resolve.h), which must find its code when it goes on.
 *
 *     unload_client LIBRARY
 */
#include "client/ampclient.h"

#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define THREAD_ENDS_S 20

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool answers;

/* In front of the C library's: a resolver that answers when it is told to. */
__attribute__((visibility("default"))) int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                                                       struct addrinfo **found)
{
    (void)host;
    (void)port;
    (void)found;
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return EAI_NONAME;
    (void)pthread_mutex_lock(&mutex);
    while (!answers)
        (void)pthread_cond_wait(&changed, &mutex);
    (void)pthread_mutex_unlock(&mutex);
    return EAI_AGAIN;
}

static unsigned threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    unsigned count = 0;
    for (const struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    if (tasks != NULL)
        (void)closedir(tasks);
    return count;
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        (void)fprintf(stderr, "%s\n", dlerror());
    return found;
}

int main(int argc, char **argv)
{
    void *library = dlopen(argc == 2 ? argv[1] : "", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)fprintf(stderr, "usage: unload_client LIBRARY: %s\n", dlerror());
        return 2;
    }
    int (*connect)(const char *, const struct ampclient_options *, struct ampclient **, struct amp_error *);
    void *found = symbol(library, "ampclient_connect");
    if (found == NULL)
        return 1;
    memcpy(&connect, &found, sizeof connect);
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    struct ampclient *client;
    struct amp_error error = {0};
    options.connect_timeout_ms = 200;
    int rc = connect("a.name.that.nobody.answers:7420", &options, &client, &error);
    (void)printf("%d: %s\n", rc, error.text);
    unsigned left = threads();
    if (rc != AMP_EUNAVAILABLE || left < 2 || dlclose(library) != 0)
        return 1;
    (void)pthread_mutex_lock(&mutex);
    answers = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&mutex);
    for (unsigned i = 0; threads() >= left && i < THREAD_ENDS_S * 100; i++)
        (void)nanosleep(&(const struct timespec){.tv_nsec = 10000000}, NULL);
    return threads() < left ? 0 : 1;
}
