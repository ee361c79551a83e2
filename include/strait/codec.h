/*
 * strait/codec.h - lossless compression of floating-point pages
 *
 * The codec splits each BF16 value into sign+mantissa, which is kept, and exponent, which is coded through an offline
 * codebook: `top16` spends 4 bits on each exponent (1.33x on KV caches), `tiered` about 2.7 (1.48x). `split` extends
 * `tiered` to FP16 and FP32. `base` needs no codebook: its codes count from a block's own large exponents. FP8 needs
 * none in either: its blocks carry a ranking of their own (E5M2 1.40x, E4M3 1.19x). `parts` stores only those bits of
 * signs and mantissas that change within a block, and counts codes from the large exponents of each 256 values. Blocks
 * that would not shrink are kept raw, so the output is never larger than the input plus its tables. Every bit pattern
 * round-trips.
 *
 * Basic use:
 *
 *     uint64_t capacity = strait_encode_bound(&pages);
 *     struct strait_result result;
 *     struct strait_run run = {.size = sizeof(run), .result = &result};
 *     status = strait_encode(NULL, &params, chunk, capacity, &pages, &run);     encodes to result.bytes bytes
 *     status = strait_decode(NULL, codebook, &pages, NULL, chunk, bytes, &run); and back, checked
 *
 * Return values report bad arguments only. Bad data is reported in result.status and, page by page, in run.page_status:
 * a server can decode a thousand pages and lose one.
 *
 * Threads: no call keeps hidden state. Any number of calls may run at once, on the same codebook and on disjoint pages
 * of one chunk, and give the same bytes as one after another. A codebook is immutable once created.
 *
 * Memory: pages, chunks, scratch and results belong to the caller; calls allocate nothing unless they say so. Structs,
 * items and the region array are read on the host during the call. For the CPU variants everything else is in host
 * memory too. The variant "cuda" reads pages, ids, select and chunks, and writes chunks, pages, statuses, statistics
 * and results, in any memory that its stream can access: device memory, pinned host memory, another device's memory
 * that is mapped here. It only enqueues work: a call returns before that work has run, and what the kernels read must
 * not change until it has. It runs on the current device, to which the stream must belong.
 *
 * The format is described in kernels/FORMAT.md. All variants, on every processor, write the same bytes.
 */
#ifndef STRAIT_CODEC_H
#define STRAIT_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include <strait/export.h>
#include <strait/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits of the format. */
#define STRAIT_BLOCK_VALUES        8192u               /* values of 2 bytes in a full block */
#define STRAIT_PAGE_BYTES_MAX      (16u * 1024 * 1024) /* bytes of a page */
#define STRAIT_CHUNK_PAGES_MAX     (1024u * 1024)      /* pages of a chunk */
#define STRAIT_CHUNK_HEADER_BYTES  48u                 /* enough of a chunk for strait_chunk_info */
#define STRAIT_CODEBOOK_TABLES_MAX 65535u              /* tables of a codebook set */
#define STRAIT_CODEBOOK_ID_BYTES   16u
#define STRAIT_CHUNK_ALIGNMENT     16u /* best alignment of chunk buffers; others work, slower */

/* Type of the values. BF16 is compressed in every mode, FP16, FP32 and FP8 in BASE, SPLIT and PARTS; everything else is
 * stored unchanged (except constant blocks). */
enum strait_element {
    STRAIT_ELEMENT_BYTES = 0,
    STRAIT_ELEMENT_BF16 = 1,
    STRAIT_ELEMENT_FP16 = 2,
    STRAIT_ELEMENT_FP32 = 3,
    STRAIT_ELEMENT_FP8_E4M3 = 4,
    STRAIT_ELEMENT_FP8_E5M2 = 5,
};

/* What the encoder is asked for. Except with RAW, blocks of a single repeated value become `const`, and blocks that
 * would not shrink stay raw. AUTO is TIERED today. Versions before BASE and SPLIT refuse (ERR_UNSUPPORTED) chunks
 * written by BASE, and by SPLIT from FP16 and FP32; versions before STRAIT_BLOCK_FP8 and STRAIT_BLOCK_PARTS those with
 * such blocks. */
