#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A Debian package of what has been built, in dist/.
#
#   packaging/deb.sh [BUILD]          (default: build; `make deb` builds first)
set -eu
umask 022
export BUILD="${1:-build}"
cd "$(dirname "$0")/.."

maintainer='The Resurgo developers <resurgo@resurgo.invalid>'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
DESTDIR=$top PREFIX=/usr scripts/install.sh install >/dev/null
for file in "$top"/usr/bin/* "$top"/usr/lib/resurgo/*; do
    # Some are scripts, and one is a directory.
    ! readelf -h "$file" >/dev/null 2>&1 || strip --strip-unneeded --remove-section=.comment "$file"
done

# The oldest C library that has all symbols.
glibc=$(cat "$top"/usr/bin/resurgo "$top"/usr/lib/resurgo/*.so "$top"/usr/lib/resurgo/resurgo-sim |
    grep -a -o 'GLIBC_2\.[0-9]*' | sort -V | tail -n 1)
doc=$top/usr/share/doc/resurgo
rm "$doc/LICENSE"
cat >"$doc/copyright" <<END
Copyright (C) 2026 The Resurgo developers
Licence: Apache-2.0, which is in /usr/share/common-licenses/Apache-2.0.
END
cat >"$doc/changelog" <<END
resurgo ($version) unstable; urgency=medium

  * Version $version. CHANGELOG.md of the sources says what has changed.

 -- $maintainer  $(date -R -u -d "@$(git log -1 --format=%ct)")
END
gzip -9 -n "$doc/changelog" "$top"/usr/share/man/man1/*
chmod 644 "$top"/usr/lib/resurgo/*.so

mkdir "$top/DEBIAN"
cat >"$top/DEBIAN/control" <<END
Package: resurgo
Version: $version
Architecture: amd64
Maintainer: $maintainer
Section: science
Priority: optional
Installed-Size: $(du -k -s "$top/usr" | cut -f 1)
Depends: libc6 (>= ${glibc#GLIBC_})
Recommends: python3
Suggests: openssh-client, slurm-client
Description: run MPI programs so that crashed processes do not end the job
 Resurgo runs unmodified MPI programs, in C, C++, Fortran and Python. When a
 process crashes, or a node is lost, it goes on elsewhere, and the answer is
 the same. It needs an MPICH with libfabric, such as the Python package mpich.
END
(cd "$top" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$top/DEBIAN/md5sums"
mkdir -p dist
dpkg-deb --root-owner-group -Zxz --build "$top" "dist/resurgo_${version}_amd64.deb"
