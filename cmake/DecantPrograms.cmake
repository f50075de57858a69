# Flags of Decant's own programs (tests, examples, benchmarks). Nothing here reaches a consumer.

add_library(decant_program INTERFACE)
target_link_libraries(decant_program INTERFACE decant::decant)
if(MSVC)
    target_compile_options(decant_program INTERFACE /W4 /utf-8 /permissive- $<$<BOOL:${DECANT_WERROR}>:/WX>)
else()
    target_compile_options(decant_program INTERFACE -Wall -Wextra -Wconversion $<$<BOOL:${DECANT_WERROR}>:-Werror>)
endif()
if(DECANT_SANITIZE)
    target_compile_options(decant_program INTERFACE -fsanitize=${DECANT_SANITIZE} -fno-sanitize-recover=all
                                                    -fno-omit-frame-pointer)
    target_link_options(decant_program INTERFACE -fsanitize=${DECANT_SANITIZE})
endif()

# The same with the kernels compiled once, which is most of what a program with a model takes to compile.
add_library(decant_kernels STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/kernels.cpp")
target_link_libraries(decant_kernels PUBLIC decant_program)
target_compile_definitions(decant_kernels PUBLIC DECANT_SEPARATE_KERNELS)
