/* A client and its daemon: versions and addresses, notes, statistics and policy. */
#include "proto/fields.h"

static enum strait_status hello_check(const void *plain)
{
    const struct message_hello *hello = plain;
    return corrupt_unless(hello->version_min <= hello->version);
}

#define HELLO struct message_hello, Strait__Wire__Hello
static const struct field hello_fields[] = {
    U32(HELLO, version, 1, UINT32_MAX),
    U32(HELLO, version_min, 1, UINT32_MAX),
    U32(HELLO, pid, 0, UINT32_MAX),
    TEXT(HELLO, library),
};
const struct layout hello_layout = LAYOUT(HELLO, hello, hello_fields, hello_check);

#define WELCOME struct message_welcome, Strait__Wire__Welcome
static const struct field welcome_fields[] = {
    U32(WELCOME, version, 1, UINT32_MAX),
    NOT_ZERO(WELCOME, incarnation),
    ADDRESS(WELCOME, address),
    BYTES_OR_NONE(WELCOME, codebook_id, CODEBOOK_ID_BYTES),
    TEXT(WELCOME, daemon),
    U64(WELCOME, node),
};
const struct layout welcome_layout = LAYOUT(WELCOME, welcome, welcome_fields, NULL);

#define NOTIFY struct message_notify, Strait__Wire__Notify
static const struct field notify_fields[] = {
    POOL(NOTIFY, peer_pool),
    ADDRESS(NOTIFY, peer_address),
    BYTES(NOTIFY, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(NOTIFY, data, 0, STRAIT_NOTE_BYTES_MAX),
};
const struct layout notify_layout = LAYOUT(NOTIFY, notify, notify_fields, NULL);

#define NOTE struct message_note, Strait__Wire__Note
static const struct field note_fields[] = {
    POOL(NOTE, pool),
    BYTES(NOTE, key, 0, STRAIT_KEY_BYTES_MAX),
    BYTES(NOTE, data, 0, STRAIT_NOTE_BYTES_MAX),
};
const struct layout note_layout = LAYOUT(NOTE, note, note_fields, NULL);

const struct layout stats_layout = {.wire = &strait__wire__stats__descriptor};

/* For machines, so it is never cut. */
#define STATS_TEXT struct message_text, Strait__Wire__Text
static const struct field stats_text_fields[] = {
    NAME(STATS_TEXT, text, MESSAGE_BYTES_MAX),
};
const struct layout stats_text_layout = LAYOUT(STATS_TEXT, text, stats_text_fields, NULL);

#define WORDS struct message_words, Strait__Wire__Words
static const struct field words_fields[] = {
    U32(WORDS, count, 1, MESSAGE_WORDS_MAX),
};
const struct layout words_layout = LAYOUT(WORDS, words, words_fields, NULL);

#define WAIT struct message_wait, Strait__Wire__Wait
static const struct field wait_fields[] = {
    U64(WAIT, transfer),
    I32(WAIT, layer, -1, INT32_MAX),
    U32(WAIT, word, 0, MESSAGE_WORDS_MAX - 1),
    U32(WAIT, value, 0, UINT32_MAX),
};
const struct layout wait_layout = LAYOUT(WAIT, wait, wait_fields, NULL);

#define POLICY struct message_policy, Strait__Wire__Policy
static const struct field policy_fields[] = {
    POOL(POLICY, pool),
    KNOWN(POLICY, coding, STRAIT_CODING_AUTO, STRAIT_CODING_TIERED),
};
const struct layout policy_layout = LAYOUT(POLICY, policy, policy_fields, NULL);
