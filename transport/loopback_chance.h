/* Which fault each chunk of a loopback (loopback.h) meets, drawn from a seed. */
#ifndef STRAIT_TRANSPORT_LOOPBACK_CHANCE_H
#define STRAIT_TRANSPORT_LOOPBACK_CHANCE_H

#include "transport/loopback.h"

enum fate {
    FATE_ARRIVES,
    FATE_LOST,
    FATE_FAILS,
    FATE_TRUNCATED,
    FATE_GARBLED,
    FATE_CORRUPTED,
    FATE_DOUBLED,
};

struct chance {
    struct loopback_faults faults;
    uint64_t dice; /* state of the generator */
};

struct chance chance_begin(const struct loopback_faults *faults);
uint64_t chance_roll(struct chance *chance);
enum fate chance_fate(struct chance *chance);
int64_t chance_delay_ns(struct chance *chance);

/* Reads the options of transport_create. ERR_INVALID. */
enum strait_status faults_read(const char *text, struct loopback_faults *faults);

#endif
