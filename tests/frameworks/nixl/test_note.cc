/* Notes between agents: what is packed comes back, and no bytes that are none make the reader read beyond them. */
#include "frameworks/nixl/note.h"

#include <cstdio>
#include <cstdlib>
#include <random>

#include <strait/strait.h>

using namespace strait_nixl;

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "failed: %s\n", what);
    exit(1);
}

static Note sample()
{
    Note note;
    note.kind = Kind::WRITE;
    note.agent = "prefill-0";
    note.message = std::string("a\0b", 3);
    note.mailbox = "mailbox";
    note.id = 0x0123456789abcdef;
    note.pool = std::string(STRAIT_POOL_ID_BYTES, 'p');
    note.blob = "blob";
    note.deadline_ms = 7;
    note.runs = {{1, 2, 3}, {0xffffffff, 0, 0xfffffffe}};
    return note;
}

static bool same(const Note &a, const Note &b)
{
    return pack(a) == pack(b);
}

int main()
{
    const std::string packed = pack(sample());
    Note back;
    require(unpack(packed, &back) && same(sample(), back), "a note comes back");
    require(back.deadline_ms == 7 && back.reason == 0, "with its deadline");
    require(back.runs.size() == 2 && back.runs[1].to == 0xffffffff && back.message.size() == 3, "with all it has");
    for (size_t cut = 0; cut < packed.size(); cut++)
        require(!unpack(packed.substr(0, cut), &back), "no beginning of a note is one");
    require(!unpack(packed + "x", &back), "nothing follows a note");
    Note many = sample();
    many.runs.resize(RUNS_MAX + 1);
    require(!unpack(pack(many), &back), "no more runs than allowed");
    Note no_pool = sample();
    no_pool.pool.pop_back();
    require(!unpack(pack(no_pool), &back), "a pool's id is whole");

    std::mt19937 random(1);
    int accepted = 0;
    for (int i = 0; i < 200000; i++) {
        std::string bytes = packed;
        for (unsigned k = random() % 4 + 1; k > 0; k--)
            bytes[random() % bytes.size()] = static_cast<char>(random());
        if (random() % 4 == 0)
            bytes.resize(random() % (bytes.size() + 1));
        std::string exact(bytes); /* no slack behind it */
        exact.shrink_to_fit();
        if (unpack(exact, &back)) {
            require(pack(back) == exact, "what is taken is what was sent");
            accepted++;
        }
    }
    require(accepted > 0, "some changes are harmless");
    printf("100%%: Checks: 200000, Failures: 0, Errors: 0\n");
    return 0;
}
