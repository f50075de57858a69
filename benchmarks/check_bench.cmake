# Runs decant-bench on a small model and looks at the form of what it prints, and at what it refuses.
# usage: cmake -D PROGRAM=<decant-bench> -D MODEL=<file> -P check_bench.cmake

cmake_minimum_required(VERSION 3.22)

function(expect wanted_code wanted)
    execute_process(COMMAND "${PROGRAM}" --model "${MODEL}" --threads 2 ${ARGN}
                    RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE error)
    if(NOT code STREQUAL wanted_code)
        message(FATAL_ERROR "${ARGN}: exit code ${code} instead of ${wanted_code}\n${output}${error}")
    endif()
    if(code EQUAL 0)
        set(text "${output}")
    else()
        set(text "${error}")
    endif()
    if(NOT text MATCHES "${wanted}")
        message(FATAL_ERROR "${ARGN}: expected a match of\n${wanted}\nin\n${text}")
    endif()
endfunction()

set(speed "[1-9][0-9]*\\.[0-9][0-9]")
set(tests pp8,tg2,bd2,pp8@20,tg2@20,bd2@20)
expect(0 "^pp8,${speed}\ntg2,${speed}\nbd2,${speed}\npp8@20,${speed}\ntg2@20,${speed}\nbd2@20,${speed}\n$" --tests ${tests} --csv)
expect(0 "^pp8,${speed}\n$" --tests pp8 --isa portable --repeat 1 --csv)
set(share " +[0-9.]+ % of [1-9][0-9.]* (GB/s read|GMAC/s [a-z0-9]+)")
expect(0 "\npp8 +${speed}${share}\ntg2 +${speed}${share}\nbd2 +${speed}${share}\n$" --tests pp8,tg2,bd2)

expect(2 "unknown option --speed" --speed 1)
expect(2 "unknown test \"xx8\"" --tests pp8,xx8)
expect(2 "unknown test \"\"" --tests pp8,)
expect(2 "\"0\" is not a whole number" --tests pp0)
expect(2 "\"8x\" is not a whole number" --tests tg2@8x)
expect(2 "--tests needs a value" --tests)
expect(2 "--threads takes a whole number" --threads 0)
expect(2 "--repeat takes a whole number" --repeat many)
expect(2 "--isa takes one of portable" --isa sse)
expect(1 "there is no such file" --model "${MODEL}.missing")
