// Encode kernels for BF16 values that are coded by tables, modes 0 to 4.
#include "kernels/cuda/encoder.cuh"
#include "kernels/cuda/mode_tiered.cuh"
#include "kernels/cuda/mode_top16.cuh"

namespace strait
{

const void *encode_function(coder_id coder, bool full, bool large)
{
    if (coder == CODER_TOP16)
        return choose_encode_kernel<CODER_TOP16>(full, large);
    return coder == CODER_TIERED ? choose_encode_kernel<CODER_TIERED>(full, large)
                                 : typed_encode_function(coder, full, large);
}

uint32_t encode_team_bytes(coder_id coder)
{
    if (coder == CODER_TOP16)
        return encode_team<CODER_TOP16>::BYTES;
    return coder == CODER_TIERED ? encode_team<CODER_TIERED>::BYTES : typed_encode_team_bytes(coder);
}

} // namespace strait
