// The kernels as the host sees them.
#ifndef STRAIT_KERNELS_CUDA_KERNELS_CUH
#define STRAIT_KERNELS_CUDA_KERNELS_CUH

#include "kernels/cuda/launch.cuh"

namespace strait
{

// Thread blocks of one team each that share a multiprocessor; kernels limit their registers to fit this many.
constexpr int DECODE_RESIDENT = 3;
template <coder CODER> constexpr int encode_resident()
{
    return CODER == CODER_FP16 || CODER == CODER_FP32 ? 3 : 4;
}

// The kernel for a launch with FULL_TEAMS to a thread block or one, and large parameters or small ones.
const void *encode_function(coder which, bool full, bool large);
const void *typed_encode_function(coder which, bool full, bool large);
const void *decode_function(bool full, bool large);
uint32_t encode_team_bytes(coder which); // shared memory of a team, in bytes
uint32_t typed_encode_team_bytes(coder which);
uint32_t decode_team_bytes();
// The kernel that copies regions from the parameters of a launch to scratch.
const void *upload_function();

struct upload {
    region *dst;
    uint32_t count, reserved;
    region regions[(32752 - 16) / sizeof(region)];
};

} // namespace strait
#endif
