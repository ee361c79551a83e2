/* Fuzz targets: foreign bytes, taken as what a function's name says. A finding is a crash or a require() that fails. A
 * program is built of fuzz.c and one target. */
#ifndef STRAIT_TESTS_FUZZ_H
#define STRAIT_TESTS_FUZZ_H

#include "tests/support.h"

/* fuzz_chunks.c */
void fuzz_chunk(const uint8_t *data, size_t size);
void fuzz_chunk_repaired(const uint8_t *data, size_t size);
void fuzz_roundtrip(const uint8_t *data, size_t size);

/* fuzz_files.c */
void fuzz_codebook(const uint8_t *data, size_t size);
void fuzz_container(const uint8_t *data, size_t size);

/* fuzz_codebooks.c */
void fuzz_codebook_parts(const uint8_t *data, size_t size);

/* fuzz_checkpoint.c */
void fuzz_checkpoint_index(const uint8_t *data, size_t size);
void fuzz_checkpoint(const uint8_t *data, size_t size);

/* fuzz_text.c */
void fuzz_address(const uint8_t *data, size_t size);
void fuzz_options(const uint8_t *data, size_t size);
void fuzz_tenants(const uint8_t *data, size_t size);
void fuzz_http_request(const uint8_t *data, size_t size);
void fuzz_safetensors(const uint8_t *data, size_t size);

/* fuzz_protocol.c */
void fuzz_message(const uint8_t *data, size_t size);
void fuzz_channel(const uint8_t *data, size_t size);
void fuzz_blob(const uint8_t *data, size_t size);
void fuzz_nccl(const uint8_t *data, size_t size);
void fuzz_trace(const uint8_t *data, size_t size);

/* fuzz_secure.c */
void fuzz_seal(const uint8_t *data, size_t size);
void fuzz_tls(const uint8_t *data, size_t size);

/* fuzz_tcp.c */
void fuzz_tcp(const uint8_t *data, size_t size);

/* fuzz_reports.c */
void fuzz_coll_report(const uint8_t *data, size_t size);

/* fuzz_ep.c */
void fuzz_ep(const uint8_t *data, size_t size);
void fuzz_ep_frames(const uint8_t *data, size_t size);

/* fuzz_collective.c */
void fuzz_rendezvous(const uint8_t *data, size_t size);

#endif
