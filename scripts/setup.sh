#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Brings what building, testing and measuring need. Safe to run again; quick when all is there.
#
#   scripts/setup.sh
#
# RESURGO_DEPS   where Python environments and sources go (default: .deps in the repository)
# RESURGO_PYTHON the Python to make environments with (default: the first of python3, /usr/bin/python3 that can)
#
# As root on Debian, missing packages are installed. Otherwise they are named.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
deps=${RESURGO_DEPS:-$repository/.deps}
mpi4py=$(sed -n 's/^mpi4py==//p' "$repository/scripts/requirements-mpich.txt")

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# A Python that can make environments with pip in them.
find_python() {
    for python in ${RESURGO_PYTHON:-} python3 /usr/bin/python3; do
        if command -v "$python" >/dev/null 2>&1 &&
            "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
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
have_fortran_mpi() { ls /usr/lib/*/libmpichfort.so /usr/include/*/mpich/mpi_f08.mod; }

find_missing() {
    missing=
    need gcc command -v gcc
    need libc6-dev test -e /usr/include/stdio.h
    need make command -v make
    need gfortran command -v gfortran
    need libmpich-dev have_fortran_mpi # Fortran modules, and binaries that want libmpich.so.12
    need python3 command -v python3
    need python3-venv have_python
    missing=${missing# }
}

install_packages() {
    say "installing packages: $missing"
    # Some of what comes along might start daemons; this keeps Debian from doing so.
    policy=/usr/sbin/policy-rc.d
    made_policy=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made_policy=yes
    fi
    status=0
    {
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
command -v cargo >/dev/null 2>&1 || [ -x "$HOME/.cargo/bin/cargo" ] ||
    fail "Rust is missing: cargo, of the version that Cargo.toml names or later (rustup brings it)"

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
    say "making the Python environment $venv"
    # A broken or moved environment is made anew.
    "$venv/bin/python" -c pass >/dev/null 2>&1 || rm -rf "$venv"
    rm -f "$venv/requirements.done"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" -r "$requirements" ||
        fail "pip could not install what $requirements names; is a package index reachable?"
    cp "$requirements" "$venv/requirements.done"
}
environment mpich
environment impi --no-deps

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

# Programs built against Debian's MPICH, Fortran ones among them, ask for libmpich.so.12; here the wheel's library has
# that name, so that they can be run by plain mpiexec, too.
mkdir -p "$deps/libmpich"
ln -sfn "$deps/mpich/lib/libmpi.so.12" "$deps/libmpich/libmpich.so.12"
ln -sfn "$deps/mpich/lib/mpich" "$deps/libmpich/mpich"
say "ready: $deps"
