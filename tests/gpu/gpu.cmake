# Daemons and pools on real GPUs: built where CUDA is, skipped where no GPU is.
if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)

    # Preloaded into nccl-tests (bench/nccl_tests.sh), with which it has to share the CUDA runtime.
    add_library(strait-nccl-tests-data SHARED gpu/nccl_tests_data.cu)
    set_target_properties(strait-nccl-tests-data PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Shared)

    add_executable(gpu_pools gpu/scenes.c gpu/links.c gpu/faults.c gpu/world.c $<TARGET_OBJECTS:chaos_gpu>)
    target_link_libraries(gpu_pools PRIVATE strait-client strait_test_daemon CUDA::cudart_static)
    add_dependencies(gpu_pools straitd strait-cuda strait-node strait-node-cuda chaos-cuda)
    if(TARGET strait-transport-nccl)
        add_dependencies(gpu_pools strait-transport-nccl)
        target_compile_definitions(gpu_pools PRIVATE STRAIT_HAVE_NCCL=1)
    endif()
    if(STRAIT_HAVE_UCX)
        target_compile_definitions(gpu_pools PRIVATE STRAIT_HAVE_UCX=1)
    endif()
    set(gpu_environment "GPU_TEST_PLUGIN=$<TARGET_FILE_DIR:chaos-cuda>"
        "GPU_TEST_BEHIND=$<TARGET_FILE:strait-node-cuda>" "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-node>")
    strait_add_test(gpu_pools COMMAND gpu_pools $<TARGET_FILE:straitd> LABELS gpu TIMEOUT 600
        ENVIRONMENT ${gpu_environment})
    # A few transfers of daemons under compute-sanitizer, which watches every access of their kernels.
    find_program(COMPUTE_SANITIZER compute-sanitizer HINTS ${CUDAToolkit_BIN_DIR})
    if(COMPUTE_SANITIZER)
        strait_add_test(gpu_sanitizer COMMAND gpu_pools $<TARGET_FILE:straitd> few LABELS gpu TIMEOUT 300 ENVIRONMENT
            ${gpu_environment} "GPU_TEST_UNDER=${COMPUTE_SANITIZER} --tool memcheck --report-api-errors no --error-exitcode 97")
    else()
        strait_add_test(gpu_sanitizer COMMAND sh -c "echo 'skipped: no compute-sanitizer here'; exit 77" LABELS gpu)
    endif()

    # The NCCL transport needs no daemons: two processes, a GPU each.
    add_executable(gpu_nccl gpu/nccl.c)
    target_link_libraries(gpu_nccl PRIVATE strait_transport strait_test_support CUDA::cudart_static)
    if(TARGET strait-transport-nccl)
        add_dependencies(gpu_nccl strait-transport-nccl)
    endif()
    strait_add_test(gpu_nccl COMMAND gpu_nccl LABELS gpu TIMEOUT 600)

    # Checkpoints of tensors on GPUs.
    add_executable(gpu_checkpoint gpu/checkpoint.c)
    target_link_libraries(gpu_checkpoint PRIVATE strait_options strait-checkpoint CUDA::cudart_static)
    add_dependencies(gpu_checkpoint strait-checkpoint-cuda strait-cuda)
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/gpu_checkpoint.d)
    strait_add_test(gpu_checkpoint COMMAND gpu_checkpoint ${CMAKE_CURRENT_BINARY_DIR}/gpu_checkpoint.d 256 LABELS gpu TIMEOUT 300
        ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-cuda>")

    # Expert parallelism, and its phases alone, one after another on one GPU.
    add_executable(gpu_ep gpu/ep.c gpu/ep_sides.c gpu/ep_quantize.c gpu/ep_times.c ep/world.c)
    target_link_libraries(gpu_ep PRIVATE strait_options strait_test_support strait-ep Threads::Threads CUDA::cudart_static)
    add_dependencies(gpu_ep strait-ep-cuda strait-cuda)
    strait_add_test(gpu_ep COMMAND gpu_ep LABELS gpu TIMEOUT 600
        ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-ep-cuda>")
    add_executable(gpu_ep_phases ep/phases_cuda.c ${PROJECT_SOURCE_DIR}/ep/cuda/coder.c
        ${PROJECT_SOURCE_DIR}/ep/cuda/memory.c ${PROJECT_SOURCE_DIR}/ep/cuda/side_stream.c
        ${PROJECT_SOURCE_DIR}/ep/cuda/run.c)
    target_compile_definitions(gpu_ep_phases PRIVATE _GNU_SOURCE)
    add_dependencies(gpu_ep_phases strait-cuda)
    target_link_libraries(gpu_ep_phases PRIVATE strait_ep_phases_cuda strait_ep strait_kernels strait_test_support)
    target_include_directories(gpu_ep_phases SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    strait_add_test(gpu_ep_phases COMMAND gpu_ep_phases 1000 LABELS gpu TIMEOUT 600
        ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-cuda>")

    # gpu_collective_NAME, of ranks on GPUs, and fake_collective_NAME, the same on fake GPUs, with ranks that are threads.
    foreach(name kill join overflow order rings calls)
        set(sources gpu/collective_${name}.c gpu/collective_world.c coll_engine/values.c)
        add_executable(gpu_collective_${name} ${sources})
        target_link_libraries(gpu_collective_${name} PRIVATE strait_test_support strait_coll_reduce CUDA::cudart_static
            Threads::Threads ${CMAKE_DL_LIBS})
        add_dependencies(gpu_collective_${name} strait-coll strait-coll-cuda)
        if(NOT name STREQUAL kill) # of ranks that are processes
            add_executable(fake_collective_${name} ${sources} fakes/cudart.c)
            target_compile_definitions(fake_collective_${name} PRIVATE ON_FAKE_GPUS)
            target_include_directories(fake_collective_${name} PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
            target_link_libraries(fake_collective_${name} PRIVATE strait_test_support strait_coll_reduce
                strait-fake-gpu Threads::Threads ${CMAKE_DL_LIBS})
            add_dependencies(fake_collective_${name} strait-coll-tested strait-coll-fake-plugin strait-coll-fake-nccl)
        endif()
    endforeach()

    # strait_ranks_test(NAME TIMEOUT seconds [SCENES ...]): on GPUs.
    function(strait_ranks_test name timeout)
        strait_add_test(gpu_collective_${name} COMMAND gpu_collective_${name} $<TARGET_FILE:strait-coll> ${ARGN} LABELS gpu
            TIMEOUT ${timeout} ENVIRONMENT "STRAIT_COLL=compress")
    endfunction()
    # strait_fake_ranks_test(NAME WAY ARGUMENTS ...): on fake GPUs.
    function(strait_fake_ranks_test name way)
        strait_add_test(coll_${name}_program COMMAND fake_collective_${name} ${ARGN} LABELS collective TIMEOUT 240
            ENVIRONMENT "STRAIT_COLL=${way};STRAIT_COLL_NCCL=$<TARGET_FILE:strait-coll-fake-nccl>")
    endfunction()
    # A rank that dies: NCCL alone need not tell, but lets go; so has libstrait-coll.
    strait_add_test(gpu_collective_kill COMMAND gpu_collective_kill $<TARGET_FILE:strait-coll> LABELS gpu TIMEOUT 300)
    # How communicators join and end.
    strait_ranks_test(join 240 late bare full beside)
    strait_fake_ranks_test(join compress --threads $<TARGET_FILE:strait-coll-tested> times late full beside)
    # What does not fit; groups; more than the rings hold, beside cudaFree, grouped on one side only.
    foreach(name overflow order rings)
        strait_ranks_test(${name} 600)
        strait_fake_ranks_test(${name} compress --threads $<TARGET_FILE:strait-coll-tested>)
    endforeach()
    # The same of two hosts with two ranks each, whose sums go by rail.
    foreach(name overflow order)
        strait_add_test(coll_${name}_program_hosts2 COMMAND fake_collective_${name} --threads --ranks=4
            $<TARGET_FILE:strait-coll-tested> LABELS collective TIMEOUT 240
            ENVIRONMENT "STRAIT_COLL=compress;STRAIT_COLL_NCCL=$<TARGET_FILE:strait-coll-fake-nccl>;STRAIT_TEST_HOSTS=2;NCCL_SOCKET_IFNAME=lo")
    endforeach()
    # What calls cost that are passed on. On fake GPUs only to see that it runs.
    strait_fake_ranks_test(calls auto $<TARGET_FILE:strait-coll-tested> $<TARGET_FILE:strait-coll-fake-nccl> 1 2)

    strait_add_test(gpu_collective_pytorch COMMAND ${PROJECT_SOURCE_DIR}/examples/collective_pytorch.sh
        $<TARGET_FILE:strait-coll> LABELS gpu TIMEOUT 300)
endif()
