# SPDX-License-Identifier: Apache-2.0
"""Spack: `make tarball`, `spack repo add packaging/spack`, and in the directory of the tarball `spack install resurgo`."""

import os

from spack.package import *


class Resurgo(MakefilePackage):
    """Runs unmodified MPI programs so that crashed processes and lost nodes do not end the job."""

    manual_download = True
    url = f"file://{os.getcwd()}/resurgo-0.1.0.tar.gz"
    license("Apache-2.0")

    # `make tarball` packs the sources as committed, so that there is no checksum of it here: spack install --no-checksum.
    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    # What programs run on; any MPICH with libfabric does.
    depends_on("mpich@4.1: device=ch4 netmod=ofi", type="run")

    requires("target=x86_64:")
    requires("platform=linux")

    def build(self, spec, prefix):
        make("build")

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.resurgo)("--version")