enum strait_mode {
    STRAIT_MODE_AUTO = 0,
    STRAIT_MODE_RAW = 1,
    STRAIT_MODE_TOP16 = 2,  /* BF16 */
    STRAIT_MODE_TIERED = 3, /* BF16 */
    STRAIT_MODE_BASE = 4,   /* BF16, FP16, FP32, FP8, without a codebook */
    STRAIT_MODE_SPLIT = 5,  /* BF16 (as TIERED), FP16, FP32; FP8 as in BASE, without a codebook */
    STRAIT_MODE_PARTS = 6,  /* BF16, FP16, FP32, with or without a codebook; FP8 as in BASE */
};

/* Mode of a block in the chunk. strait_result.values has an entry for each of the first five; a block of a later mode
 * counts there as TIERED, TOP16 or TOP16_ESCAPES, according to the codes inside it. */
enum strait_block_mode {
    STRAIT_BLOCK_RAW = 0,
    STRAIT_BLOCK_CONST = 1,
    STRAIT_BLOCK_TOP16 = 2,         /* no escapes */
    STRAIT_BLOCK_TOP16_ESCAPES = 3, /* some values outside the 16 most frequent exponents */
    STRAIT_BLOCK_TIERED = 4,
    STRAIT_BLOCK_MODES = 5,      /* not a mode: number of entries of strait_result.values */
    STRAIT_BLOCK_BASE = 6,       /* BF16, by a ranking derived from the block itself */
    STRAIT_BLOCK_SPLIT = 7,      /* FP16 or FP32, with the low bits of its mantissas */
    STRAIT_BLOCK_FP32Z = 8,      /* FP32 whose lower halves are zero: widened BF16 */
    STRAIT_BLOCK_FP8 = 10,       /* FP8, by a ranking that the block carries */
    STRAIT_BLOCK_PARTS = 11,     /* BF16, FP16 or FP32: the bits that change, and a base for each 256 values */
    STRAIT_BLOCK_MODES_ALL = 12, /* all modes are below this */
};

/* ---- Codebooks ------------------------------------------------------------------------------------------------- */

/* What a table was calibrated for. */
enum strait_role {
    STRAIT_ROLE_OTHER = 0,
    STRAIT_ROLE_K = 1,
    STRAIT_ROLE_V = 2,
    STRAIT_ROLE_KV = 3, /* K and V in one tensor, such as rows of a token's K and V of one head */
};

struct strait_class {
    enum strait_role role;
    int32_t layer; /* -1: no particular layer */
};

struct strait_codebook; /* a set of tables, immutable */

/* Adds the exponents of `count` BF16 values at `values` (any alignment) to counts[256]. */
STRAIT_API void strait_histogram_add(uint64_t counts[256], const void *values, size_t count);

/* The same for any element type that has tables: BF16, FP16, FP32. An FP16 value counts under the exponent that BF16
 * has for its magnitude. ERR_INVALID: another type; nothing was added. */
STRAIT_API enum strait_status strait_histogram_add_values(uint64_t counts[256], enum strait_element element,
                                                          const void *values, size_t count);

/* Ranks exponents by descending count, ties by exponent: ranking[0] is the most frequent one. */
STRAIT_API void strait_histogram_rank(uint8_t ranking[256], const uint64_t counts[256]);

/* Makes a set of `count` tables (1..65535). rankings[t] is a permutation of 0..255, most frequent first; classes[t]
 * says what it is for. Table 0 is the fallback; its class is ignored. With classes NULL, all tables but 0 are found by
 * index only. Copies its input. On success the caller owns *codebook.
 * ERR_INVALID: count out of range, a ranking that is not a permutation, a class twice. ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_codebook_create(const uint8_t (*rankings)[256], const struct strait_class *classes,
                                                     uint32_t count, struct strait_codebook **codebook);

/* Makes a set of the values that were counted for each table, which it keeps and files of it tell. The ranking of a
 * table is that of its counts; counts[t] of zeroes are of no values. Else like strait_codebook_create. */
