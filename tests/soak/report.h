/* What all parts of the soak test have in common: the clock, and what is said when a rule is broken. */
#ifndef STRAIT_TESTS_SOAK_REPORT_H
#define STRAIT_TESTS_SOAK_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#define MIB (UINT64_C(1) << 20)

double now_seconds(void); /* monotonic */
uint64_t now_ms(void);

/* A rule was broken: told on stderr (the first ones), and counted. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint32_t complaints(void);

/* So many that nothing is learned from going on. */
bool too_many_complaints(void);

#endif
