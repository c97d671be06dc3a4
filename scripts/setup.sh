#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings what building, testing and measuring need. Safe to run again; quick when all is there.
#
#   scripts/setup.sh [toolchain|demo|all|slurm|s3|web|packaging|mpich-tests|wheel|docs]
#
# toolchain      what building needs: a C compiler (to link with) and Rust
# demo           that, and an MPI library to run the demo with
# all            that, and what tests and benchmarks need (the default)
# slurm          that, and Slurm, for tests/nodes/test_slurm.py
# web            that of all, and Chromium, for tests of the pages of resurgo web
# packaging      that of all, and what checks recipes of packages: EasyBuild, lintian, Environment Modules and others
# s3             that of all, and a server that speaks S3, for tests of object stores: building it takes minutes
# mpich-tests    that of all, and the sources of MPICH's own tests, from RESURGO_MPICH
# wheel          what building needs, and what makes a wheel (make wheel): building its tools takes minutes
# docs           what makes a site of the documentation (make docs)
#
# RESURGO_DEPS   where Python environments and sources go (default: .deps in the repository)
# RESURGO_MPICH  a git repository of MPICH, for mpich-tests
# RESURGO_PYTHON the Python to make environments with (default: the first of python3, /usr/bin/python3 that can)
#
# As root on Debian, missing packages are installed. Otherwise they are named.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
deps=${RESURGO_DEPS:-$repository/.deps}
what=${1:-all}
mpi4py=$(sed -n 's/^mpi4py==//p' "$repository/scripts/requirements-mpich.txt")

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

with_slurm='' with_s3='' with_web='' with_tests='' with_packaging=''
case $what in
    toolchain | demo | all | wheel | docs) ;;
    slurm) what=all with_slurm=yes ;;
    s3) what=all with_s3=yes ;;
    web) what=all with_web=yes ;;
    packaging) what=all with_packaging=yes ;;
    mpich-tests) what=all with_tests=yes ;;
    *) fail "there is no \"$what\": write toolchain, demo, all, slurm, s3, web, packaging, mpich-tests, wheel or docs" ;;
esac

