/* The codec's plugin for the fake CUDA driver. */
#include <unistd.h>

#include "kernels/device.h"
#include "tests/fakes/cuda.h"

static bool fails(void)
{
    if (fake_cuda_control.fail > 0) {
        fake_cuda_control.fail--;
        return true;
    }
    fake_cuda_control.launches++;
    return false;
}

static void begin(void)
{
    usleep(fake_cuda_control.delay_us);
}

const struct codec_host fake_codec_host = {cuda_stream, cuda_device, fails, cuda_is_reachable, begin};

FAKE_VISIBLE const struct device_ops *strait_device_ops(void);
const struct device_ops *strait_device_ops(void)
{
    return cuda_device() >= 0 ? &fake_codec_ops : NULL;
}
