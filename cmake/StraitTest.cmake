# One line per test. Labels: unit, service, collective, fuzz, cli, python, chaos, soak, gpu, layering, packaging; and long (tests/long.cmake),
# which the presets leave out and tests/nightly.sh runs. A test that exits with 77 was skipped and says why.
set(STRAIT_TEST_SECONDS 30)
if(STRAIT_SANITIZE)
    set(STRAIT_TEST_SLOWER 6) # sanitizers take their time
elseif(CMAKE_CROSSCOMPILING)
    set(STRAIT_TEST_SLOWER 15) # so does an emulator
else()
    set(STRAIT_TEST_SLOWER 1)
endif()

# UCX's memory hooks do not get on with the thread sanitizer, and it leaks a little.
set(STRAIT_TEST_ENVIRONMENT "UCX_MEM_EVENTS=no"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:print_suppressions=0")

# strait_add_test(NAME COMMAND ... LABELS ... [TIMEOUT seconds] [ENVIRONMENT ...]): properties that all tests share.
function(strait_add_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT ${STRAIT_TEST_SECONDS})
    endif()
    if(name IN_LIST STRAIT_LONG_TESTS)
        list(APPEND ARG_LABELS long)
    endif()
    math(EXPR seconds "${ARG_TIMEOUT} * ${STRAIT_TEST_SLOWER}")
    add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    math(EXPR patience "10 * ${STRAIT_TEST_SLOWER}") # Check gives each case 4 seconds, and machines are shared
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${seconds} SKIP_RETURN_CODE 77
        ENVIRONMENT "CK_TIMEOUT_MULTIPLIER=${patience};${STRAIT_TEST_ENVIRONMENT};${ARG_ENVIRONMENT}")
    if(name IN_LIST STRAIT_FIRST_TESTS)
        set_tests_properties(${name} PROPERTIES COST 100)
    endif()
endfunction()

# strait_test(NAME USES components ... LABELS ... [SOURCES more ...] [TIMEOUT seconds] [ALONE]): test_NAME.c, a Check program.
# ALONE: what it tests starts no threads. ThreadSanitizer would find nothing there, slowly, or the races that a test makes
# on purpose, so it is left out.
function(strait_test name)
    cmake_parse_arguments(ARG "ALONE" "TIMEOUT" "USES;LABELS;SOURCES" ${ARGN})
    if(ARG_ALONE AND STRAIT_SANITIZE MATCHES thread)
        return()
    endif()
    list(TRANSFORM ARG_USES PREPEND strait_)
    add_executable(test_${name} test_${name}.c ${ARG_SOURCES})
    target_link_libraries(test_${name} PRIVATE ${ARG_USES} strait_test_support PkgConfig::CHECK)
    strait_add_test(${name} COMMAND test_${name} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# strait_cli_test(NAME [TIMEOUT seconds]): NAME.sh, told where the strait command and a scratch folder are.
function(strait_cli_test name)
    strait_add_test(${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${name}.sh $<TARGET_FILE:strait>
        ${CMAKE_CURRENT_BINARY_DIR}/${name} LABELS cli ${ARGN})
endfunction()

# strait_python_test(NAME NEEDS modules ... COMMAND arguments of python3 ... [TIMEOUT seconds]): skipped, with the reason,
# where python3 or a module is missing. Not of sanitized or foreign builds: their library does not load into python3.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_EXECUTABLE)
    set(Python3_EXECUTABLE python3)
endif()
set(STRAIT_RUN_PYTHON [[
"$0" -c "import $1" || {
    echo "skipped: $0 lacks one of: $1"
    exit 77
}
shift
exec "$0" "$@"]])
function(strait_python_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;NEEDS" ${ARGN})
    if(STRAIT_SANITIZE OR CMAKE_CROSSCOMPILING)
        return()
    endif()
    string(JOIN ", " modules ${ARG_NEEDS})
    strait_add_test(${name} LABELS python TIMEOUT ${ARG_TIMEOUT}
        COMMAND sh -c ${STRAIT_RUN_PYTHON} ${Python3_EXECUTABLE} ${modules} ${ARG_COMMAND}
        ENVIRONMENT "STRAIT_LIBRARY=$<TARGET_FILE:strait-codec>" "STRAIT_CLIENT_LIBRARY=$<TARGET_FILE:strait-client>"
                    "STRAIT_CHECKPOINT_LIBRARY=$<TARGET_FILE:strait-checkpoint>" "STRAIT_EP_LIBRARY=$<TARGET_FILE:strait-ep>"
                    "STRAITD=$<TARGET_FILE:straitd>" "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:strait-node>" "PYTHONPATH=${PROJECT_SOURCE_DIR}/python"
                    "PYTHONDONTWRITEBYTECODE=1")
endfunction()
