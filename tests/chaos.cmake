# Daemons and clients that are killed, stopped and cut off, with every byte watched: tests/chaos/README.md. The full run is
# tests/chaos/run.sh.
add_executable(straitd-chaos ${PROJECT_SOURCE_DIR}/daemon/main.c chaos/inject.c)
target_link_libraries(straitd-chaos PRIVATE strait_node)
add_executable(chaos-driver chaos/main.c chaos/scenario.c chaos/places.c chaos/strike.c chaos/attack.c chaos/world.c
    chaos/pair.c chaos/check.c chaos/pages.c chaos/client.c)
target_link_libraries(chaos-driver PRIVATE strait_client strait_kernels)

set(chaos_transport shm)
if(STRAIT_HAVE_UCX)
    set(chaos_transport both)
endif()

# strait_chaos_test(NAME TIMEOUT seconds OPTIONS ...)
function(strait_chaos_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "OPTIONS" ${ARGN})
    strait_add_test(${name} COMMAND chaos-driver --daemon $<TARGET_FILE:straitd-chaos> --transport ${chaos_transport}
        --seed 1 ${ARG_OPTIONS} LABELS chaos TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "UCX_MEM_EVENTS=no"
        "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/lsan.supp:print_suppressions=0")
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
endfunction()

strait_chaos_test(chaos OPTIONS --local --hits 2 --seconds 220 TIMEOUT 240)

# It has to notice each of three bugs, by the rule that the bug breaks: in the states where that can be seen, as the
# whole table would take longer to come to them.
function(strait_chaos_bug name text)
    strait_chaos_test(chaos_${name} OPTIONS --bug ${name} --hits 40 --seconds 60 ${ARGN} TIMEOUT 90)
    set_tests_properties(chaos_${name} PROPERTIES
        PASS_REGULAR_EXPRESSION "chaos: FAIL: [0-9]+ violations, the first: ${text}")
endfunction()
set(wrong_bytes "transfer [0-9]+ is DONE, but page [0-9]+ of the sink has other bytes")
set(wrong_chunk "transfer [0-9]+ .the target. failed for nothing: source (chunk could not be decoded|checksum mismatch)")
strait_chaos_bug(acknowledge "${wrong_bytes}" --state 5)
strait_chaos_bug(epoch "(${wrong_bytes}|${wrong_chunk})" --fault 21 --state 2)
strait_chaos_bug(drained "page [0-9]+ of pool [^ ]+ changed, although nobody expects it" --state 7)
