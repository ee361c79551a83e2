#include <strait/status.h>

const char *strait_status_string(int status)
{
    switch (status) {
#define X(name, value, text) \
    case value:              \
        return text;
        STRAIT_STATUS_MAP(X)
#undef X
    default:
        return "unknown status";
    }
}
