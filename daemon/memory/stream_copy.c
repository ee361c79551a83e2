#include "daemon/memory/stream_copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__ /* every x86-64 processor; wider stores are no faster here */

#include <emmintrin.h>

#define LINE  64u
#define AHEAD 1024u /* bytes ahead: further than the hardware prefetches at the beginning of a page */

static void stream_line(uint8_t *dst, const uint8_t *src)
{
    __m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(src + 32)), d = _mm_loadu_si128((const __m128i *)(src + 48));
    _mm_stream_si128((__m128i *)dst, a);
    _mm_stream_si128((__m128i *)(dst + 16), b);
    _mm_stream_si128((__m128i *)(dst + 32), c);
    _mm_stream_si128((__m128i *)(dst + 48), d);
}

void stream_copy(void *dst, const void *src, size_t size)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t head = -(uintptr_t)to % LINE; /* only whole lines are worth it */
    if (size < head + LINE) {
        memcpy(to, from, size);
        return;
    }
    memcpy(to, from, head);
    to += head, from += head, size -= head;
    for (; size >= LINE; to += LINE, from += LINE, size -= LINE) {
        _mm_prefetch((const char *)((uintptr_t)from + AHEAD), _MM_HINT_NTA);
        stream_line(to, from);
    }
    memcpy(to, from, size);
}

void stream_flush(void)
{
    _mm_sfence();
}

#else

void stream_copy(void *dst, const void *src, size_t size)
{
    memcpy(dst, src, size);
}

void stream_flush(void)
{
}

#endif
