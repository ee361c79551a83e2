/* Foreign bytes as a chunk. */
#include "tests/fuzz/chunk_target.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    target_check(data, size);
    return 0;
}
