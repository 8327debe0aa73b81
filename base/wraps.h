/*
 * AMP_WRAPS marks a function whose unsigned arithmetic wraps around on purpose, so that clang's -fsanitize=integer does
 * not report it; a comment at the function says why. Anywhere else in amp and base a wrap-around is a fault, which the
 * build option AMPD_INTEGER finds.
 */
#ifndef AMP_BASE_WRAPS_H
#define AMP_BASE_WRAPS_H

#if defined(__clang__)
#define AMP_WRAPS __attribute__((no_sanitize("unsigned-integer-overflow", "unsigned-shift-base")))
#else
#define AMP_WRAPS
#endif

#endif
