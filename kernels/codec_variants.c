/* The variants of the codec, which of them this processor has, and which one NULL stands for. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/codec.h"

static bool always(void)
{
    return true;
}

#ifdef STRAIT_X86
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("bmi2");
}
#endif

#define CPU_CODEC(NAME, SUPPORTED)                                                                               \
    {                                                                                                            \
        .name = #NAME, .supported = SUPPORTED, .scratch_size = sizeof(struct cpu_scratch), .encode = cpu_encode, \
        .decode = cpu_decode, .blocks = &block_##NAME                                                            \
    }

/* Best first. */
static const struct strait_codec codecs[] = {
#ifdef STRAIT_X86
    CPU_CODEC(avx512, has_avx512),
    CPU_CODEC(avx2, has_avx2),
#endif
    CPU_CODEC(scalar, always),
};

#define CODEC_COUNT (sizeof(codecs) / sizeof(codecs[0]))

static const struct strait_codec *codec_by_name(const char *name)
{
    for (size_t i = 0; i < CODEC_COUNT; i++)
        if (strcmp(codecs[i].name, name) == 0 && codecs[i].supported())
            return &codecs[i];
    return NULL;
}

/* The variant that NULL stands for. Looked up only once, because another thread may change the environment. */
static const struct strait_codec *default_codec(void)
{
    static const struct strait_codec *_Atomic chosen;
    const struct strait_codec *codec = atomic_load_explicit(&chosen, memory_order_acquire);
    if (codec != NULL)
        return codec;
    const char *wanted = getenv("STRAIT_CODEC");
    codec = wanted == NULL ? NULL : codec_by_name(wanted);
    for (size_t i = 0; codec == NULL; i++)
        if (codecs[i].supported())
            codec = &codecs[i];
    atomic_store_explicit(&chosen, codec, memory_order_release);
    return codec;
}

const struct strait_codec *strait_codec_get(const char *name)
{
    if (name != NULL && strcmp(name, "cuda") == 0)
        return codec_cuda();
    return name != NULL ? codec_by_name(name) : default_codec();
}

const char *strait_codec_name_at(uint32_t index)
{
    return index < CODEC_COUNT ? codecs[index].name : NULL;
}

enum strait_status strait_codec_prepare(const struct strait_codec *codec)
{
    return codec == NULL || codec->device == NULL ? STRAIT_OK : codec->device->prepare();
}

const char *strait_version(void)
{
    return STRAIT_VERSION;
}

const char *strait_codec_name(const struct strait_codec *codec)
{
    return codec->name;
}

size_t strait_scratch_size(const struct strait_codec *codec)
{
    return (codec == NULL ? strait_codec_get(NULL) : codec)->scratch_size;
}
