#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what has been built, or removes it again:
#
#   make install PREFIX=/opt/resurgo          (or, when all is built: PREFIX=… scripts/install.sh install)
#   make uninstall PREFIX=/opt/resurgo
#   scripts/install.sh pages                  what the program writes for it, below build/share (make build does it)
#
# PREFIX   where (default: /usr/local)          DESTDIR  put before it, for packages
# BUILD    what has been built (default: build)
#
# Everybody can read what is installed, whatever the umask is.
set -eu
umask 022

cd "$(dirname "$0")/.."
top=${DESTDIR:-}${PREFIX:-/usr/local}
build=${BUILD:-build}

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# Every file: its mode, where it is, and where it goes below the prefix. The provider comes before the program that looks for it.
files() {
    echo "755 build/lib/resurgo/libresurgo-fi.so lib/resurgo/libresurgo-fi.so"
    echo "755 build/lib/resurgo/libresurgo-ft.so lib/resurgo/libresurgo-ft.so"
    echo "755 build/lib/resurgo/libresurgo-pmpi.so lib/resurgo/libresurgo-pmpi.so"
    echo "755 build/lib/resurgo/resurgo-sim lib/resurgo/resurgo-sim"
    for file in crates/ft/include/*; do
        echo "644 $file include/resurgo/${file##*/}"
    done
    for file in python/resurgo/*.py; do
        echo "644 $file lib/resurgo/$file"
    done
    echo "755 build/bin/resurgo bin/resurgo"
    echo "644 LICENSE share/doc/resurgo/LICENSE"
    echo "644 docs/operations/resurgo-checkpoint-server.service share/resurgo/resurgo-checkpoint-server.service"
    echo "644 packaging/grafana.json share/resurgo/grafana.json"
    for file in examples/Makefile examples/README.md examples/*.c examples/*.f90 examples/*.py; do
        echo "644 $file share/resurgo/$file"
    done
    for file in examples/jobs/*.sh; do
        echo "755 $file share/resurgo/$file"
    done
    for file in examples/jobs/*.yaml examples/jobs/*.service; do
        echo "644 $file share/resurgo/$file"
    done
    # What `resurgo bench` needs, in the places that it has here.
    for file in bench/figures/*.py bench/programs/*.c bench/programs/*.h bench/programs/Makefile; do
        echo "644 $file share/resurgo/$file"
    done
    for name in cluster contenders kills machine paper pingpong plot report svg; do
        echo "644 bench/$name.py share/resurgo/bench/$name.py"
    done
    # What the program writes itself: man pages, and words for shells. Its list of commands names the pages.
    for verb in $(sed -n 's/^  resurgo \([a-z-]*\).*/-\1/p' crates/cli/src/help.txt) ''; do
        echo "644 build/share/man/man1/resurgo$verb.1 share/man/man1/resurgo$verb.1"
    done
    for file in bash-completion/completions/resurgo zsh/site-functions/_resurgo fish/vendor_completions.d/resurgo.fish; do
        echo "644 build/share/$file share/$file"
    done
    for name in check.h kernel.h bt.c cg.c ft.c heat.c heat.py hello.c lu.c; do
        echo "644 tests/programs/$name share/resurgo/tests/programs/$name"
    done
}

# Directories below the prefix that hold nothing of others; inner ones come first.
directories='share/resurgo/bench/figures share/resurgo/bench/programs share/resurgo/bench share/resurgo/tests/programs
share/resurgo/tests share/resurgo/examples/jobs share/resurgo/examples share/resurgo share/doc/resurgo lib/resurgo/python/resurgo
lib/resurgo/python lib/resurgo include/resurgo'

# Has the program write what files() lists below build/share, if it is newer.
pages() {
    [ "$build/share/man/man1/resurgo.1" -nt "$build/bin/resurgo" ] || "$build/bin/resurgo" pages "$build/share"
}

# Another user may own a file that has the right mode already.
mode() {
    [ "$(stat -c %a "$2")" = "$1" ] || chmod "$1" "$2"
}

# Renames into place, and only changed files: running jobs keep the file that they run.
put() {
    case $2 in
    build/*) set -- "$1" "$build/${2#build/}" "$3" ;;
    esac
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
        # Perhaps an earlier run made them with another umask.
        mode 755 "$top/$directory" || return 1
    done
    echo "installed: $top/bin/resurgo"
}

uninstall_all() {
    [ -e "$top/bin/resurgo" ] || [ -e "$top/lib/resurgo/libresurgo-fi.so" ] || fail "nothing is installed in $top"
    # First the command: without the other files it would not work.
    files | sort -k 3 | while read -r _ _ to; do
        rm -f "$top/$to" || exit 1
    done
    # What Python has made of its package.
    rm -rf "$top/lib/resurgo/python/resurgo/__pycache__"
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
    [ -x "$build/bin/resurgo" ] || fail "$build/bin/resurgo is missing: make builds it"
    pages || fail "$build/bin/resurgo does not run: make builds it"
    install_all || fail "cannot install into $top: as another user, or with another PREFIX (as in PREFIX=\$HOME/.local)?"
    ;;
uninstall) uninstall_all ;;
pages) pages ;;
*) fail "write install, uninstall or pages" ;;
esac
