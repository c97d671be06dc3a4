# SPDX-License-Identifier: Apache-2.0
"""MPICH's own tests of point-to-point messages, one-sided communication and datatypes: what they are, and their programs.

Their sources come without what MPICH's autotools make of them, and need little of it (`FOUND`).
"""

import fcntl
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import harness

SUITE = harness.DEPS / "mpich-tests/test/mpi"
BUILT = harness.ROOT / "build/mpich-tests"
FOLDERS = ["pt2pt", "rma", "datatype"]
# What configure would find out.
FOUND = """\
#define HAVE_ATOMIC 1
#define HAVE_FLOAT16 1
#define HAVE_GETRUSAGE 1
#define HAVE_LONG_DOUBLE 1
#define HAVE_LONG_DOUBLE__COMPLEX 1
#define HAVE_FLOAT__COMPLEX 1
#define HAVE_DOUBLE__COMPLEX 1
#define HAVE__BOOL 1
#define HAVE_LONG_LONG 1
#define HAVE_LONG_LONG_INT 1
#define HAVE_MPI_INIT_THREAD 1
#define HAVE_MPI_TYPE_CREATE_STRUCT 1
#define HAVE_MPI_WIN_CREATE 1
#define HAVE_STDARG_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRDUP 1
#define HAVE_STRING_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_UNISTD_H 1
#define HAVE_USLEEP 1
#define MPICH_CH4_OFI 1
#define POINTERINT_t long
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
"""
# Of a test of arbitrary datatypes, these: a basic one and a struct, each with its count.
POOLS = [("MPI_INT", 16384), ("MPI_INT:4+MPI_DOUBLE:8", 1018)]

