# Finds what Decant includes or builds its tests with: installed packages first, pinned sources otherwise.
#
# Eigen, xsimd and nlohmann-json are headers only. Whatever their packages define, Decant uses their include folders alone,
# through its own targets decant::eigen, decant::xsimd and decant::json (Debian's xsimd target, for one, asks for a library
# that no longer exists). Fetched sources are unpacked and their own CMake is not run. Folders given by the usual
# FETCHCONTENT_SOURCE_DIR_<EIGEN|XSIMD|JSON|CATCH2|BENCHMARK> win over both.
#
# The installed package configuration includes this file too, and then never fetches.

include_guard(GLOBAL)

if(POLICY CMP0135)
    cmake_policy(SET CMP0135 NEW)
endif()
if(POLICY CMP0169)
    cmake_policy(SET CMP0169 OLD)  # headers are wanted, not their projects: populate only
endif()

set(decant_eigen_package Eigen3)
set(decant_eigen_version 3.4.0)
set(decant_eigen_targets Eigen3::Eigen)
set(decant_eigen_header Eigen/Core)
set(decant_eigen_folders . include/eigen3)
set(decant_eigen_url https://gitlab.com/libeigen/eigen/-/archive/3.4.0/eigen-3.4.0.tar.bz2)
set(decant_eigen_sha256 b4c198460eba6f28d34894e3a5710998818515104d6e74e5cc331ce31e46e626)

set(decant_xsimd_package xsimd)
set(decant_xsimd_version 8.1.0)
set(decant_xsimd_targets xsimd xsimd::xsimd)
set(decant_xsimd_header xsimd/xsimd.hpp)
set(decant_xsimd_folders include)
set(decant_xsimd_url https://github.com/xtensor-stack/xsimd/archive/8.1.0.tar.gz)
set(decant_xsimd_sha256 d52551360d37709675237d2a0418e28f70995b5b7cdad7c674626bcfbbf48328)

set(decant_json_package nlohmann_json)
set(decant_json_version 3.11.2)
set(decant_json_targets nlohmann_json::nlohmann_json)
set(decant_json_header nlohmann/json.hpp)
set(decant_json_folders include single_include)
set(decant_json_url https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz)
set(decant_json_sha256 d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)

set(decant_catch2_url https://github.com/catchorg/Catch2/archive/v3.6.0.tar.gz)
set(decant_catch2_sha256 485932259a75c7c6b72d4b874242c489ea5155d17efa345eb8cc72159f49f356)

set(decant_benchmark_url https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz)
set(decant_benchmark_sha256 6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)

# Include folders of an installed package in `result`, or empty.
function(decant_find_headers name result)
    set(${result} "" PARENT_SCOPE)
    find_package(${decant_${name}_package} QUIET CONFIG)
    if(NOT ${decant_${name}_package}_FOUND)
        return()
    endif()
    if(${decant_${name}_package}_VERSION VERSION_LESS decant_${name}_version)
        message(STATUS "Decant: ${decant_${name}_package} ${${decant_${name}_package}_VERSION} is older than "
                       "${decant_${name}_version}, not used")
        return()
    endif()
    foreach(target IN LISTS decant_${name}_targets)
        if(TARGET ${target})
            get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
            if(folders)
                list(REMOVE_DUPLICATES folders)
                set(${result} "${folders}" PARENT_SCOPE)
                return()
            endif()
        endif()
    endforeach()
endfunction()

# Declares pinned sources, after saying what is about to be downloaded.
macro(decant_declare name)
    include(FetchContent)
    string(TOUPPER ${name} decant_upper)
    if(NOT FETCHCONTENT_SOURCE_DIR_${decant_upper})
        if(NOT DECANT_FETCH)
            message(FATAL_ERROR "Decant: ${name} is not installed and DECANT_FETCH is off. `./setup.sh deps` installs what "
                                "Decant needs, or set FETCHCONTENT_SOURCE_DIR_${decant_upper} to a local copy.")
        endif()
        message(STATUS "Decant: ${name} is not installed, fetching ${decant_${name}_url}")
    endif()
    FetchContent_Declare(${name} URL ${decant_${name}_url} URL_HASH SHA256=${decant_${name}_sha256})
endmacro()

# Include folder of fetched sources in `result`.
function(decant_fetch_headers name result)
    decant_declare(${name})
    FetchContent_GetProperties(${name})
    if(NOT ${name}_POPULATED)
        FetchContent_Populate(${name})
    endif()
    foreach(folder IN LISTS decant_${name}_folders)
        if(EXISTS "${${name}_SOURCE_DIR}/${folder}/${decant_${name}_header}")
            get_filename_component(folder "${${name}_SOURCE_DIR}/${folder}" ABSOLUTE)
            set(${result} "${folder}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "Decant: no ${decant_${name}_header} in ${${name}_SOURCE_DIR}")
endfunction()

# An imported target, so that compilers treat its folder as system headers.
function(decant_header_target name folders)
    if(NOT TARGET decant::${name})
        add_library(decant::${name} INTERFACE IMPORTED GLOBAL)
        target_include_directories(decant::${name} INTERFACE ${folders})
    endif()
endfunction()

# Defines decant::eigen, decant::xsimd, decant::json and Threads::Threads. The folders of fetched headers are listed in
# DECANT_FETCHED_<name>, which the install step copies.
macro(decant_header_dependencies)
    set(THREADS_PREFER_PTHREAD_FLAG ON)
    find_package(Threads REQUIRED)
    foreach(decant_name IN ITEMS eigen xsimd json)
        string(TOUPPER ${decant_name} decant_upper)
        set(decant_found "")
        if(NOT FETCHCONTENT_SOURCE_DIR_${decant_upper})
            decant_find_headers(${decant_name} decant_found)
        endif()
        if(NOT decant_found)
            decant_fetch_headers(${decant_name} decant_found)
            set(DECANT_FETCHED_${decant_name} "${decant_found}")
        endif()
        decant_header_target(${decant_name} "${decant_found}")
        message(STATUS "Decant: ${decant_name} from ${decant_found}")
    endforeach()
endmacro()