STRAIT_API enum strait_status strait_codebook_create_counted(const uint64_t (*counts)[256],
                                                             const struct strait_class *classes, uint32_t count,
                                                             struct strait_codebook **codebook);

/* Groups histograms that one table codes nearly as well as tables of their own would: those of tensors whose names do
 * not tell what their values are like. group[i] becomes the group of counts[i], from 0 on, and *group_count their
 * number, `most` at most. In any order of the histograms the groups and their numbers are the same.
 * ERR_INVALID (NULL, `most` is 0), ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_histogram_group(const uint64_t (*counts)[256], uint32_t count, uint32_t most,
                                                     uint32_t *group, uint32_t *group_count);

/* Releases a set; NULL is allowed. No call may be using it. */
STRAIT_API void strait_codebook_destroy(struct strait_codebook *codebook);

/* Reads the protobuf form of a set (kernels/codebook.proto). On success the caller owns *codebook. ERR_INVALID (NULL),
 * ERR_CORRUPT, ERR_UNSUPPORTED (newer version), ERR_NO_MEMORY. */
STRAIT_API enum strait_status strait_codebook_parse(const void *src, size_t src_size,
                                                    struct strait_codebook **codebook);

/* Bytes that strait_codebook_serialize writes. */
STRAIT_API size_t strait_codebook_serialized_size(const struct strait_codebook *codebook);
/* Writes the protobuf form. ERR_INVALID (NULL); ERR_NO_SPACE: dst_capacity is below the serialized size. */
STRAIT_API enum strait_status strait_codebook_serialize(const struct strait_codebook *codebook, void *dst,
                                                        size_t dst_capacity);

/* The set's id: 16 bytes, borrowed. Equal ids mean equal tables; the tables' classes are not part of the id. */
STRAIT_API const uint8_t *strait_codebook_id(const struct strait_codebook *codebook);
/* Number of its tables. */
STRAIT_API uint32_t strait_codebook_count(const struct strait_codebook *codebook);
/* Ranking of a table, 256 bytes, borrowed; NULL when table is out of range. */
STRAIT_API const uint8_t *strait_codebook_ranking(const struct strait_codebook *codebook, uint32_t table);
/* Class of a table; {OTHER, -1} for table 0 and when table is out of range. */
STRAIT_API struct strait_class strait_codebook_class(const struct strait_codebook *codebook, uint32_t table);
/* The counts that a table was made of: 256, borrowed. NULL: not known, or the index is too large. */
STRAIT_API const uint64_t *strait_codebook_counts(const struct strait_codebook *codebook, uint32_t table);
/* Thousandths of a bit that mode tiered spent on an exponent of what a table was made of: on values like those it
 * spends about as much. 0: not known, or the index is too large. */
STRAIT_API uint32_t strait_codebook_expected(const struct strait_codebook *codebook, uint32_t table);
/* Quotient of the bits spent on exponents and those expected, above which a set does not fit the values: calibrate it
 * anew. The command, the daemon and the alerts of deploy/prometheus go by it. Tables gain 1 to 2 % over mode base. */
#define STRAIT_CODEBOOK_FITS 1.05
/* Table for a class: the table of exactly this role and layer, else the table of this role without a layer, else 0. */
STRAIT_API uint32_t strait_codebook_find(const struct strait_codebook *codebook, struct strait_class wanted);

/* ---- Pages ----------------------------------------------------------------------------------------------------- */

/* Equal pages at equal distances: one layer's K or V of a paged KV pool. A page is `rows` rows of `row_bytes` bytes,
 * `row_stride` apart; a contiguous page has rows = 1. Page bytes = rows * row_bytes, 1..STRAIT_PAGE_BYTES_MAX. A row
 * may consist of `columns` pieces of row_bytes / columns bytes, `column_stride` apart: a page whose tokens are its rows
 * is then read in this order from memory that has its heads one after another. For BF16 and FP16 base, page_stride
 * (when there are several pages), row_stride and row_bytes (when there are several rows), column_stride and the bytes
 * of a piece (when there are several columns) are multiples of 2, for FP32 of 4; else ERR_ALIGNMENT. */
