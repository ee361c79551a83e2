# Daemons and clients that are killed, stopped and cut off, with every byte watched: tests/chaos/README.md. The full run is
# tests/chaos/run.sh.
add_executable(straitd-chaos ${PROJECT_SOURCE_DIR}/daemon/main.c chaos/inject.c chaos/hold.c)
target_link_libraries(straitd-chaos PRIVATE strait_node)
add_executable(chaos-driver chaos/main.c chaos/scenario.c chaos/world.c chaos/pages.c chaos/client.c)
target_link_libraries(chaos-driver PRIVATE strait_client strait_test_daemon)
target_compile_definitions(chaos-driver PRIVATE CHAOS_UCX=$<BOOL:${STRAIT_HAVE_UCX}>)

# strait_chaos_plugin(NAME SOURCES ...): in front of the daemon's plugin for devices, found before it by the same name.
function(strait_chaos_plugin name)
    add_library(${name} SHARED chaos/plugin.c chaos/hold.c ${ARGN})
    target_link_libraries(${name} PRIVATE strait_options Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(${name} PROPERTIES OUTPUT_NAME strait-node-cuda VERSION ${PROJECT_VERSION} SOVERSION 0
        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})
endfunction()
strait_chaos_plugin(chaos-fake)
add_dependencies(chaos-driver straitd-chaos chaos-fake strait-fake-device)

if(STRAIT_HAVE_CUDA)
    find_package(CUDAToolkit REQUIRED)
    # Apart: nvcc does not know the options of C.
    add_library(chaos_gpu OBJECT chaos/gpu.cu)
    target_include_directories(chaos_gpu PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
    set_target_properties(chaos_gpu PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
        POSITION_INDEPENDENT_CODE ON)
    target_sources(chaos-driver PRIVATE $<TARGET_OBJECTS:chaos_gpu>)
    target_compile_definitions(chaos-driver PRIVATE TESTS_CHAOS_CUDA)
    strait_chaos_plugin(chaos-cuda $<TARGET_OBJECTS:chaos_gpu>)
    foreach(target chaos-driver chaos-cuda)
        target_link_libraries(${target} PRIVATE CUDA::cudart_static)
    endforeach()
    add_dependencies(chaos-driver chaos-cuda strait-cuda strait-node-cuda)
endif()

set(chaos_seed 1)
if(STRAIT_SANITIZE MATCHES thread) # other parts of the table than with the other sanitizers
    set(chaos_seed 2)
endif()

# strait_chaos_test(NAME TIMEOUT seconds OPTIONS ...)
function(strait_chaos_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "OPTIONS" ${ARGN})
    strait_add_test(${name} COMMAND chaos-driver --daemon $<TARGET_FILE:straitd-chaos> --seed ${chaos_seed}
        ${ARG_OPTIONS} LABELS chaos TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
        "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan-chaos.supp:print_suppressions=0")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
    if(STRAIT_SANITIZE) # what a second suffices for takes longer than that beside other tests
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
endfunction()

# As much of the table as there is time for; then all of it, and with pools in memory of the fake devices, and of GPUs
# where there are any. Sanitizers make the whole table take many minutes: parts of it there, too.
set(chaos_part --seconds 25 --partly)
set(chaos_whole --seconds 220)
set(chaos_wire --seconds 150 --partly)
if(STRAIT_SANITIZE)
    set(chaos_part --seconds 40 --partly)
    set(chaos_whole --seconds 220 --partly)
endif()
set(chaos_fake --memory fake --plugin $<TARGET_FILE_DIR:chaos-fake> --behind $<TARGET_FILE:strait-fake-device>)
strait_chaos_test(chaos OPTIONS --local --hits 2 ${chaos_part} TIMEOUT 90)
strait_chaos_test(chaos_table OPTIONS --local --hits 2 ${chaos_whole} TIMEOUT 240)
strait_chaos_test(chaos_device OPTIONS ${chaos_fake} --local --hits 1 ${chaos_whole} TIMEOUT 240)
if(STRAIT_HAVE_UCX)
    add_dependencies(chaos-driver strait-fake-nccl)
    strait_chaos_test(chaos_nccl OPTIONS ${chaos_fake} --hits 1 ${chaos_wire} --straitd --gpu-wires=nccl
        --straitd "--nccl-options=tls=tcp devices=lo timeout_ms=1000" TIMEOUT 200)
    set_property(TEST chaos_nccl APPEND PROPERTY ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-fake-nccl>")
    strait_chaos_test(chaos_ucx OPTIONS ${chaos_fake} --hits 1 ${chaos_wire} --straitd --gpu-wires=ucx TIMEOUT 200)
endif()
if(STRAIT_HAVE_CUDA)
    strait_chaos_test(chaos_gpu OPTIONS --memory cuda --plugin $<TARGET_FILE_DIR:chaos-cuda>
        --behind $<TARGET_FILE:strait-node-cuda> --local --hits 1 --seconds 60 --partly TIMEOUT 120)
    set_tests_properties(chaos_gpu PROPERTIES LABELS gpu)
endif()
