/* A codec whose calls are work of fake streams: the best variant for the host does them when the stream comes to them.
 * It demands what the kernels demand of addresses, scratch and tables. */
#ifndef STRAIT_TESTS_FAKES_CODEC_H
#define STRAIT_TESTS_FAKES_CODEC_H

#include "kernels/device.h"
#include "tests/fakes/gpu.h"

/* What differs between the fakes that have a codec. */
struct codec_host {
    coll_stream (*stream)(void *handle);                         /* as a call names it */
    int (*device)(void);                                         /* the current one; -1: none is */
    bool (*fails)(void);                                         /* this launch is refused */
    bool (*reaches)(const void *bytes, size_t size, int device); /* NULL: devices reach all memory */
    void (*begin)(void); /* called by the stream before a launch runs; may be NULL */
};

extern const struct codec_host fake_codec_host; /* defined by the library that has the codec */
extern const struct device_ops fake_codec_ops;

#endif
