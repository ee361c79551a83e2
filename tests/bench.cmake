# `strait bench transfer` over the paths that this build has and that need no privileges.
if(STRAIT_TOOLS)
    strait_cli_test(bench_transfer TIMEOUT 120)
    set(bench_paths local,shm)
    if(STRAIT_HAVE_UCX)
        string(APPEND bench_paths ",tcp")
    endif()
    set_property(TEST bench_transfer APPEND PROPERTY ENVIRONMENT "BENCH_PATHS=${bench_paths}"
        "STRAITD=$<TARGET_FILE:straitd>" "UCX_MEM_EVENTS=no"
        "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0")
endif()
