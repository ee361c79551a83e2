/* What the tests of both halves of a leg share: what the last event did, and the books that every leg keeps. */
#ifndef STRAIT_TESTS_LEG_HARNESS_H
#define STRAIT_TESTS_LEG_HARNESS_H

#include <check.h>
#include <string.h>

#include "daemon/protocol/leg.h"
#include "tests/support.h"

/* ---- What the last event did ------------------------------------------------------------------------------------- */

extern struct leg_actions actions;

/* Exactly this. */
#define did(...)                                                           \
    do {                                                                   \
        static const enum leg_action_type types_[] = {__VA_ARGS__};        \
        ck_assert_uint_eq(actions.count, (uint32_t)COUNT(types_));         \
        for (int i_ = 0; i_ < COUNT(types_); i_++)                         \
            ck_assert_int_eq((int)actions.list[i_].type, (int)types_[i_]); \
    } while (0)

void did_nothing(void);
const struct leg_action *first(enum leg_action_type type); /* there must be one */

/* ---- Any event in any state -------------------------------------------------------------------------------------- */

/* What every leg keeps to, whatever happens: told once and in order, each slot that was given freed at most once. */
struct ledger {
    bool verdict, drained, closed;
    uint32_t state;
    int slots; /* in the leg's hands */
};

/* Books the actions of the last event: none may break what the ledger has. */
void keep(struct ledger *ledger);

/* Sorted by id, nothing behind the last. */
void check_table(const struct leg_grant *grants, uint32_t capacity, int slots);

/* Of any type from the one to the other. */
struct leg_event random_event(struct rng *rng, int from, int to);

/* Of a random grant that is there, mostly. */
uint64_t some_grant(struct rng *rng, const struct leg_grant *grants, uint32_t capacity, uint64_t other);

/* Runs the one case of a suite. */
int leg_main(const char *name, TCase *tcase);

#endif