#define STRAIT_STRIDE_MAX        (1ull << 40) /* strides are below this, */
#define STRAIT_COLUMN_STRIDE_MAX (1u << 24)   /* column strides and numbers of columns below this */
struct strait_region {
    void *base;           /* first byte of page 0; encoders only read from it */
    uint64_t page_stride; /* bytes from one page to the next */
    uint64_t row_stride;  /* bytes from one row to the next; unused when rows is 1 */
    uint32_t page_count;  /* pages of the region; ids from this on do not exist */
    uint32_t rows;
    uint32_t row_bytes;
    uint32_t table;         /* codebook table for these values; ignored when decoding */
    uint32_t columns;       /* of a row, a divisor of row_bytes; 0 and 1: a row is one piece */
    uint32_t column_stride; /* bytes from one piece of a row to the next; unused when columns is below 2, and then 0 */
};

/* The pages of a request: one id list that applies to every region. Page region * id_count + i of the list is page
 * ids[i] of that region. region_count * id_count is 1..STRAIT_CHUNK_PAGES_MAX. Borrowed for the call. */
struct strait_pages {
    const struct strait_region *regions;
    const uint32_t *ids; /* NULL: 0, 1, 2, ... */
    uint32_t region_count;
    uint32_t id_count;
};

/* ---- Runs ------------------------------------------------------------------------------------------------------ */

/* Written once, after everything else, also when the data was bad. */
struct strait_result {
    uint64_t bytes;        /* encode: size of the chunk, 0 unless OK; decode, verify: page bytes that passed */
    int32_t status;        /* enum strait_status: chunk_status if that is not OK, else the first failed page's */
    int32_t chunk_status;  /* decode, verify: what is wrong with the chunk as a whole; unless OK, no page was written */
    uint32_t failed_pages; /* pages whose status is not OK; all pages of the list when chunk_status is not OK */
    uint32_t reserved;
    uint64_t values[STRAIT_BLOCK_MODES]; /* values per block mode, of pages that are OK, in units of 2 bytes */
};

/* Statistics per table of the codebook: they show whether the calibration still fits the data. */
struct strait_class_stats {
    uint64_t values;  /* values in coded blocks, in units of 2 bytes: an FP32 value is two, two FP8 values are one */
    uint64_t escapes; /* of these, how many needed the escape stream (top16) or the last tier (tiered) */
};

/* Whether a call's output should stay in the processor's caches for its next reader, or go past them to memory. */
enum strait_caching {
    STRAIT_CACHING_AUTO = 0, /* chunks of 1 MiB and more go past the caches */
    STRAIT_CACHING_KEEP = 1, /* the output is read soon, on this processor: by a network stack or another process */
    STRAIT_CACHING_PASS = 2, /* the output is read later, or by a device */
    /* "cuda", for a chunk whose dst lies behind a link, in memory of another GPU or of the host: blocks leave as whole
     * lines, and results are written as early as possible. Into the GPU's own memory, this would cost 10 % of the
     * speed. */
    STRAIT_CACHING_LINK = 3,
};

struct CUstream_st; /* what cudaStream_t points to */

/* How a call runs and where it reports. Set unused fields to zero; `size` lets the struct grow. */
struct strait_run {
    size_t size;                /* sizeof(struct strait_run) */
    void *scratch;              /* strait_scratch_size(codec) bytes, 64-byte aligned; NULL: on the stack. CUDA: below */
    size_t scratch_size;        /* even with scratch, a call uses up to 64 KiB of stack */
    struct CUstream_st *stream; /* CUDA; the CPU variants ignore it and are done on return */
    struct strait_result *result; /* required, but NULL for a batch; written unless the call returns an error */
    int32_t *page_status;         /* one enum strait_status per page of the list, or NULL */
    uint32_t page_status_count;   /* entries of page_status; pages beyond are not reported. 0 with NULL only */
    uint32_t class_count;         /* entries of class_stats; tables beyond are not counted */
    struct strait_class_stats
        *class_stats;     /* added to, one per table of the codebook, or NULL; concurrent calls must not share it */
    const void *metadata; /* decode, verify: see strait_decode; else NULL */
    uint32_t caching;     /* enum strait_caching: for the chunk when encoding, for the pages when decoding */
    /* CUDA: multiprocessors to occupy, all resident blocks counted; 0: all. Even, and from compute capability 9.0 on:
     * in pairs. One is two for FP16 where a multiprocessor has 100 KiB of shared memory (8.6, 8.9, 12.0). */
    uint32_t sm_budget;
    const void *tables; /* CUDA: the codebook's strait_codebook_image in device memory; NULL without a codebook */
};

