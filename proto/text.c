#include <strait/strait.h>

const char *strait_reason_string(int reason)
{
    switch (reason) {
#define X(name, value, text) \
    case value:              \
        return text;
        STRAIT_REASON_MAP(X)
#undef X
    default:
        return "unknown reason";
    }
}

const char *strait_state_string(int state)
{
    static const char *const names[] = {"failed", "bootstrap", "ready", "transferring", "done"};
    return state >= STRAIT_FAILED && state <= STRAIT_DONE ? names[state] : "unknown state";
}