# Rust first: only the user can bring it. One sentence says what to do.
check_rust() {
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
    needs="Resurgo is built with Rust $needed or later"
    bring="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    ! command -v rustup >/dev/null 2>&1 || bring="rustup update stable && rustup default stable"
    # rustup has installed it, but an older one comes first in the path.
    own=${HOME:-}/.cargo/bin/cargo
    ! is_new "$own" || bring="export PATH=\$HOME/.cargo/bin:\$PATH"
    command -v cargo >/dev/null 2>&1 || fail "Rust is missing: $needs; this brings it: $bring"
    found=$(cargo --version 2>/dev/null) || fail "cargo does not run: $needs; this brings it: $bring"
    is_new cargo || fail "$found is too old: $needs; this brings it: $bring"
}
is_new() { # CARGO is at least of the version needed
    version=$("$1" --version 2>/dev/null) || return 1
    version=${version#cargo }
    minor=${version#*.}
    minor=${minor%%.*}
    [ "${version%%.*}" -gt "${needed%%.*}" ] || { [ "${version%%.*}" -eq "${needed%%.*}" ] && [ "$minor" -ge "${needed#*.}" ]; }
}
[ "$what" = docs ] || check_rust

# A Python that can make environments with pip in them; for the tests, one that their packages support.
oldest=11
[ "$what" = all ] || oldest=8
find_python() {
    for python in ${RESURGO_PYTHON:-} python3 /usr/bin/python3; do
        if command -v "$python" >/dev/null 2>&1 &&
            "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, '$oldest'))' >/dev/null 2>&1; then
            printf '%s\n' "$python"
            return
        fi
    done
}

missing=
need() { # PACKAGE is needed unless the rest of the line succeeds
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
have_python() { [ -n "$(find_python)" ]; }
have_compiler() { # which can link
    made=$(mktemp) || return 1
    echo 'int main(void) { return 0; }' | cc -x c -include stdio.h -o "$made" - || { rm -f "$made" && return 1; }
    rm -f "$made"
}
have_modules() { ls /usr/lib/*/modulecmd.tcl; }
have_fortran_mpi() { ls /usr/lib/*/libmpichfort.so /usr/include/*/mpich/mpi_f08.mod; }

find_missing() {
    missing=
    [ "$what" = docs ] || have_compiler >/dev/null 2>&1 || missing="gcc libc6-dev"
    need make command -v make
    if [ "$what" = all ]; then
        need gfortran command -v gfortran
        need libmpich-dev have_fortran_mpi # Fortran modules, and binaries that want libmpich.so.12
        if [ "$(id -u)" -eq 0 ]; then # nodes with networks of their own, and ssh between them
            need iproute2 command -v ip
            need nftables command -v nft # firewalls of these nodes
            need openssh-server test -x /usr/sbin/sshd
            need zsh command -v zsh # shells whose completion is tested
            need fish command -v fish
        fi
        [ -z "$with_tests" ] || need git command -v git
        [ -z "$with_web" ] || need chromium command -v chromium
        if [ -n "$with_packaging" ]; then
            need lintian command -v lintian
            need environment-modules have_modules
        fi
        if [ -n "$with_slurm" ]; then
            need munge test -x /usr/sbin/munged
            need slurmctld test -x /usr/sbin/slurmctld
            need slurmd test -x /usr/sbin/slurmd
            need slurm-client command -v srun
        fi
    fi
    if [ "$what" != toolchain ]; then
        need python3 command -v python3
        need python3-venv have_python
    fi
    missing=${missing# }
}

install_packages() {
    say "installing packages: $missing"
    # Some of the packages might start daemons; this keeps Debian from doing so.
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made_policy=yes
    fi
    status=0
    {
        # shellcheck disable=SC2086 # several words
        apt-get -q update &&
            DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing
    } || status=$?
    [ -z "$made_policy" ] || rm -f $policy
    [ $status -eq 0 ] || fail "apt-get could not install: $missing"
    find_missing
    [ -z "$missing" ] || fail "still missing after apt-get: $missing"
}

find_missing
if [ -n "$missing" ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        install_packages
    else
        fail "these packages are missing (Debian's names): $missing
setup: install them, or run this script as root on Debian"
    fi
fi
[ "$what" != toolchain ] || exit 0

python=$(find_python)
mkdir -p "$deps"

# environment NAME [PIP OPTIONS]: makes or renews the environment when its requirements have changed.
environment() {
    name=$1
    shift
    requirements=$repository/scripts/requirements-$name.txt
    venv=$deps/$name
    if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$venv/requirements.done"; then
        return
    fi
    fill "$@" -r "$requirements"
    cp "$requirements" "$venv/requirements.done"
}
fill() { # PIP OPTIONS: makes the environment if need be, and installs into it
    say "making the Python environment $venv"
    # A broken or moved environment is made anew, and one of a Python that is too old for the tests.
    "$venv/bin/python" -c "import sys; sys.exit(sys.version_info < (3, $oldest))" >/dev/null 2>&1 || rm -rf "$venv"
    rm -f "$venv/requirements.done"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
        fail "pip could not install $*; is a package index reachable?"
}

if [ "$what" = demo ]; then
    # From the tests' environment only the MPI library; the rest can be added to it later.
    venv=$deps/mpich
    { "$venv/bin/python" -c pass && [ -x "$venv/bin/mpicc" ] && [ -x "$venv/bin/mpiexec" ]; } >/dev/null 2>&1 ||
        fill "$(grep '^mpich==' "$repository/scripts/requirements-mpich.txt")"
    say "ready: $deps"
    exit
fi

# tool NAME VERSION [CARGO OPTIONS]: a program of that name, built by cargo into a directory of its own.
tool() {
    name=$1
    version=$2
    shift 2
    [ "$(cat "$deps/tools/$name.version" 2>/dev/null)" = "$version" ] && return
    say "building $name $version"
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_TARGET_DIR="$deps/tools/target" \
        cargo install --quiet --locked --force --root "$deps/tools" "$@" --version "$version" "$name" &&
        [ -x "$deps/tools/bin/$name" ] || fail "cargo could not build $name $version"
    rm -rf "$deps/tools/target"
    echo "$version" >"$deps/tools/$name.version"
}

if [ "$what" = docs ]; then
    environment docs
    exit
fi
if [ "$what" = wheel ]; then
    environment wheel
    tool cargo-about 0.9.3 --features cli
    tool cargo-auditable 0.7.7
    tool cargo-cyclonedx 0.5.9
    say "ready: $deps"
    exit
fi
environment mpich
environment impi --no-deps
environment linters
[ -z "$with_packaging" ] || environment packaging

# The test suite of mpi4py comes in its source package only.
sources=$deps/mpi4py-$mpi4py
if [ ! -f "$sources/test/main.py" ]; then
    say "fetching the sources of mpi4py $mpi4py for their test suite"
    part=$(mktemp -d "$deps/fetch.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    "$deps/mpich/bin/python" -m pip download --quiet --disable-pip-version-check --no-binary mpi4py --no-deps \
        --dest "$part" "mpi4py==$mpi4py" || fail "pip could not fetch the sources of mpi4py $mpi4py"
    rm -rf "$sources"
    tar -xzf "$part"/mpi4py-*.tar.gz -C "$part"
    mv "$part"/mpi4py-*/ "$sources"
fi

# MPICH's tests come in none of its packages. Those of a release fit the next ones.
tests=v5.0.1
if [ -n "$with_tests" ] && [ "$(cat "$deps/mpich-tests/version" 2>/dev/null)" != "$tests" ]; then
    [ -n "${RESURGO_MPICH-}" ] || fail "RESURGO_MPICH must name a git repository of MPICH: its tests are in no package"
    say "fetching the tests of MPICH $tests"
    rm -rf "$deps/mpich-tests"
    { git clone --quiet --depth 1 --branch "$tests" --filter=blob:none --sparse -c advice.detachedHead=false \
        "$RESURGO_MPICH" "$deps/mpich-tests" &&
        git -C "$deps/mpich-tests" sparse-checkout set test/mpi; } || fail "git could not fetch the tests of MPICH $tests"
    echo "$tests" >"$deps/mpich-tests/version"
fi

[ -z "$with_s3" ] || tool s3s-fs 0.14.1 --features binary

# Programs built against Debian's MPICH, Fortran ones among them, ask for libmpich.so.12; here the wheel's library has
# that name, so that they can be run by plain mpiexec, too.
mkdir -p "$deps/libmpich"
ln -sfn "$deps/mpich/lib/libmpi.so.12" "$deps/libmpich/libmpich.so.12"
ln -sfn "$deps/mpich/lib/mpich" "$deps/libmpich/mpich"
say "ready: $deps"