/* Scratch of the variant "cuda" is device memory of strait_encode_scratch_size or strait_decode_scratch_size bytes. It
 * serves one call at a time: calls on one stream can share it, calls on different streams cannot. Zero it once, before
 * its first use; each call leaves it ready for the next one, as long as scratch_size stays the same. */

/* ---- Variants -------------------------------------------------------------------------------------------------- */

struct strait_codec; /* a variant of the codec: "scalar", "avx2", "avx512", "cuda" */

/* The variant of that name; NULL when this build or processor lacks it. A NULL name gets the best variant for host
 * memory, never NULL and never "cuda". The environment variable STRAIT_CODEC, read once, overrides which variant that
 * is (ignored when it names none that runs here).
 *
 * "cuda" is a plugin, libstrait-cuda.so, which the first request for it loads from the usual paths of shared libraries.
 * NULL when there is no plugin or no driver, or when it has no kernels for the compute capability of the current
 * device, which must be 8.0 or later. */
STRAIT_API const struct strait_codec *strait_codec_get(const char *name);
/* Name of a variant that strait_codec_get returned, static. codec must not be NULL. */
STRAIT_API const char *strait_codec_name(const struct strait_codec *codec);
/* Names of the variants for host memory in this build, best first, whether or not the processor can run them; NULL past
 * the last. */
STRAIT_API const char *strait_codec_name_at(uint32_t index);

/* Describes what calls of this variant run in words for people: the variant's name, and for "cuda" the kernels for the
 * current device. Returns the length of the text, which is cut to `size` bytes with its end; 0 when there are no such
 * kernels. codec must not be NULL. */
STRAIT_API uint32_t strait_codec_describe(const struct strait_codec *codec, char *text, uint32_t size);

/* Loads what calls of this variant need on the current device. Otherwise kernels are loaded at their first launch, for
 * which the driver may wait until everything that runs on the device has ended: call this before launching beside
 * kernels that wait for something. For the CPU variants OK, at once; ERR_DEVICE. */
STRAIT_API enum strait_status strait_codec_prepare(const struct strait_codec *codec);

/* Version of the library, "major.minor.patch". */
STRAIT_API const char *strait_version(void);

/* ---- Encode, decode -------------------------------------------------------------------------------------------- */

struct strait_encode_params {
    size_t size; /* sizeof(struct strait_encode_params) */
    enum strait_element element;
    enum strait_mode mode;
    /* NULL: tables are 0, BF16 can only be RAW, BASE or PARTS, and FP16 and FP32 not SPLIT (else ERR_INVALID). */
    const struct strait_codebook *codebook;
    /* Page that stands for ids beyond a region's pages; NULL: they are ERR_PAGE_ID. It lies as pages of the regions do,
     * from a multiple of 16 on, and there is as much of it as of the longest. For lists that end where only the device
     * knows: a page of zeroes takes 16 bytes for each block and its entry. */
    const void *absent;
};

/* Size of the largest chunk that these pages can encode to, in bytes; 0 when the list is invalid or the bound reaches
 * 4 GiB. Reads sizes only, not the pages. */
STRAIT_API uint64_t strait_encode_bound(const struct strait_pages *pages);

/* Scratch for one call of this variant (NULL: the best), in bytes; 0 for "cuda", where it depends on the call. */
STRAIT_API size_t strait_scratch_size(const struct strait_codec *codec);

/* Encodes the pages to one chunk at dst. codec NULL: the best. The first strait_encode_bound bytes of dst must not
 * overlap the pages, which is not checked. Returns ERR_INVALID, ERR_ALIGNMENT, ERR_CODEBOOK (a region's table is not in
 * the set), ERR_NO_SPACE (dst_capacity is below strait_encode_bound, or scratch too small). result.status: OK, or
 * ERR_PAGE_ID and no chunk. */
