#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Python wheel with all that `make install` installs: `pip install` brings it into any environment, without rights.

    scripts/wheel.py [--build DIR] [--notices FILE] [--sbom FILE] [--to DIR]

--build    what has been built (default: build)
--notices  licences of what is linked into the programs
--sbom     list of the same, as CycloneDX
--to       where the wheel goes (default: dist)

The oldest glibc on which the wheel can be installed is the one that its programs need: `make wheel` builds them for 2.28.
The same input gives the same bytes.
"""

import argparse
import base64
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = "Runs unmodified MPI programs so that crashed processes and lost nodes do not end the job"
METADATA = """\
Metadata-Version: 2.4
Name: resurgo
Version: {version}
Summary: {summary}
License-Expression: Apache-2.0
License-File: LICENSE
{more}Requires-Python: >=3.8
Provides-Extra: mpich
Requires-Dist: mpich>=5.0,<6; extra == "mpich"
Provides-Extra: otf2
Requires-Dist: otf2>=3.1,<4; extra == "otf2"
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Distributed Computing
Description-Content-Type: text/markdown

{readme}"""
# Of zip files the earliest: what is packed does not depend on when.
TIME = (1980, 1, 1, 0, 0, 0)


def version():
    return re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def installed(build):
    """Yields name, mode and contents of each file of an installation."""
    with tempfile.TemporaryDirectory() as top:
        command = [ROOT / "scripts/install.sh", "install"]
        env = {**os.environ, "BUILD": str(build.resolve()), "DESTDIR": top, "PREFIX": "/"}
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        for path in sorted(Path(top).rglob("*")):
            if path.is_file():
                yield str(path.relative_to(top)), path.stat().st_mode & 0o777, path.read_bytes()


def glibc(files):
    """The oldest version of glibc that has all symbols of these files: the names of versions are among their strings."""
    found = {int(number) for _, _, data in files if data.startswith(b"\x7fELF") for number in re.findall(rb"\0GLIBC_2\.(\d+)", data)}
    return max(found)


def places(files, stem):
    """Where files of an installation go in a wheel: programs into the environment's bin, others below the environment
    itself, and the Python package also where `import` finds it."""
    for name, mode, data in files:
        scripts = name.startswith("bin/")
        place = f"scripts/{name[len('bin/') :]}" if scripts else f"data/{name}"
        yield f"{stem}.data/{place}", mode, data
        if name.startswith("lib/resurgo/python/"):
            yield name[len("lib/resurgo/python/") :], mode, data


def write(to, tag, stem, contents):
    """Writes the wheel by a rename: it is whole or not there."""
    to.mkdir(parents=True, exist_ok=True)
    wheel = to / f"{stem}-{tag}.whl"
    new = to / f".{wheel.name}.{os.getpid()}"
    record = f"{stem}.dist-info/RECORD"
    lines = []
    try:
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, mode, data in contents:
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                lines.append(f"{name},sha256={digest},{len(data)}\n")
                put(archive, name, mode, data)
            put(archive, record, 0o644, "".join([*lines, f"{record},,\n"]).encode())
        new.rename(wheel)
    finally:
        new.unlink(missing_ok=True)
    return wheel


def put(archive, name, mode, data):
    entry = zipfile.ZipInfo(name, TIME)
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--notices", type=Path)
    parser.add_argument("--sbom", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    try:
        files = list(installed(options.build))
    except subprocess.CalledProcessError:
        sys.exit(1)  # install.sh has said why.
    tag = f"py3-none-manylinux_2_{glibc(files)}_x86_64"
    stem = f"resurgo-{version()}"
    info = f"{stem}.dist-info"
    own = [("licenses/LICENSE", (ROOT / "LICENSE").read_bytes())]
    more = ""
    if options.notices:
        own.append(("licenses/THIRD-PARTY", options.notices.read_bytes()))
        more = "License-File: THIRD-PARTY\n"
    if options.sbom:
        own.append(("sboms/resurgo.cdx.json", options.sbom.read_bytes()))
    readme = (ROOT / "README.md").read_text()
    metadata = METADATA.format(version=version(), summary=SUMMARY, more=more, readme=readme)
    own.append(("METADATA", metadata.encode()))
    own.append(("WHEEL", f"Wheel-Version: 1.0\nGenerator: resurgo\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()))
    contents = [*places(files, stem), *((f"{info}/{name}", 0o644, data) for name, data in own)]
    print(write(options.to, tag, stem, contents))


if __name__ == "__main__":
    main()
