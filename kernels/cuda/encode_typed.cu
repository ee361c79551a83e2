// Encode kernels for the typed modes (6 to 8): BF16 values by their bases, FP16 and FP32 values.
#include "kernels/cuda/encoder.cuh"
#include "kernels/cuda/mode_typed_encode.cuh"

namespace strait
{

const void *typed_encode_function(coder_id coder, bool full, bool large)
{
    if (coder == CODER_BF16)
        return choose_encode_kernel<CODER_BF16>(full, large);
    return coder == CODER_FP16 ? choose_encode_kernel<CODER_FP16>(full, large)
                               : choose_encode_kernel<CODER_FP32>(full, large);
}

uint32_t typed_encode_team_bytes(coder_id coder)
{
    if (coder == CODER_BF16)
        return encode_team<CODER_BF16>::BYTES;
    return coder == CODER_FP16 ? encode_team<CODER_FP16>::BYTES : encode_team<CODER_FP32>::BYTES;
}

} // namespace strait
