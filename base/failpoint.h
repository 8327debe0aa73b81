/*
 * Failpoints: named places in the code at which the crash tests (tests/crash) end or delay the process. They exist only
 * in the server that is built for these tests (AMPD_FAILPOINTS); in other builds AMP_FAILPOINT does nothing.
 *
 * A name is PHASE.PLACE. A thread is in a phase from the first place of that phase that it passes until the place named
 * PHASE.done.
 */
#ifndef AMP_FAILPOINT_H
#define AMP_FAILPOINT_H

#ifdef AMPD_FAILPOINTS
/*
 * Does what the file named by the environment variable AMPD_FAILPOINTS_FILE says for this place (tests/crash/
 * failpoint.c), which may be to end the process. Any thread.
 */
void amp_failpoint(const char *name);
#define AMP_FAILPOINT(name) amp_failpoint(name)
#else
#define AMP_FAILPOINT(name) ((void)(name))
#endif

#endif
