/* Takes one tensor out of a compressed safetensors file: only the chunks that hold it are read, and of these only its
 * pages decoded. The file is untrusted. */
#ifndef STRAIT_TOOLS_TENSOR_FILE_H
#define STRAIT_TOOLS_TENSOR_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <strait/codec.h>

#include "tools/files.h"
#include "tools/input.h"

struct tensor_task {
    struct source *source; /* seekable */
    const char *name;      /* of the tensor */
    const struct strait_codec *codec;
    struct output *output;
};

struct tensor_outcome {
    char dtype[16];
    uint64_t bytes;      /* of the tensor */
    uint64_t read_bytes; /* of the file */
};

/* Writes the bytes of the tensor, each page checked by its sum. Where the tensor lies is told by the file's safetensors
 * header, which only decoding the whole file checks. False when it failed, with the error on stderr. */
bool tensor_decode(const struct tensor_task *task, struct tensor_outcome *outcome);

#endif
