/* What the driver can do to a daemon's device, through the plugin in front: different for each kind of plugin. */
#ifndef TESTS_CHAOS_PLUGIN_H
#define TESTS_CHAOS_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `behind` is the dlopen handle of the plugin behind. Both are called on a thread of their own. */
void plugin_break(void *behind, int32_t device);              /* it fails permanently */
void plugin_stall(void *behind, int32_t device, uint32_t ms); /* it is busy for that time */

#ifdef __cplusplus
}
#endif
#endif
