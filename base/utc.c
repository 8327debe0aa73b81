#include "base/utc.h"

#include <stddef.h>
#include <string.h>

/* `count` digits, or -1. */
static int digits(const char *text, int count)
{
    int value = 0;
    for (int i = 0; i < count; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        value = value * 10 + text[i] - '0';
    }
    return value;
}

/* Days from 1970-01-01 in the Gregorian calendar, or -1: there is no such day. */
static int64_t days_from(int year, int month, int day)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    if (year < 1970 || month < 1 || month > 12 || day < 1)
        return -1;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day > lengths[month - 1] + (month == 2 && leap))
        return -1;
    int past = year - 1; /* leap days until the end of the year before: 477 before 1970 */
    int leap_days = past / 4 - past / 100 + past / 400 - 477;
    return (int64_t)(year - 1970) * 365 + leap_days + before[month - 1] + (month > 2 && leap) + day - 1;
}

bool amp_utc_parse(const char *text, int64_t *us)
{
    size_t size = strlen(text);
    if ((size != 10 && size != 20) || text[4] != '-' || text[7] != '-')
        return false;
    int year = digits(text, 4), month = digits(text + 5, 2), day = digits(text + 8, 2);
    int64_t days = days_from(year, month, day);
    int64_t seconds = 0;
    if (size == 20) {
        int hour = digits(text + 11, 2), minute = digits(text + 14, 2), second = digits(text + 17, 2);
        if (text[10] != 'T' || text[13] != ':' || text[16] != ':' || text[19] != 'Z' || hour < 0 || hour > 23 ||
            minute < 0 || minute > 59 || second < 0 || second > 59)
            return false;
        seconds = hour * 3600 + minute * 60 + second;
    }
    if (days < 0)
        return false;
    *us = (days * 86400 + seconds) * 1000000;
    return true;
}
