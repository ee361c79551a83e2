/* What agents tell each other by notes of libstrait: notifications, and WRITEs that the target carries out. All numbers
 * are little-endian; a note has at most STRAIT_NOTE_BYTES_MAX bytes. */
#ifndef STRAIT_NIXL_NOTE_H
#define STRAIT_NIXL_NOTE_H

#include <cstdint>
#include <string>
#include <vector>

namespace strait_nixl
{

/* `count` pages from `to` on of the target's memory receive those from `from` on of the source's. */
struct Run {
    uint32_t to, from, count;
};

enum class Kind : uint8_t {
    NOTIFICATION = 1, /* agent, message */
    WRITE = 2,        /* agent, mailbox, id, pool, blob, deadline_ms, runs */
    WRITTEN = 3,      /* agent, id, reason */
};

struct Note {
    Kind kind = Kind::NOTIFICATION;
    std::string agent;   /* the sender's name */
    std::string message; /* a notification */
    std::string mailbox; /* the sender's pool, for the answer */
    uint64_t id = 0;     /* of a WRITE, chosen by the sender */
    std::string pool;    /* id of the target's pool: 16 bytes */
    std::string blob;    /* the source's pool */
    std::vector<Run> runs;
    /* In the same bytes, by kind: */
    uint32_t reason = 0;      /* of a WRITTEN, enum strait_reason; 0: all pages are in place */
    uint32_t deadline_ms = 0; /* of a WRITE: how long the target's read may take at most; 0: it says nothing */
};

constexpr size_t RUNS_MAX = 4096; /* of one note */

std::string pack(const Note &note);
/* False: no such note; what it holds then means nothing. */
bool unpack(const std::string &bytes, Note *note);

} // namespace strait_nixl

#endif
