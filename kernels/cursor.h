/* Pieces of a page whose rows lie apart, or have columns, one after another. */
#ifndef STRAIT_KERNELS_CURSOR_H
#define STRAIT_KERNELS_CURSOR_H

#include <stdint.h>

/* Position in a page: the bytes from `at` on lie in one piece. */
struct cursor {
    uint8_t *at, *row;     /* the position; its row's first piece */
    uint32_t left;         /* bytes of the piece from there on */
    uint32_t piece;        /* bytes of a piece */
    uint32_t column, last; /* number of the piece in its row; that of the row's last one */
    uint64_t row_stride, column_stride;
};

/* Moves the position by so many bytes of its piece. */
static inline void cursor_pass(struct cursor *cursor, uint32_t bytes)
{
    cursor->left -= bytes;
    if (cursor->left != 0) {
        cursor->at += bytes;
        return;
    }
    cursor->left = cursor->piece;
    if (cursor->column < cursor->last) {
        cursor->column++;
        cursor->at += cursor->column_stride - (cursor->piece - bytes);
        return;
    }
    cursor->column = 0;
    cursor->at = cursor->row += cursor->row_stride;
}

/* Bytes that lie in a row, without an end. */
static inline struct cursor cursor_in_row(const uint8_t *at)
{
    return (struct cursor){.at = (uint8_t *)at, .left = UINT32_MAX};
}

#define CURSOR_LINE 64u /* bytes of a cache line */

/* Prefetches the line at the position into the L2, as the L1 is full, and passes it. Pieces are whole lines. */
static inline void cursor_prefetch_line(struct cursor *cursor)
{
    __builtin_prefetch(cursor->at, 0, 2);
    cursor_pass(cursor, CURSOR_LINE);
}

/* Prefetches bytes into the L2. */
static inline void cursor_prefetch(const uint8_t *src, uint32_t size)
{
    for (uint32_t at = 0; at < size; at += CURSOR_LINE)
        __builtin_prefetch(src + at, 0, 2);
}

#endif