STRAIT_API enum strait_status strait_encode(const struct strait_codec *codec, const struct strait_encode_params *params,
                                            void *dst, uint64_t dst_capacity, const struct strait_pages *src,
                                            const struct strait_run *run);

/* Decodes pages of the chunk at src into dst and verifies them. `select` names the pages: page i of the list receives
 * chunk page select[i]. With select NULL, page i receives page i, and the list has as many pages as the chunk. codebook
 * may be NULL when the chunk names none. Rows of a region must not overlap.
 *
 * The chunk may be hostile, and the bytes of its blocks may even change during the call: pages then fail, or hold what
 * passed the checksum, and nothing but the listed pages is written. Its metadata must not change: where others can
 * write src, copy the first strait_chunk_info.metadata_bytes bytes first and pass the copy as run.metadata.
 *
 * Returns ERR_INVALID, ERR_ALIGNMENT or ERR_NO_SPACE (both: scratch). result.chunk_status: ERR_TRUNCATED, ERR_CORRUPT,
 * ERR_UNSUPPORTED, ERR_INTEGRITY, ERR_CODEBOOK as FORMAT.md says, ERR_INVALID (no select, and the numbers of pages
 * differ) or ERR_ALIGNMENT (of dst, for the chunk's element type): nothing was written. Page status: ERR_PAGE_ID,
 * ERR_INVALID (the chunk has no such page, or one of another size), ERR_CORRUPT, ERR_INTEGRITY: the bytes of that page
 * are undefined. */
STRAIT_API enum strait_status strait_decode(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                            const struct strait_pages *dst, const uint32_t *select, const void *src,
                                            uint64_t src_size, const struct strait_run *run);

/* Gives strait_decode's verdict on the whole chunk without writing pages. page_status has one entry per page of the
 * chunk; it is left alone when the chunk as a whole is bad (result.chunk_status), as the number of its pages is then
 * unknown. ERR_UNSUPPORTED with "cuda". */
STRAIT_API enum strait_status strait_verify(const struct strait_codec *codec, const struct strait_codebook *codebook,
                                            const void *src, uint64_t src_size, const struct strait_run *run);

/* ---- Many chunks at once --------------------------------------------------------------------------------------- */

/* One chunk to write: the arguments of strait_encode. */
struct strait_encode_item {
    struct strait_pages src;
    void *dst; /* "cuda": a multiple of 16; so is src of decode items */
    uint64_t dst_capacity;
    struct strait_result *result; /* required; written unless the call returns an error */
    int32_t *page_status;         /* one enum strait_status per page of the list, or NULL */
    uint32_t page_status_count;   /* entries of page_status; 0 with NULL only */
    uint32_t reserved;            /* 0 */
    /* Or NULL: becomes flag_value, 8 bytes at once, after the result of a chunk whose status is OK. For whoever reads
     * dst without hearing from the owner: another device that waits for the chunk. A multiple of 8. */
    uint64_t *flag;
    uint64_t flag_value;
};

enum strait_decode_flags {
    /* src_size is the size of a buffer, all of it readable, that begins with the chunk; the chunk may be shorter. For
     * callers that send a fixed number of bytes, however small the chunk became. */
    STRAIT_DECODE_AT_MOST = 1,
};

/* One chunk to read: the arguments of strait_decode. */
struct strait_decode_item {
    struct strait_pages dst;
    const uint32_t *select; /* or NULL */
    const void *src;
    uint64_t src_size;
    const void *metadata; /* as run.metadata of strait_decode; or NULL */
    struct strait_result *result;
    int32_t *page_status;
    uint32_t page_status_count;
    uint32_t flags; /* of enum strait_decode_flags */
    /* Bytes at `metadata`, for callers who cannot look at the header before the call; 0: all that the header there
     * says. When it says more, the metadata is read at src: "cuda" reads nothing outside the chunk whatever it is
     * meanwhile, for others it must not change then. */
    uint64_t metadata_size;
};

