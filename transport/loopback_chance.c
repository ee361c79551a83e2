#include "transport/loopback_chance.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "transport/options.h"

#define PER_MILLE 1000u

struct chance chance_begin(const struct loopback_faults *faults)
{
    return (struct chance){.faults = *faults, .dice = faults->seed};
}

/* splitmix64: any seed will do. */
uint64_t chance_roll(struct chance *chance)
{
    uint64_t x = chance->dice += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

enum fate chance_fate(struct chance *chance)
{
    const struct loopback_faults *faults = &chance->faults;
    const uint32_t rates[] = {faults->lose,   faults->fail,    faults->truncate,
                              faults->garble, faults->corrupt, faults->duplicate};
    uint64_t drawn = chance_roll(chance) % PER_MILLE;
    for (uint32_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        if (drawn < rates[i])
            return FATE_LOST + i;
        drawn -= rates[i];
    }
    return FATE_ARRIVES;
}

int64_t chance_delay_ns(struct chance *chance)
{
    uint64_t late = chance->faults.delay_us + chance_roll(chance) % ((uint64_t)chance->faults.jitter_us + 1);
    return (int64_t)late * 1000;
}

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static const struct fault_name {
    const char *name;
    size_t offset;
} fault_names[] = {
#define FAULT(member)                                     \
    {                                                     \
#member, offsetof(struct loopback_faults, member) \
    }
    FAULT(seed),     FAULT(delay_us), FAULT(jitter_us), FAULT(lose),      FAULT(fail),
    FAULT(truncate), FAULT(garble),   FAULT(corrupt),   FAULT(duplicate), FAULT(cut_after),
#undef FAULT
};

static bool set_fault(struct loopback_faults *faults, const struct option *option)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(option->value, &end, 10);
    if (*option->value < '0' || *option->value > '9' || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return false;
    for (size_t i = 0; i < sizeof(fault_names) / sizeof(fault_names[0]); i++)
        if (strcmp(fault_names[i].name, option->name) == 0) {
            *(uint32_t *)(void *)((char *)faults + fault_names[i].offset) = (uint32_t)value;
            return true;
        }
    return false;
}

enum strait_status faults_read(const char *text, struct loopback_faults *faults)
{
    struct option option;
    do {
        enum strait_status status = option_next(&text, &option);
        if (status != STRAIT_OK || (option.name != NULL && !set_fault(faults, &option)))
            return STRAIT_ERR_INVALID;
    } while (option.name != NULL);
    return STRAIT_OK;
}
