#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The heat equation on 4 ranks: undisturbed, and with a rank killed (kill -9, from outside) half-way, under plain MPICH
# and under resurgo. Fails unless every finished run gives the same answer, byte for byte.
#
#   make demo                          (or, when all is built: scripts/demo.sh)
#
# RESURGO_DEPS  as for scripts/setup.sh        STEPS  time steps (default 10000)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${RESURGO_DEPS:-$root/.deps}/mpich
resurgo=$root/build/bin/resurgo
heat=$root/build/programs/heat
steps=${STEPS:-10000}
victim=2
for file in "$venv/bin/mpiexec" "$resurgo" "$heat"; do
    [ -x "$file" ] || { echo "demo: $file is missing; make demo brings and builds it" >&2; exit 1; }
done

# As a user has it: the environment with MPICH is active, and nothing else decides about MPI.
for name in $(compgen -e | grep -E '^(PMI|PMIX|HYDRA|MPI|FI_|I_MPI|OMPI|UCX|RESURGO)' || true); do unset "$name"; done
unset LD_LIBRARY_PATH
export VIRTUAL_ENV=$venv PATH=$venv/bin:$root/build/bin:$root/build/programs:$PATH

here=$(mktemp -d "${TMPDIR:-/tmp}/resurgo-demo.XXXXXX")
job=
clean() {
    [ -z "$job" ] || kill "$job" 2>/dev/null || true
    rm -rf "$here"
}
trap clean EXIT
trap 'exit 130' INT TERM
cd "$here"

now() { # in milliseconds
    local time=${EPOCHREALTIME/[.,]/}
    echo $((10#$time / 1000))
}
seconds() { printf '%d.%d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }
indent() { sed 's/^/    /'; }
failed() {
    printf '\ndemo: FAILED: %s\n' "$*" >&2
    exit 1
}

# start NAME COMMAND...: in the background; its output in NAME.out and NAME.err.
start() {
    name=$1
    shift
    # Whoever looks into it must find it, however late the command comes to run.
    : >"$name.out"
    begun=$(now)
    "$@" >"$name.out" 2>"$name.err" </dev/null &
    job=$!
}
# Waits for its end; sets `code` and `took`.
finish() {
    code=0
    wait "$job" || code=$?
    job=
    took=$(($(now) - begun))
}
# half_way NAME: waits until rank 0 has printed half of its lines, or the job is over.
half_way() {
    while [ "$(grep -c '^step' "$1.out")" -lt $((steps / 1000)) ] && kill -0 "$job" 2>/dev/null; do
        sleep 0.02
    done
}
# strike PID: the real thing.
strike() {
    [ -n "$1" ] || failed "the process of rank $victim was not found"
    at=$(($(now) - begun))
    kill -9 "$1" || failed "the job was over before rank $victim could be killed"
    printf '    $ kill -9 %-34s # rank %d, after %s\n' "$1" "$victim" "$(seconds "$at")"
}
# succeeded NAME: it must have, with the answer of the first run.
succeeded() {
    [ "$code" -eq 0 ] || failed "exit code $code: $(tail -n 3 "$1.err")"
    tail -n 1 "$1.out" | indent
    [ -e reference.plate ] || { cp "$1.plate" reference.plate && cp "$1.out" reference.out; }
    cmp reference.plate "$1.plate" || failed "another result file"
    cmp reference.out "$1.out" || failed "other output"
}

cores=$(nproc)
mode=
printf 'The heat equation on a plate of 512 x 512, %d steps, 4 ranks on %d core(s)\n' "$steps" "$cores"

printf '\n1. Plain MPICH, undisturbed\n    $ mpiexec -n 4 heat 512 512 %d plain.plate\n' "$steps"
start plain mpiexec -n 4 heat 512 512 "$steps" plain.plate
finish && succeeded plain && plain=$took
printf '    %s\n' "$(seconds "$plain")"
if [ "$cores" -lt 4 ]; then
    # MPICH's default mode polls without end, which is slow where ranks must share cores; its tcp mode sleeps.
    printf '    $ export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp     # better with so few cores\n'
    start tcp env MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp mpiexec -n 4 heat 512 512 "$steps" tcp.plate
    finish && succeeded tcp
    printf '    %s\n' "$(seconds "$took")"
    [ "$took" -gt "$plain" ] || plain=$took
    mode=' (in the faster mode)'
fi

printf '\n2. Plain MPICH, a rank is killed\n    $ mpiexec -n 4 heat 512 512 %d lost.plate\n' "$steps"
# The shell only notes the process number and then becomes the program.
# shellcheck disable=SC2016
start lost mpiexec -n 4 sh -c 'echo $$ >"pid.$PMI_RANK"; exec "$@"' sh heat 512 512 "$steps" lost.plate
half_way lost
# A killed MPICH job leaves its shared memory behind; this takes it away.
left=$(for pid in $(cat pid.*); do grep -ho '/dev/shm/mpich_shm[^ ]*' "/proc/$pid/maps" || true; done | sort -u)
strike "$(cat "pid.$victim" 2>/dev/null || true)"
finish
for file in $left; do rm -f "$file"; done
[ "$code" -ne 0 ] || failed "plain MPICH has survived: what was killed?"
printf '    the job has ended with exit code %d; no result, and %s of work on 4 ranks are lost\n' "$code" "$(seconds "$at")"

printf '\n3. Resurgo, undisturbed\n    $ resurgo run -n 4 heat 512 512 %d calm.plate\n' "$steps"
start calm resurgo run -n 4 heat 512 512 "$steps" calm.plate
finish && succeeded calm && calm=$took
printf '    %s\n' "$(seconds "$calm")"

printf '\n4. Resurgo, a rank is killed\n    $ resurgo run -n 4 heat 512 512 %d killed.plate\n' "$steps"
start killed resurgo run --json-events events -n 4 heat 512 512 "$steps" killed.plate
half_way killed
strike "$(sed -n '/"event":"started"/{/"rank":'"$victim"'[,}]/s/.*"pid":\([0-9]*\).*/\1/p}' events | tail -n 1)"
finish
indent <killed.err
succeeded killed
printf '    %s\n' "$(seconds "$took")"
grep -q '"event":"caught_up"' events || failed "no rank was restarted"

printf '\nAll runs that finished gave the same result, byte for byte:\n'
for file in {plain,tcp,calm,killed}.plate; do
    [ ! -e "$file" ] || sha256sum "$file" | sed -E 's/^([0-9a-f]{16})[0-9a-f]*/    \1.../'
done
away=$(sed -n '/"event":"caught_up"/s/.*"lost_seconds":\([0-9.]*\).*/\1/p' events | tail -n 1)
printf '\nWhat it cost: plain MPICH took %s%s; resurgo %s undisturbed and %s with the kill.\n' \
    "$(seconds "$plain")" "$mode" "$(seconds "$calm")" "$(seconds "$took")"
printf 'From its death until it was where it had been, rank %d was away for %.2f s.\n' "$victim" "$away"
