#!/bin/sh
# Copyright the Decant authors. Distributed under the Boost Software License, Version 1.0.
# Runs a program under a memory limit and says how it lived with it. Linux, cgroup v1 or v2.
#
#     benchmarks/memory_limit.sh LIMIT COMMAND [ARGUMENT...]
#
# LIMIT is in bytes, or with K, M or G (powers of 1024). The limit counts everything: pages of mapped files too, as far
# as the command is the first to read them. The exit status is the command's, 137 if the system ended it for lack of
# memory, 125 if no limit could be set. The control group that this makes is removed at the end.

# shellcheck disable=SC2317  # called by a trap
set -u

fail() {
    echo "memory_limit.sh: $1" >&2
    exit 125
}

[ $# -ge 2 ] || fail "usage: memory_limit.sh LIMIT COMMAND [ARGUMENT...]"
limit=$1
shift
case ${limit%[KMG]} in
    '' | *[!0-9]*) fail "the limit \"$limit\" is not a number of bytes, with K, M or G at most" ;;
esac
advice="Run it as root, or ask systemd: systemd-run --user --scope -p MemoryMax=$limit -p MemorySwapMax=0 COMMAND"

# The parent of the new group: our own group, so that limits around us still hold. Version 2 allows no group beside
# processes, so there it is the nearest ancestor that hands memory control on.
mount_of() { awk -v type="$1" -v option="$2" '$3 == type && "," $4 "," ~ "," option "," { print $2; exit }' /proc/mounts; }
if root=$(mount_of cgroup memory) && [ -n "$root" ]; then
    version=1
    parent=$root$(sed -n 's/^[0-9]*:[^:]*\bmemory\b[^:]*://p' /proc/self/cgroup)
    [ -d "$parent" ] || parent=$root
elif root=$(mount_of cgroup2 '.*') && [ -n "$root" ]; then
    version=2
    parent=$root$(sed -n 's/^0:://p' /proc/self/cgroup)
    [ -d "$parent" ] || parent=$root
    until grep -qw memory "$parent/cgroup.subtree_control" 2>/dev/null; do
        if [ "$parent" = "$root" ] || [ "$parent" = "$root/" ]; then
            fail "no control group hands memory control to its children. $advice"
        fi
        parent=${parent%/*}
    done
else
    fail "no control groups are mounted that limit memory. $advice"
fi
group=${parent%/}/decant-memory-limit-$$

mkdir "$group" 2>/dev/null || fail "the system lets us make no control group in $parent. $advice"
remove_group() {
    for _ in 1 2 3 4 5; do  # its last process may still be leaving
        rmdir "$group" 2>/dev/null && return
        sleep 0.2
    done
    echo "memory_limit.sh: $group could not be removed" >&2
}
trap remove_group EXIT
trap 'exit 130' INT TERM

set_value() { { echo "$2" >"$group/$1"; } 2>/dev/null; }
if [ $version = 1 ]; then
    set_value memory.limit_in_bytes "$limit" || fail "the system refuses the limit $limit"
    set_value memory.memsw.limit_in_bytes "$limit" || set_value memory.swappiness 0  # nothing goes to the swap
else
    set_value memory.max "$limit" || fail "the system refuses the limit $limit"
    set_value memory.swap.max 0
fi

sh -c 'echo $$ >"$0/cgroup.procs" || exit 125; exec "$@"' "$group" "$@"
status=$?

number() { awk -v key="$2" 'NF == 1 || $1 == key { print $NF; exit }' "$group/$1" 2>/dev/null; }
if [ $version = 1 ]; then
    peak=$(number memory.max_usage_in_bytes '')
    killed=$(number memory.oom_control oom_kill)
else
    peak=$(number memory.peak '')
    killed=$(number memory.events oom_kill)
fi
echo "limit $limit: at most ${peak:-(unknown)} bytes in use, processes ended for lack of memory: ${killed:-(unknown)}"
exit $status
