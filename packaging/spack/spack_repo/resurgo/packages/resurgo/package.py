# SPDX-License-Identifier: Apache-2.0
"""Spack 1.0 or later: `make tarball`, `spack repo add packaging/spack/spack_repo/resurgo`, and in the directory of the
tarball `spack install --no-checksum resurgo`."""

import os

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Resurgo(MakefilePackage):
    """Runs unmodified MPI programs so that crashed processes and lost nodes do not end the job."""

    manual_download = True
    url = f"file://{os.getcwd()}/resurgo-0.1.0.tar.gz"
    license("Apache-2.0")

    # `make tarball` packs the sources as committed, so that there is no checksum of it here.
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

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.lib.resurgo.python)
        env.prepend_path("CPATH", self.prefix.include.resurgo)
        env.prepend_path("LIBRARY_PATH", self.prefix.lib.resurgo)
        env.prepend_path("LD_LIBRARY_PATH", self.prefix.lib.resurgo)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.resurgo)("--version")
