#include "tests/conformance/peers/process.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void peer_start(struct peer_process *peer, char *const *argv)
{
    int pipes[2];
    char line[256] = "";
    if (pipe(pipes) != 0)
        abort();
    peer->pid = fork();
    if (peer->pid == 0) {
        (void)dup2(pipes[1], STDOUT_FILENO);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(pipes[1]);
    FILE *said = fdopen(pipes[0], "r");
    if (said == NULL || peer->pid < 0)
        abort();
    bool told = fgets(line, sizeof line, said) != NULL;
    (void)fclose(said);
    if (told && sscanf(line, "port %d", &peer->port) == 1)
        return;
    int code = peer_stop(peer);
    (void)printf("%s", told ? line : "the peer said nothing\n");
    exit(told && code == 77 ? 77 : 1);
}

int peer_stop(struct peer_process *peer)
{
    int status;
    if (peer->pid <= 0)
        return -1;
    (void)kill(peer->pid, SIGTERM);
    if (waitpid(peer->pid, &status, 0) != peer->pid)
        return -1;
    peer->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
