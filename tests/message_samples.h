/* One message of every type, with a value of its own in every field, and what tells two messages apart. Shared by the
 * tests of messages and channels. */
#ifndef STRAIT_TESTS_MESSAGE_SAMPLES_H
#define STRAIT_TESTS_MESSAGE_SAMPLES_H

#include "proto/message.h"

struct sample {
    const char *name; /* message_name, and a word more where there are several of a type */
    struct message message;
};

extern const struct sample samples[];
extern const int sample_count;

const struct message *sample_of(const char *name);

/* Fails through require() on the first field that differs. */
void require_same_message(const struct message *a, const struct message *b);

#endif
