#include "tests/soak/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define TOLD_MAX 20u

static uint32_t count;

double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint64_t now_ms(void)
{
    return (uint64_t)(now_seconds() * 1e3);
}

void complain(const char *format, ...)
{
    va_list arguments;
    if (count++ >= TOLD_MAX)
        return;
    fflush(stdout);
    fprintf(stderr, "soak: FAIL: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

uint32_t complaints(void)
{
    return count;
}

bool too_many_complaints(void)
{
    return count >= TOLD_MAX;
}
