/* What a driver can do to a device of a daemon, by way of the plugin in front: different for each kind of plugin. */
#ifndef TESTS_CHAOS_PLUGIN_H
#define TESTS_CHAOS_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `behind` is the plugin's shared object, as dlopen gave it. Both are called on a thread of their own. */
void plugin_break(void *behind, int32_t device);              /* it fails for good */
void plugin_stall(void *behind, int32_t device, uint32_t ms); /* it has no time for anybody meanwhile */

#ifdef __cplusplus
}
#endif
#endif
