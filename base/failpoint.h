/*
 * Named places at which the crash suite ends or delays the process. They are compiled into the suite's own server alone
 * (tests/crash, AMPD_FAILPOINTS); everywhere else they are nothing.
 *
 * A name is PHASE.PLACE. A thread is in the phase from the first of its places until the one that is called `done`.
 */
#ifndef AMP_FAILPOINT_H
#define AMP_FAILPOINT_H

#ifdef AMPD_FAILPOINTS
/* Any thread. Does what the file named by AMPD_FAILPOINTS_FILE says (tests/crash/failpoint.c); may not return. */
void amp_failpoint(const char *name);
#define AMP_FAILPOINT(name) amp_failpoint(name)
#else
#define AMP_FAILPOINT(name) ((void)(name))
#endif

#endif
