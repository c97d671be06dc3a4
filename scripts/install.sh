#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what has been built, or removes it again:
#
#   make install PREFIX=/opt/resurgo          (or, when all is built: PREFIX=… scripts/install.sh install)
#   make uninstall PREFIX=/opt/resurgo
#
# PREFIX   where (default: /usr/local)          DESTDIR  put before it, for packages
#
# Everybody can read what is installed, whatever the umask is.
set -eu
umask 022

cd "$(dirname "$0")/.."
top=${DESTDIR:-}${PREFIX:-/usr/local}

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# Every file: its mode, where it is, and where it goes below the prefix. The provider comes before the program that looks for it.
files() {
    echo "755 build/lib/resurgo/libresurgo-fi.so lib/resurgo/libresurgo-fi.so"
    echo "755 build/lib/resurgo/resurgo-sim lib/resurgo/resurgo-sim"
    echo "755 build/bin/resurgo bin/resurgo"
    echo "644 LICENSE share/doc/resurgo/LICENSE"
    # What `resurgo bench` needs, in the places that it has here.
    for file in bench/figures/*.py bench/programs/*.c bench/programs/Makefile; do
        echo "644 $file share/resurgo/$file"
    done
    for name in contenders kills machine paper pingpong plot report svg; do
        echo "644 bench/$name.py share/resurgo/bench/$name.py"
    done
    for name in check.h kernel.h bt.c cg.c ft.c heat.c hello.c lu.c; do
        echo "644 tests/programs/$name share/resurgo/tests/programs/$name"
    done
}

# Below the prefix, those that hold nothing of others; what is in one comes before it.
directories='share/resurgo/bench/figures share/resurgo/bench/programs share/resurgo/bench share/resurgo/tests/programs
share/resurgo/tests share/resurgo share/doc/resurgo lib/resurgo'

# Another user may own what has the right mode already.
mode() {
    [ "$(stat -c %a "$2")" = "$1" ] || chmod "$1" "$2"
}

# By a rename, and only what has changed: running jobs keep the file that they run.
put() {
    new=$top/$3.new.$$
    mkdir -p "$top/${3%/*}" || return 1
    if cmp -s "$2" "$top/$3"; then
        mode "$1" "$top/$3"
    else
        cp "$2" "$new" && chmod "$1" "$new" && mv -f "$new" "$top/$3"
    fi
}

install_all() {
    files | {
        new=
        trap '[ -z "$new" ] || rm -f "$new"' EXIT
        trap 'exit 1' HUP INT TERM
        while read -r mode from to; do
            put "$mode" "$from" "$to" || exit 1
        done
    } || return 1
    for directory in $directories; do
        # They may have been made before with another umask.
        mode 755 "$top/$directory" || return 1
    done
    echo "installed: $top/bin/resurgo"
}

uninstall_all() {
    [ -e "$top/bin/resurgo" ] || [ -e "$top/lib/resurgo/libresurgo-fi.so" ] || fail "nothing is installed in $top"
    # First what people call: without the rest it would not work.
    files | sort -k 3 | while read -r _ _ to; do
        rm -f "$top/$to" || exit 1
    done
    for directory in $directories; do
        if [ -d "$top/$directory" ]; then
            rmdir "$top/$directory" 2>/dev/null || echo "install: $top/$directory stays: something else is in it" >&2
        fi
    done
    echo "removed: $top/bin/resurgo and what belongs to it"
}

case ${PREFIX:-/} in
/*) ;;
'~'*) fail "PREFIX=$PREFIX: the shell has left the ~ as it is; write \$HOME" ;;
*) top=${DESTDIR:-}$PWD/$PREFIX ;;
esac
case ${1:-} in
install)
    [ -x build/bin/resurgo ] || fail "build/bin/resurgo is missing: make builds it"
    install_all || fail "cannot install into $top: as another user, or with another PREFIX (as in PREFIX=\$HOME/.local)?"
    ;;
uninstall) uninstall_all ;;
*) fail "write install or uninstall" ;;
esac
