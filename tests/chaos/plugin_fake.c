/* What can be done to the fake devices. */
#include <dlfcn.h>
#include <stdlib.h>

#include "tests/chaos/plugin.h"
#include "tests/fakes/device.h"

static struct fake_control *control(void *behind)
{
    struct fake_control *found = dlsym(behind, "fake_device_control");
    if (found == NULL)
        abort(); /* it is another plugin */
    return found;
}

void plugin_break(void *behind, int32_t device)
{
    atomic_fetch_or(&control(behind)->fail, 1u << device);
}

void plugin_stall(void *behind, int32_t device, uint32_t ms)
{
    atomic_store(&control(behind)->stall_us[device], ms * 1000);
}
