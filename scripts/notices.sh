#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Of what is linked into the programs: TO/THIRD-PARTY has the licences, TO/sbom.json the list (CycloneDX).
#
#   scripts/notices.sh TRIPLE TO
set -eu
triple=$1
to=$2
cd "$(dirname "$0")/.."
cargo about generate --offline --fail --locked --manifest-path crates/cli/Cargo.toml --config packaging/about.toml \
    --output-file "$to/THIRD-PARTY" packaging/about.hbs
# The tool writes beside each Cargo.toml; the programs' own list is that of the crate with `resurgo`.
name=sbom.$$
trap 'rm -f crates/*/'"$name.json" EXIT
cargo cyclonedx --quiet --format json --target "$triple" --override-filename "$name" --manifest-path crates/cli/Cargo.toml
mv "crates/cli/$name.json" "$to/sbom.json"
