/* The standard streams of a program. */
#ifndef AMP_BASE_STREAMS_H
#define AMP_BASE_STREAMS_H

/*
 * Opens /dev/null in place of each standard stream that was closed: another file would get its number, and what is
 * written to the stream. Before a program opens anything else.
 */
void amp_streams_hold(void);

#endif
