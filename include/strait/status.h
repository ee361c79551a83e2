/* Status codes of every Strait library. */
#ifndef STRAIT_STATUS_H
#define STRAIT_STATUS_H

#include <strait/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, pinned value, text */
#define STRAIT_STATUS_MAP(X)                                                           \
    X(OK, 0, "success")                                                                \
    X(ERR_INVALID, -1, "invalid argument")                                             \
    X(ERR_NO_MEMORY, -2, "out of memory")                                              \
    X(ERR_NO_SPACE, -3, "destination or scratch buffer too small")                     \
    X(ERR_ALIGNMENT, -4, "address or stride not a multiple of the element size")       \
    X(ERR_TRUNCATED, -5, "input ends early")                                           \
    X(ERR_CORRUPT, -6, "input failed validation")                                      \
    X(ERR_UNSUPPORTED, -7, "not supported here: format version, mode, type or device") \
    X(ERR_CODEBOOK, -8, "codebook set is not the data's, or lacks a table it names")   \
    X(ERR_INTEGRITY, -9, "checksum mismatch")                                          \
    X(ERR_PAGE_ID, -10, "page id out of range")                                        \
    X(ERR_IO, -11, "input or output error")                                            \
    X(ERR_AGAIN, -12, "not yet: try again later")                                      \
    X(ERR_DEVICE, -13, "a GPU refused or failed")                                      \
    X(ERR_TIMEOUT, -14, "another rank did not answer in time")

enum strait_status {
#define X(name, value, text) STRAIT_##name = value,
    STRAIT_STATUS_MAP(X)
#undef X
};

/* Short English text for a status; never NULL, static storage. Any thread. */
STRAIT_API const char *strait_status_string(int status);

#ifdef __cplusplus
}
#endif
#endif
