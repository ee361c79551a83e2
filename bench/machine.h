/* What the figures were measured on. */
#ifndef STRAIT_BENCH_MACHINE_H
#define STRAIT_BENCH_MACHINE_H

#define MACHINE_TEXT_BYTES 128

struct machine {
    char cpu[MACHINE_TEXT_BYTES];   /* model name; "unknown" when the system does not tell, as in the other fields */
    char cache[MACHINE_TEXT_BYTES]; /* size of the level-3 cache */
    char kernel[MACHINE_TEXT_BYTES];
    char huge_pages[MACHINE_TEXT_BYTES]; /* transparent ones: always, madvise or never */
    const char *compiler;
    const char *version;
    const char *commit;
    unsigned processors; /* that this process may use */
    double load;         /* of the last minute; negative when unknown */
};

void machine_describe(struct machine *machine);

#endif