# Settings that change the way of a message.
WAYS = {
    "default": {},
    "early-auto": {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "auto"},
    "early-pipeline": {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "pipeline"},
    "early-read": {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "read"},
    "early-write": {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "write"},
    "early-direct": {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384", "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "direct"},
    "am-pipeline": {"MPIR_CVAR_CH4_OFI_AM_LONG_FORCE_PIPELINE": "1"},
    "no-tagged": {"MPIR_CVAR_CH4_OFI_ENABLE_TAGGED": "0"},
    "no-am": {"MPIR_CVAR_CH4_OFI_ENABLE_AM": "0"},
    "no-rma": {"MPIR_CVAR_CH4_OFI_ENABLE_RMA": "0"},
    "atomics": {"MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS": "1"},
    "no-atomics": {"MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS": "0"},
    "no-data": {"MPIR_CVAR_CH4_OFI_ENABLE_DATA": "0"},
    "no-inject": {"MPIR_CVAR_CH4_OFI_ENABLE_INJECT": "0"},
    "pack": {"MPIR_CVAR_CH4_OFI_ENABLE_PT2PT_NOPACK": "0"},
    "av-map": {"MPIR_CVAR_CH4_OFI_ENABLE_AV_TABLE": "0"},
    "scalable-endpoints": {"MPIR_CVAR_CH4_OFI_ENABLE_SCALABLE_ENDPOINTS": "1"},
    "shared-contexts": {"MPIR_CVAR_CH4_OFI_ENABLE_SHARED_CONTEXTS": "1"},
    "mr-offsets": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_VIRT_ADDRESS": "0"},
    "mr-addresses": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_VIRT_ADDRESS": "1"},
    "mr-allocated": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_ALLOCATED": "1"},
    "mr-unallocated": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_ALLOCATED": "0"},
    "mr-own-keys": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_PROV_KEY": "0"},
    "mr-given-keys": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_PROV_KEY": "1"},
    "mr-no-null": {"MPIR_CVAR_CH4_OFI_ENABLE_MR_REGISTER_NULL": "0"},
    "control-progress": {"MPIR_CVAR_CH4_OFI_ENABLE_CONTROL_AUTO_PROGRESS": "1"},
    "data-progress": {"MPIR_CVAR_CH4_OFI_ENABLE_DATA_AUTO_PROGRESS": "1"},
    "triggered": {"MPIR_CVAR_CH4_OFI_ENABLE_TRIGGERED": "1"},
    "hmem": {"MPIR_CVAR_CH4_OFI_ENABLE_HMEM": "1", "MPIR_CVAR_CH4_OFI_ENABLE_MR_HMEM": "1"},
    "nics": {
        "MPIR_CVAR_CH4_OFI_ENABLE_MULTI_NIC_STRIPING": "1",
        "MPIR_CVAR_CH4_OFI_ENABLE_MULTI_NIC_HASHING": "1",
        "MPIR_CVAR_CH4_OFI_MULTI_NIC_STRIPING_THRESHOLD": "1024",
        "MPIR_CVAR_CH4_OFI_MAX_NICS": "2",
    },
    "rma-pieces": {"MPIR_CVAR_CH4_OFI_RMA_IOVEC_MAX": "1"},
    "fetch-pieces": {"MPIR_CVAR_CH4_OFI_FETCH_ATOMIC_IOVECS": "1"},
    "multirecv": {"MPIR_CVAR_CH4_OFI_MULTIRECV_BUFFER_SIZE": "32768", "MPIR_CVAR_CH4_OFI_NUM_AM_BUFFERS": "2"},
    "chunks": {
        "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "16384",
        "MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL": "pipeline",
        "MPIR_CVAR_CH4_OFI_PIPELINE_CHUNK_SZ": "4096",
        "MPIR_CVAR_CH4_OFI_PIPELINE_NUM_CHUNKS": "2",
        "MPIR_CVAR_CH4_OFI_PIPELINE_MAX_CHUNKS": "4",
    },
    "rma-contexts": {"MPIR_CVAR_CH4_OFI_MAX_RMA_SEP_CTX": "2"},
    "optimized-regions": {"MPIR_CVAR_CH4_OFI_NUM_OPTIMIZED_MEMORY_REGIONS": "4"},
    "no-inject-write": {"MPIR_CVAR_CH4_OFI_DISABLE_INJECT_WRITE": "1"},
    "bits": {"MPIR_CVAR_CH4_OFI_CONTEXT_ID_BITS": "16", "MPIR_CVAR_CH4_OFI_RANK_BITS": "20", "MPIR_CVAR_CH4_OFI_TAG_BITS": "19"},
    "rma-progress": {"MPIR_CVAR_CH4_OFI_RMA_PROGRESS_INTERVAL": "1"},
    "retries": {"MPIR_CVAR_CH4_OFI_MAX_EAGAIN_RETRY": "0"},
    "shared-av": {"MPIR_CVAR_CH4_OFI_ENABLE_SHARED_AV": "1"},
    "density": {"MPIR_CVAR_CH4_IOV_DENSITY_MIN": "1"},
    "pack-buffers": {
        "MPIR_CVAR_CH4_PACK_BUFFER_SIZE": "16384",
        "MPIR_CVAR_CH4_NUM_PACK_BUFFERS_PER_CHUNK": "2",
        "MPIR_CVAR_CH4_MAX_NUM_PACK_BUFFERS": "4",
    },
    "vcis": {"MPIR_CVAR_CH4_NUM_VCIS": "4"},
    "vcis-reserved": {"MPIR_CVAR_CH4_RESERVE_VCIS": "2"},
    "local-progress": {"MPIR_CVAR_CH4_GLOBAL_PROGRESS": "0"},
    "throttle": {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "16"},
    "rma-memory": {"MPIR_CVAR_CH4_RMA_MEM_EFFICIENT": "1"},
    "am-progress": {"MPIR_CVAR_CH4_RMA_AM_PROGRESS_INTERVAL": "1", "MPIR_CVAR_CH4_RMA_AM_PROGRESS_LOW_FREQ_INTERVAL": "1"},
    "dynamic-progress": {"MPIR_CVAR_CH4_RMA_ENABLE_DYNAMIC_AM_PROGRESS": "1"},
    "version": {"MPIR_CVAR_CH4_OFI_MAJOR_VERSION": "1", "MPIR_CVAR_CH4_OFI_MINOR_VERSION": "14"},
    "async": {"MPIR_CVAR_ASYNC_PROGRESS": "1"},
    "requests": {"MPIR_CVAR_CTXID_EAGER_SIZE": "1", "MPIR_CVAR_REQUEST_POLL_FREQ": "1", "MPIR_CVAR_REQUEST_BATCH_SIZE": "1"},
}
# Quick ones that together go all ways.
TELLING = [
    "sendrecv1", "mprobe", "probe_unexp", "huge_underflow", "isendirecv", "icsend", "rcancel", "manylmt", "dtype_send", "bsendfrag",
    "accfence1", "putfence1", "getfence1", "lock_dt_flush", "test1_dt", "transpose3", "fetch_and_op_int", "compare_and_swap",
    "win_dynamic_acc", "reqops", "manyget", "strided_putget_indexed", "subarray", "tresized", "concurrent_irecv",
]
# Those of them that do the same in every run, and some steps.
REPEATED = ["sendrecv1", "huge_underflow", "manylmt", "putfence1", "getfence1", "lock_dt_flush", "transpose3", "manyget"]
# They compare the padding of MPI_LONG_DOUBLE behind a scattered receive, which nobody promises. Where MPICH packs, it
# leaves it as it was.
PADDING = {"sendrecvt2", "sendrecvt4"}
# They take minutes where ranks share cores.
LONG = {"sendflood", "rma_contig", "atomic_rmw_gacc", "large_acc_flush_local"}
PATIENCE = 60  # seconds for a test; some of MPICH's wait for ever under some settings, also under plain MPICH


@dataclass(frozen=True)
class Case:
    folder: str
    name: str
    size: int
    arguments: tuple = ()
    env: dict = field(default_factory=dict, hash=False)

    @property
    def words(self):
        settings = [f"{name}={value}" for name, value in self.env.items()]
        return " ".join([f"{self.folder}/{self.name}", str(self.size), *self.arguments, *settings])

    @property
    def command(self):
        return [BUILT / self.folder / self.name, *self.arguments]


def needed():
    if not SUITE.is_dir():
        pytest.skip("MPICH's tests are missing; run scripts/setup.sh mpich-tests")


