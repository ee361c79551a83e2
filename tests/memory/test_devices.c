/* A node's GPUs where there is no plugin for them, or none that can do anything. */
#include <check.h>
#include <string.h>

#include <uv.h>

#include "daemon/device/devices.h"
#include "tests/run_suite.h"

TEST(what_is_missing_is_told)
{
    char text[256] = "";
    const struct device_why why = {.text = text, .size = sizeof(text)};
    struct device_state state;
    struct devices *devices;
    uv_loop_t loop;
    ck_assert_int_eq(0, uv_loop_init(&loop));
    ck_assert_int_eq(STRAIT_OK, devices_create(&loop, &(const struct devices_config){.slot_bytes = 1 << 20}, &devices));
    for (int i = 0; i < 2; i++) { /* it is looked for again */
        enum strait_status status = devices_open(devices, DEVICES_MAX, &why);
        ck_assert_int_eq(STRAIT_ERR_UNSUPPORTED, status); /* with a GPU too: there are never so many */
        ck_assert_msg(strstr(text, "GPU") != NULL || strstr(text, "device") != NULL, "%s", text);
    }
    ck_assert(!devices_state(devices, 0, &state));
    ck_assert(!devices_state(devices, -1, &state));
    devices_destroy(devices);
    ck_assert_int_eq(0, uv_run(&loop, UV_RUN_DEFAULT));
    ck_assert_int_eq(0, uv_loop_close(&loop));
}

int main(void)
{
    return run_tests("devices", NULL, NULL);
}
