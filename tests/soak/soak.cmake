# The service under load, and the scenarios of shared arenas and restarts, with daemons of their own. The gate runs 15 s
# of it; `soak --daemon straitd --seconds 1200` is the release check.
add_executable(soak soak/main.c soak/world.c soak/move.c soak/scenarios.c soak/faults.c
    soak/faults_report.c soak/relay.c)
target_link_libraries(soak PRIVATE strait_client strait_test_daemon strait_test_certificates PkgConfig::XXHASH m)
target_compile_definitions(soak PRIVATE SOAK_UCX=$<BOOL:${STRAIT_HAVE_UCX}> SOAK_SLOWER=${STRAIT_TEST_SLOWER})

# strait_soak_test(NAME OPTIONS ... TIMEOUT seconds). Nothing runs beside: they look at the time that things take.
function(strait_soak_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "OPTIONS" ${ARGN})
    strait_add_test(${name} COMMAND soak --daemon $<TARGET_FILE:straitd> ${ARG_OPTIONS} LABELS soak
        TIMEOUT ${ARG_TIMEOUT})
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
endfunction()

math(EXPR soak_stall_ms "20 * ${STRAIT_TEST_SLOWER}")
if(STRAIT_SANITIZE MATCHES thread) # copies are watched byte by byte: its stalls say little
    math(EXPR soak_stall_ms "3 * ${soak_stall_ms}")
endif()
strait_soak_test(soak OPTIONS --seconds 15 --stall-ms ${soak_stall_ms} TIMEOUT 100)
strait_soak_test(soak_minute OPTIONS --seconds 60 --stall-ms ${soak_stall_ms} TIMEOUT 200)
strait_soak_test(soak_one_slot OPTIONS --scenario one-slot TIMEOUT 120)
strait_soak_test(soak_deadline OPTIONS --scenario deadline TIMEOUT 120)
strait_soak_test(soak_restart OPTIONS --scenario restart TIMEOUT 120)

# Faults of all kinds, in the nightly run. A longer look is `soak --scenario faults --transfers 100000 --seed N`.
set(soak_faults_long --scenario faults --transfers 10000 --concurrency 24)
strait_soak_test(soak_faults OPTIONS ${soak_faults_long} --transport tcp TIMEOUT 600)
strait_soak_test(soak_faults_sealed OPTIONS ${soak_faults_long} --transport tcp --host ::1
    --certificates --option encrypt-pages=yes TIMEOUT 600)
strait_soak_test(soak_faults_shm OPTIONS ${soak_faults_long} --transport shm TIMEOUT 600)
if(STRAIT_HAVE_UCX)
    strait_soak_test(soak_faults_ucx OPTIONS ${soak_faults_long} --transport ucx TIMEOUT 600)
endif()
