/*
 * An etcd of one member as a process, with a directory of its own below TMPDIR or /tmp, on a free port of loopback.
 * Test only.
 */
#ifndef TESTS_CONFORMANCE_ETCD_PROCESS_H
#define TESTS_CONFORMANCE_ETCD_PROCESS_H

#include "tests/temp_folder.h"

#include <stdbool.h>
#include <sys/types.h>

struct etcd_process {
    pid_t pid; /* 0: it does not run */
    int port;  /* 0: not chosen yet */
    bool stopped;
    char directory[TEMP_FOLDER_MAX];
};

/* Whether there is an etcd to start. */
bool etcd_available(void);

/* Starts it, on its port of before if there was one; returns when it serves. Aborts where it does not. */
void etcd_start(struct etcd_process *etcd);

/* kill -9; SIGSTOP and SIGCONT. */
void etcd_kill(struct etcd_process *etcd);
void etcd_pause(struct etcd_process *etcd);
void etcd_continue(struct etcd_process *etcd);

/* Takes away all that it holds; it must not run. */
void etcd_wipe(struct etcd_process *etcd);

/* Kills it and takes its directory away. */
void etcd_remove(struct etcd_process *etcd);

#endif
