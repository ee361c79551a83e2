#include "proto/trace.h"

#include <stddef.h>
#include <string.h>

#include <strait/strait.h>

/* The value of a digit; -1: it is none. Capitals are none: the specification has small ones alone. */
static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* False: these are not 2 * size digits. Nothing behind a byte that is no digit is read, such as the text's end. */
static bool read_digits(const char *text, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const int high = digit_of(text[2 * i]), low = high >= 0 ? digit_of(text[2 * i + 1]) : -1;
        if (low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, size_t size)
{
    while (size > 0 && bytes[size - 1] == 0)
        size--;
    return size == 0;
}

bool trace_is_valid(const uint8_t context[TRACE_BYTES])
{
    return !is_zero(context, TRACE_ID_BYTES) && !is_zero(context + TRACE_ID_BYTES, TRACE_SPAN_BYTES);
}

const char *trace_parse(const char *traceparent, uint8_t context[TRACE_BYTES])
{
    static const struct {
        size_t at, size;
        const char *why;
    } parts[] = {
        {0, TRACE_ID_BYTES, "the trace id is not 32 small hexadecimal digits"},
        {TRACE_ID_BYTES, TRACE_SPAN_BYTES, "the parent id is not 16 small hexadecimal digits"},
        {TRACE_ID_BYTES + TRACE_SPAN_BYTES, 1, "the flags are not 2 small hexadecimal digits"},
    };
    const char *at = traceparent;
    uint8_t version;
    if (!read_digits(at, &version, 1))
        return "the version is not 2 small hexadecimal digits";
    if (version == 0xff)
        return "version ff is none";
    at += 2;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (*at != '-')
            return "a hyphen is missing between two parts";
        if (!read_digits(++at, context + parts[i].at, parts[i].size))
            return parts[i].why;
        at += 2 * parts[i].size;
    }
    /* What later versions add stands behind a hyphen. */
    if (*at != '\0' && (version == 0 || *at != '-'))
        return "something follows the flags";
    if (is_zero(context, TRACE_ID_BYTES))
        return "the trace id is zero";
    return trace_is_valid(context) ? NULL : "the parent id is zero";
}

const char *strait_trace_check(const char *traceparent)
{
    uint8_t context[TRACE_BYTES];
    return traceparent == NULL || traceparent[0] == '\0' ? NULL : trace_parse(traceparent, context);
}
