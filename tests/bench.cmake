# `strait bench transfer` over the paths that this build has and that need no privileges.
if(STRAIT_TOOLS)
    strait_test(bench_wires USES bench LABELS unit)
    strait_test(bench_collective USES bench LABELS unit)
    strait_cli_test(bench_transfer TIMEOUT 120)
    set(bench_paths local,shm)
    if(STRAIT_HAVE_UCX)
        string(APPEND bench_paths ",tcp")
    endif()
    set_property(TEST bench_transfer APPEND PROPERTY ENVIRONMENT "BENCH_PATHS=${bench_paths}"
        "STRAITD=$<TARGET_FILE:straitd>")

    # `strait bench transfer --device`, with the fake GPUs of the tests below both the bench and its daemons.
    add_executable(bench_device bench_device.c fakes/gpu_memory.c)
    target_link_libraries(bench_device PRIVATE strait_bench)
    add_dependencies(bench_device straitd strait-fake-device strait-fake-nccl)
    strait_add_test(bench_device TIMEOUT 120 LABELS cli
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/bench_device.sh $<TARGET_FILE:bench_device>
                ${CMAKE_CURRENT_BINARY_DIR}/scratch/bench_device)
    set_property(TEST bench_device APPEND PROPERTY ENVIRONMENT "STRAITD=$<TARGET_FILE:straitd>"
        "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-fake-device>:$<TARGET_FILE_DIR:strait-fake-nccl>:$<TARGET_FILE_DIR:strait-node>"
        "BENCH_NCCL=$<BOOL:${STRAIT_HAVE_UCX}>")

    # `strait bench collective`, with the same GPUs and an NCCL that moves bytes between processes.
    add_executable(bench_collective bench_collective.c fakes/gpu_memory.c)
    target_link_libraries(bench_collective PRIVATE strait_bench)
    add_library(strait-moving-nccl SHARED collective/moving_nccl.c)
    target_link_libraries(strait-moving-nccl PRIVATE strait_options)
    set_target_properties(strait-moving-nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/moving_nccl)
    strait_add_test(bench_collective_run TIMEOUT 120 LABELS cli
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/bench_collective.sh $<TARGET_FILE:bench_collective>
                $<TARGET_FILE:strait-coll> $<TARGET_FILE:strait-moving-nccl>
                ${CMAKE_CURRENT_BINARY_DIR}/scratch/bench_collective)

    # bench/nccl_tests.sh, with scripts that print what nccl-tests prints: a sanitized library is not for a shell.
    if(NOT CMAKE_CROSSCOMPILING AND NOT STRAIT_SANITIZE)
        strait_add_test(nccl_tests TIMEOUT 60 LABELS cli
            COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/nccl_tests.sh $<TARGET_FILE:strait-coll>
                    ${CMAKE_CURRENT_BINARY_DIR}/scratch/nccl_tests)
    endif()
endif()
