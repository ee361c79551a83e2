/* Copying what nobody here will read again. */
#ifndef STRAIT_DAEMON_MEMORY_STREAM_COPY_H
#define STRAIT_DAEMON_MEMORY_STREAM_COPY_H

#include <stddef.h>

/* memcpy with stores that go past the caches, where the processor has them: pays for pages that add up to more than the
 * caches hold, though each of them is small. */
void stream_copy(void *dst, const void *src, size_t size);

/* Makes the stores above visible to other threads before what follows. Once after the last copy. */
void stream_flush(void);

#endif
