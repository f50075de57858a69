# Compiles tests/must_not_compile/misuse.cpp twice: as correct use, which must compile, and with its misuse, where every
# line that says MISUSE must have an error of its own.
#   cmake -D COMPILER=... -D INCLUDES="a|b" -D SOURCE=misuse.cpp -P check_misuse.cmake
string(REPLACE "|" ";" folders "${INCLUDES}")
list(REMOVE_ITEM folders /usr/include)  # the compiler's own, which must keep its place
list(TRANSFORM folders PREPEND "-isystem")
set(compile "${COMPILER}" -std=c++20 ${folders} -Werror=unused-result -fsyntax-only)

execute_process(COMMAND ${compile} "${SOURCE}" RESULT_VARIABLE failed ERROR_VARIABLE output)
if(failed)
    message(FATAL_ERROR "correct use does not compile:\n${output}")
endif()

execute_process(COMMAND ${compile} -DDECANT_MISUSE "${SOURCE}" ERROR_VARIABLE output)
file(READ "${SOURCE}" content)
string(REPLACE ";" "," content "${content}")
string(REPLACE "[" "(" content "${content}")
string(REPLACE "]" ")" content "${content}")
string(REPLACE "\n" ";" lines "${content}")
set(number 0)
set(cases 0)
foreach(line IN LISTS lines)
    math(EXPR number "${number} + 1")
    if(line MATCHES "// MISUSE$")
        math(EXPR cases "${cases} + 1")
        if(NOT output MATCHES "misuse.cpp:${number}:[0-9]+: error:")
            message(FATAL_ERROR "this compiles: ${line}\n${output}")
        endif()
    endif()
endforeach()
if(cases EQUAL 0)
    message(FATAL_ERROR "no cases found in ${SOURCE}")
endif()
message(STATUS "${cases} kinds of misuse do not compile")
