#include "frameworks/nixl/note.h"

#include <strait/strait.h>

namespace strait_nixl
{

template <typename Number> static void put(std::string &bytes, Number number)
{
    for (size_t i = 0; i < sizeof(number); i++)
        bytes.push_back(static_cast<char>(static_cast<uint64_t>(number) >> 8 * i & 0xff));
}

static void put_text(std::string &bytes, const std::string &text)
{
    put(bytes, static_cast<uint32_t>(text.size()));
    bytes += text;
}

/* Reads from the front of foreign bytes. After anything that is not there, `good` is false, and all that follows 0. */
struct Reader {
    const std::string &bytes;
    size_t at = 0;
    bool good = true;

    template <typename Number> Number number()
    {
        uint64_t value = 0;
        good = good && bytes.size() - at >= sizeof(Number);
        for (size_t i = 0; good && i < sizeof(Number); i++)
            value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[at + i])) << 8 * i;
        at += good ? sizeof(Number) : 0;
        return static_cast<Number>(value);
    }

    std::string text(size_t most)
    {
        const uint32_t size = number<uint32_t>();
        good = good && size <= most && bytes.size() - at >= size;
        std::string read = good ? bytes.substr(at, size) : std::string();
        at += read.size();
        return read;
    }
};

std::string pack(const Note &note)
{
    std::string bytes;
    put(bytes, static_cast<uint8_t>(note.kind));
    put_text(bytes, note.agent);
    put_text(bytes, note.message);
    put_text(bytes, note.mailbox);
    put(bytes, note.id);
    put_text(bytes, note.pool);
    put_text(bytes, note.blob);
    put(bytes, note.kind == Kind::WRITE ? note.deadline_ms : note.reason);
    put(bytes, static_cast<uint32_t>(note.runs.size()));
    for (const Run &run : note.runs) {
        put(bytes, run.to);
        put(bytes, run.from);
        put(bytes, run.count);
    }
    return bytes;
}

bool unpack(const std::string &bytes, Note *note)
{
    Reader reader = {bytes};
    const uint8_t kind = reader.number<uint8_t>();
    note->kind = static_cast<Kind>(kind);
    note->agent = reader.text(bytes.size());
    note->message = reader.text(bytes.size());
    note->mailbox = reader.text(bytes.size());
    note->id = reader.number<uint64_t>();
    note->pool = reader.text(STRAIT_POOL_ID_BYTES);
    note->blob = reader.text(bytes.size());
    (note->kind == Kind::WRITE ? note->deadline_ms : note->reason) = reader.number<uint32_t>();
    const uint32_t runs = reader.number<uint32_t>();
    if (!reader.good || kind < 1 || kind > 3 || runs > RUNS_MAX)
        return false;
    note->runs.clear();
    for (uint32_t i = 0; i < runs; i++) {
        Run run;
        run.to = reader.number<uint32_t>();
        run.from = reader.number<uint32_t>();
        run.count = reader.number<uint32_t>();
        note->runs.push_back(run);
    }
    return reader.good && reader.at == bytes.size() &&
           (note->kind != Kind::WRITE || note->pool.size() == STRAIT_POOL_ID_BYTES);
}

} // namespace strait_nixl