def makefile(folder):
    """Lines that automake would see, with continued lines joined."""
    return (SUITE / folder / "Makefile.am").read_text().replace("\\\n", " ").splitlines()


def programs(folder):
    """{program: (its sources, its macros)}."""
    sources, macros, names = {}, {}, []
    for line in makefile(folder):
        if found := re.match(r"noinst_PROGRAMS\s*\+?=(.*)", line):
            names += found[1].split()
        elif found := re.match(r"(\w+)_SOURCES\s*=(.*)", line):
            sources[found[1]] = re.findall(r"\S+\.c\b", found[2])
        elif found := re.match(r"(\w+)_CPPFLAGS\s*=(.*)", line):
            macros[found[1]] = re.findall(r"-D\S+", found[2])
    return {name: (sources.get(name, [f"{name}.c"]), macros.get(name, [])) for name in names}


def build():
    """Builds what is missing; a program that cannot be built is left out."""
    needed()
    BUILT.mkdir(parents=True, exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (BUILT / "done").exists():
            return
        (BUILT / "mpitestconf.h").write_text(FOUND)
        (BUILT / "mtest_mpix.h").touch()
        (BUILT / "dtpoolsconf.h").touch()
        # dtpools wants this one beside its folder of headers.
        (BUILT / "dtpools/include").mkdir(parents=True, exist_ok=True)
        (BUILT / "dtpools/dtpoolsconf.h").touch()
        helpers = ("mtest.c", "mtest_common.c", "mtest_single.c", "dtypes.c")
        common = [*(SUITE / "dtpools/src").glob("*.c"), *(SUITE / "util" / name for name in helpers)]
        objects = [BUILT / f"{source.stem}.o" for source in common]
        work = [(["-c", "-o", made, source], made) for source, made in zip(common, objects)]
        compile_all(work)
        assert all(made.exists() for made in objects), f"{BUILT}/*.log"
        work = []
        for folder in FOLDERS:
            (BUILT / folder).mkdir(exist_ok=True)
            for name, (files, macros) in programs(folder).items():
                made = BUILT / folder / name
                work.append(([*macros, "-o", made, *(SUITE / folder / file for file in files), *objects, "-lm"], made))
        compile_all(work)
        (BUILT / "done").touch()


def compile_all(work):
    compiler = [harness.MPICH / "bin/mpicc", "-O0", "-w", "-pthread"]
    folders = [BUILT, BUILT / "dtpools/include", SUITE / "include", SUITE / "dtpools/include"]
    options = [option for folder in folders for option in ("-I", folder)]

    def one(job):
        arguments, made = job
        if not made.exists():
            log = made.with_name(made.name + ".log")
            with open(log, "w") as out:
                ended = subprocess.run([*compiler, *options, *arguments], stdout=out, stderr=out, check=False)
            if ended.returncode == 0:
                log.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, work))


def cases(folder, most_memory=1.0):
    """The lines of a list of tests. Left out are those that MPICH itself expects to fail, those that need much memory or
    time, and those with settings of their own, which the ways give here."""
    found = []
    for line in (SUITE / folder / "testlist.in").read_text().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        more = [word.partition("=") for word in words[2:]]
        if words[0] in PADDING | LONG or any(key in ("xfail", "env", "lock") for key, _, _ in more):
            continue
        if any(key == "mem" and float(value) > most_memory or key == "timeLimit" and int(value) >= 300 for key, _, value in more):
            continue
        case = Case(folder, words[0], int(words[1]), tuple(value for key, _, value in more if key == "arg"))
        if case not in found:
            found.append(case)
    return found + pools(folder)


def pools(folder):
    """The tests of arbitrary datatypes."""
    found = []
    for line in (SUITE / "maint/dtp-test-config.txt").read_text().splitlines():
        fields = line.split(":")
        path = Path(fields[0])
        if line.startswith("#") or str(path.parent) != folder or "mem=" in fields[3]:
            continue
        for seed, (kind, count) in enumerate(POOLS, 1):
            how_many = [f"-sendcnt={count}", f"-recvcnt={count}"] if folder == "pt2pt" else [f"-count={count}"]
            case = Case(folder, path.name, int(fields[4]), (f"-type={kind}", *how_many, f"-seed={seed}", "-testsize=4"))
            if case not in found:
                found.append(case)
    return found


def telling(names=TELLING):
    return [case for folder in FOLDERS for case in cases(folder) if case.name in names]


def passed(result):
    return result.code == 0 and "No Errors" in result.text


def failure(run, case, **more):
    """How it fails; None: it passes."""
    try:
        result = run(case.size, *case.command, timeout=PATIENCE, **more)
    except AssertionError as hangs:
        return str(hangs)
    return None if passed(result) else result.describe()


def as_under_plain_mpich(jobs, theirs, wanted, way, protocol):
    """Nothing fails that does not fail there, too."""
    failed = []
    for case in wanted:
        ours = failure(jobs.run, case, env=harness.environment(**WAYS[way]), protocol=protocol)
        if ours and not failure(theirs, case, env=WAYS[way]):
            failed.append(f"{case.words}\n{ours}")
    assert not failed, "\n".join(failed)
