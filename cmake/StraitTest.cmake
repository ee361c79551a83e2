# One line per test. Labels: unit, fuzz, cli, python, layering. A test that exits with 77 was skipped and says why.
set(STRAIT_TEST_SECONDS 30)
if(STRAIT_SANITIZE)
    set(STRAIT_TEST_SLOWER 6) # sanitizers take their time
elseif(CMAKE_CROSSCOMPILING)
    set(STRAIT_TEST_SLOWER 15) # so does an emulator
else()
    set(STRAIT_TEST_SLOWER 1)
endif()

# strait_add_test(NAME COMMAND ... LABELS ... [TIMEOUT seconds] [ENVIRONMENT ...]): what all tests have in common.
function(strait_add_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT ${STRAIT_TEST_SECONDS})
    endif()
    math(EXPR seconds "${ARG_TIMEOUT} * ${STRAIT_TEST_SLOWER}")
    add_test(NAME ${name} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${seconds} SKIP_RETURN_CODE 77
        ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()

# strait_test(NAME USES components ... LABELS ... [TIMEOUT seconds]): test_NAME.c, a Check program.
function(strait_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "USES;LABELS" ${ARGN})
    list(TRANSFORM ARG_USES PREPEND strait_)
    add_executable(test_${name} test_${name}.c)
    target_link_libraries(test_${name} PRIVATE ${ARG_USES} strait_test_support PkgConfig::CHECK)
    strait_add_test(${name} COMMAND test_${name} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# strait_script_test(NAME SCRIPT args ... LABELS ... [TIMEOUT seconds]): a script of this folder.
function(strait_script_test name script)
    cmake_parse_arguments(ARG "" "TIMEOUT" "ARGS;LABELS" ${ARGN})
    strait_add_test(${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${script} ${ARG_ARGS} LABELS ${ARG_LABELS}
        TIMEOUT ${ARG_TIMEOUT})
endfunction()
