/* When a process that has timers knows that it stood still. */
#ifndef AMP_STOOD_STILL_H
#define AMP_STOOD_STILL_H

/*
 * A timer that is late by more than this shows that the process stood still: it was stopped, or its machine was. What
 * is due is then looked at so much later, when what has come meanwhile has been read.
 */
#define AMP_STOOD_STILL_MS 1000

#endif
