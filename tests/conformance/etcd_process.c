#define _GNU_SOURCE /* nftw, mkdtemp */
#include "tests/conformance/etcd_process.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_MS 60000 /* on a busy machine */
#define LOOK_MS  20

#define PATH_SIZE (TEMP_FOLDER_MAX + 16)

#define SERVES "serving insecure client requests on 127.0.0.1:"

static void need(bool ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "etcd: %s\n", what);
    abort();
}

bool etcd_available(void)
{
    return access("/usr/bin/etcd", X_OK) == 0;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void path_of(const struct etcd_process *etcd, const char *name, char path[PATH_SIZE])
{
    (void)snprintf(path, PATH_SIZE, "%s/%s", etcd->directory, name);
}

static void exec_etcd(const struct etcd_process *etcd)
{
    char data[PATH_SIZE], log[PATH_SIZE], listen[64];
    path_of(etcd, "data", data);
    path_of(etcd, "log", log);
    (void)snprintf(listen, sizeof listen, "http://127.0.0.1:%d", etcd->port);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the test */
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0)
        _exit(126);
    /* The peers' address is never spoken to: there is one member. */
    (void)execl("/usr/bin/etcd", "etcd", "--data-dir", data, "--listen-client-urls", listen, "--advertise-client-urls",
                "http://127.0.0.1:1", "--listen-peer-urls", "http://127.0.0.1:0", "--initial-advertise-peer-urls",
                "http://127.0.0.1:1", "--initial-cluster", "default=http://127.0.0.1:1", "--unsafe-no-fsync",
                (char *)NULL);
    _exit(127);
}

/* The port that its log names; 0: none yet. */
static int served_port(const struct etcd_process *etcd)
{
    char log[PATH_SIZE], line[512];
    int port = 0;
    path_of(etcd, "log", log);
    FILE *file = fopen(log, "r");
    while (file != NULL && port == 0 && fgets(line, sizeof line, file) != NULL) {
        const char *at = strstr(line, SERVES);
        if (at != NULL)
            port = atoi(at + strlen(SERVES));
    }
    if (file != NULL)
        (void)fclose(file);
    return port;
}

void etcd_start(struct etcd_process *etcd)
{
    char log[PATH_SIZE];
    if (etcd->directory[0] == 0) {
        need(temp_folder(etcd->directory, "etcd"), "no directory");
    }
    path_of(etcd, "log", log);
    (void)unlink(log);
    etcd->pid = fork();
    need(etcd->pid >= 0, "cannot fork");
    if (etcd->pid == 0)
        exec_etcd(etcd);
    int port = 0;
    for (int ms = 0; port == 0 && ms < START_MS; ms += LOOK_MS) {
        struct timespec pause = {0, LOOK_MS * 1000000L};
        (void)nanosleep(&pause, NULL);
        need(waitpid(etcd->pid, NULL, WNOHANG) == 0, "it has ended at once");
        port = served_port(etcd);
    }
    need(port != 0, "it does not serve");
    etcd->port = port;
}

void etcd_kill(struct etcd_process *etcd)
{
    if (etcd->pid == 0)
        return;
    (void)kill(etcd->pid, SIGKILL);
    (void)waitpid(etcd->pid, NULL, 0);
    etcd->pid = 0;
    etcd->stopped = false;
}

void etcd_pause(struct etcd_process *etcd)
{
    need(kill(etcd->pid, SIGSTOP) == 0, "cannot be stopped");
    etcd->stopped = true;
}

void etcd_continue(struct etcd_process *etcd)
{
    need(kill(etcd->pid, SIGCONT) == 0, "cannot be continued");
    etcd->stopped = false;
}

void etcd_wipe(struct etcd_process *etcd)
{
    char data[PATH_SIZE];
    need(etcd->pid == 0, "it runs");
    path_of(etcd, "data", data);
    remove_tree(data);
}

void etcd_remove(struct etcd_process *etcd)
{
    etcd_kill(etcd);
    if (etcd->directory[0] != 0)
        remove_tree(etcd->directory);
    memset(etcd, 0, sizeof *etcd);
}
