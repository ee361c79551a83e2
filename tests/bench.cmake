# Benches on small data, those of GPUs with fakes below both the bench and its daemons.
if(STRAIT_TOOLS)
    strait_test(bench USES bench LABELS unit SOURCES fakes/gpu_memory.c)
    add_executable(bench_gpu bench_gpu.c fakes/gpu_memory.c)
    target_link_libraries(bench_gpu PRIVATE strait_bench)
    add_dependencies(bench_gpu straitd strait-fake-device strait-fake-nccl)
    set(bench_paths local,shm)
    if(STRAIT_HAVE_UCX)
        string(APPEND bench_paths ",tcp")
    endif()
    strait_add_test(bench_runs TIMEOUT 120 LABELS cli
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench.py $<TARGET_FILE:strait> $<TARGET_FILE:bench_gpu>
                $<TARGET_FILE:strait-coll> $<TARGET_FILE:strait-fake-nccl-processes> ${bench_paths})
    set_property(TEST bench_runs APPEND PROPERTY ENVIRONMENT "STRAITD=$<TARGET_FILE:straitd>"
        "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-fake-device>:$<TARGET_FILE_DIR:strait-fake-nccl>:$<TARGET_FILE_DIR:strait-node>"
        "BENCH_NCCL=$<BOOL:${STRAIT_HAVE_UCX}>")
endif()
