/* A server of another implementation as a process of its own. Test only. */
#ifndef TESTS_CONFORMANCE_PEERS_PROCESS_H
#define TESTS_CONFORMANCE_PEERS_PROCESS_H

#include <sys/types.h>

struct peer_process {
    pid_t pid;
    int port;
};

/*
 * Starts argv and waits for its line "port N". Where it says "SKIPPED: ..." instead, that is printed and this program
 * ends with 77; where it says nothing, with 1.
 */
void peer_start(struct peer_process *peer, char *const *argv);

/* Ends it by SIGTERM and returns its exit code, or -1. No effect if it was ended before. */
int peer_stop(struct peer_process *peer);

#endif
