# Clients' memory as the daemon maps it, its own arenas, and the work on pages that runs on libuv's threads.

strait_component(memory
    SOURCES map.c pool.c pool_check.c pool_memory.c pool_use.c arena.c stream_copy.c job.c job_code.c job_copy.c
            codebook_option.c
    USES strait_kernels strait_proto strait_fault PkgConfig::UV)
