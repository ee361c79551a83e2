/* One message of every type, with a different value in every field, and a comparison of messages. Shared by the tests
 * of messages and channels. */
#ifndef STRAIT_TESTS_MESSAGE_SAMPLES_H
#define STRAIT_TESTS_MESSAGE_SAMPLES_H

#include "proto/message.h"

struct sample {
    const char *name; /* message_name, plus a word if there are several of a type */
    struct message message;
};

extern const struct sample samples[];
extern const int sample_count;

const struct message *sample_of(const char *name);

/* Fails through require() on the first field that differs. */
void require_same_message(const struct message *a, const struct message *b);

#endif
