/* The fake NCCL in place of the plugin that knows the real one: for daemons that are processes of their own. */
#include "tests/fakes/nccl_calls.h"

__attribute__((visibility("default"))) nccl_calls_get strait_transport_nccl_calls;

const struct nccl_calls *strait_transport_nccl_calls(const char *library, char *why, size_t why_size)
{
    (void)library, (void)why, (void)why_size;
    fake_nccl_reset();
    return &fake_nccl_calls;
}
