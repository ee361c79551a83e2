/* Shared by the tests of both halves of a leg: the actions of the last event, and the rules that every leg follows. */
#ifndef STRAIT_TESTS_LEG_HARNESS_H
#define STRAIT_TESTS_LEG_HARNESS_H

#include <check.h>
#include <string.h>

#include "daemon/protocol/leg.h"
#include "tests/support.h"

/* ---- What the last event did ------------------------------------------------------------------------------------- */

extern struct leg_actions actions;

/* Requires that the last event did exactly this. */
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

/* Rules for every leg, whatever happens: reports come once and in order, each slot given is freed at most once. */
struct ledger {
    bool verdict, drained, closed;
    uint32_t state;
    int slots; /* that the leg holds */
};

/* Records the actions of the last event; none may contradict the ledger. */
void keep(struct ledger *ledger);

/* Requires grants sorted by id, and nothing after the last. */
void check_table(const struct leg_grant *grants, uint32_t capacity, int slots);

/* An event of any type in from..to. */
struct leg_event random_event(struct rng *rng, int from, int to);

/* Mostly the id of a random existing grant. */
uint64_t some_grant(struct rng *rng, const struct leg_grant *grants, uint32_t capacity, uint64_t other);

/* Runs the one case of a suite. */
int leg_main(const char *name, TCase *tcase);

#endif
