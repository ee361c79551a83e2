// The encoder's kernels for the later modes: BF16 values by their bases, FP16 and FP32 values.
#include "kernels/cuda/mode_typed_encode.cuh"

#include "kernels/cuda/encoder.cuh"

namespace strait
{

const void *typed_encode_function(coder which, bool full, bool large)
{
    if (which == CODER_BF16)
        return choose_encode_kernel<CODER_BF16>(full, large);
    return which == CODER_FP16 ? choose_encode_kernel<CODER_FP16>(full, large)
                               : choose_encode_kernel<CODER_FP32>(full, large);
}

uint32_t typed_encode_team_bytes(coder which)
{
    if (which == CODER_BF16)
        return encode_team<CODER_BF16>::BYTES;
    return which == CODER_FP16 ? encode_team<CODER_FP16>::BYTES : encode_team<CODER_FP32>::BYTES;
}

} // namespace strait
