/* Copies data that this process will not read again. */
#ifndef STRAIT_DAEMON_MEMORY_STREAM_COPY_H
#define STRAIT_DAEMON_MEMORY_STREAM_COPY_H

#include <stddef.h>

/* memcpy with stores that bypass the caches, where the processor has them: pays for pages that together exceed the
 * caches, though each of them is small. */
void stream_copy(void *dst, const void *src, size_t size);

/* Makes the stores above visible to other threads before anything that follows. Call it once after the last copy. */
void stream_flush(void);

#endif