/* Encode or decode `count` chunks, as `count` calls of strait_encode or strait_decode would, but "cuda" needs one
 * launch for many chunks. Consecutive items that share a `regions` pointer cost little more than one; very many
 * distinct regions, or hundreds of items, become several launches. The run's class_stats cover all items together; its
 * result, page_status and metadata must be NULL. No two items may write to the same memory.
 *
 * Each item's result is written after its chunk and pages. "cuda" writes results in the order in which chunks are
 * finished: an owner who sets a result in pinned memory to another status beforehand and polls it sees the whole chunk
 * once the status has changed. With "cuda", dst of a chunk whose status is not OK is undefined, up to dst_capacity.
 *
 * Return what strait_encode and strait_decode return, for the first item with an error (nothing has run then); with
 * "cuda" also ERR_ALIGNMENT for chunks, and ERR_DEVICE when a launch failed. */
STRAIT_API enum strait_status strait_encode_batch(const struct strait_codec *codec,
                                                  const struct strait_encode_params *params,
                                                  const struct strait_encode_item *items, uint32_t count,
                                                  const struct strait_run *run);
STRAIT_API enum strait_status strait_decode_batch(const struct strait_codec *codec,
                                                  const struct strait_codebook *codebook,
                                                  const struct strait_decode_item *items, uint32_t count,
                                                  const struct strait_run *run);

/* Scratch for such a call, in bytes; it also suffices for later calls whose lists are no longer than these. Only these
 * fields of an item are read: regions, region_count, id_count, and src_size when decoding. 0 when a list is invalid. */
STRAIT_API uint64_t strait_encode_scratch_size(const struct strait_codec *codec, const struct strait_encode_item *items,
                                               uint32_t count);
STRAIT_API uint64_t strait_decode_scratch_size(const struct strait_codec *codec, const struct strait_decode_item *items,
                                               uint32_t count);

/* The image of a set that kernels read: the owner copies it to device memory, 16-byte aligned, and passes its address
 * as run.tables. It depends only on the set and the version of the library. */
STRAIT_API size_t strait_codebook_image_size(const struct strait_codebook *codebook);
/* ERR_NO_SPACE when dst_capacity is smaller than strait_codebook_image_size. */
STRAIT_API enum strait_status strait_codebook_image(const struct strait_codebook *codebook, void *dst,
                                                    size_t dst_capacity);

/* ---- Looking into a chunk -------------------------------------------------------------------------------------- */

struct strait_chunk_info {
    uint64_t chunk_bytes;    /* the whole chunk */
    uint64_t metadata_bytes; /* header and tables; the blocks follow */
    uint32_t page_count;
    uint32_t page_bytes; /* of the longest page */
    enum strait_element element;
    uint8_t version;
    uint8_t codebook_id[STRAIT_CODEBOOK_ID_BYTES]; /* all zero: none */
};

/* Reads only the header: src_size may be as little as STRAIT_CHUNK_HEADER_BYTES, so that a stream can be cut into
 * chunks. Makes checks 1-4 of FORMAT.md. ERR_TRUNCATED, ERR_CORRUPT, ERR_UNSUPPORTED; *info is set on OK only. */
STRAIT_API enum strait_status strait_chunk_info(const void *src, uint64_t src_size, struct strait_chunk_info *info);

struct strait_page_info {
    uint64_t sum;         /* of the source bytes */
    uint32_t page_bytes;  /* raw */
    uint32_t coded_bytes; /* in the chunk, without its tables */
    uint32_t table;
    uint32_t block_modes; /* bit m: some block has enum strait_block_mode m */
};

/* Makes checks 1-10 of FORMAT.md on a whole chunk, then describes its first `count` pages (at most its page_count, else
 * ERR_INVALID) in info[]. Of the chunk only the metadata are read: src may be a copy of them, with the chunk's
 * src_size. Returns the failed check's error. */
STRAIT_API enum strait_status strait_chunk_pages(const void *src, uint64_t src_size, uint32_t count,
                                                 struct strait_page_info *info);

#ifdef __cplusplus
}
#endif
#endif
