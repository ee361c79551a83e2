# Daemons and pools on real GPUs: built where CUDA is, skipped where no GPU is.
if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    add_executable(gpu_pools gpu/main.c gpu/scenes.c gpu/world.c gpu/vmm.c)
    target_link_libraries(gpu_pools PRIVATE strait-client strait_kernels strait_test_support CUDA::cudart_static)
    add_dependencies(gpu_pools straitd strait-cuda strait-node-cuda)
    strait_add_test(gpu_pools COMMAND gpu_pools $<TARGET_FILE:straitd> LABELS gpu TIMEOUT 600)

    # The NCCL transport needs no daemons: two processes, a GPU each.
    add_executable(gpu_nccl gpu/nccl.c gpu/nccl_side.c)
    target_link_libraries(gpu_nccl PRIVATE strait_transport strait_test_support CUDA::cudart_static)
    if(TARGET strait-transport-nccl)
        add_dependencies(gpu_nccl strait-transport-nccl)
    endif()
    strait_add_test(gpu_nccl COMMAND gpu_nccl LABELS gpu TIMEOUT 600)
endif()
