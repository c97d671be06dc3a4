# SPDX-License-Identifier: Apache-2.0
"""The same programs on other MPI libraries: Intel's own, the MPI-5 standard interface, and Debian's name for MPICH."""

import subprocess
import sysconfig
import time
from pathlib import Path

import pytest

import harness
from catalogue import BY_NAME, arguments
from harness import INTEL, by_rank, came_about, slow
from image_files import kill_with_snapshots
from settings import MANY, every
from survival import began_from_images

# Programs of the MPICH interface, run on Intel's library: the loader takes what LD_LIBRARY_PATH leads to.


def intel():
    return harness.environment(**INTEL, LD_LIBRARY_PATH=harness.IMPI / "lib")


@pytest.mark.intel
@pytest.mark.parametrize("protocol", [slow("none"), "pessimistic"])
@pytest.mark.parametrize("name", ["hello", "cg", "heat", "transpose", "comm_churn", "messages", "master_worker", "rma_halo"])
@pytest.mark.gate("cg-pessimistic", "master_worker-pessimistic")
def test_on_intel_mpi(jobs, program, name, protocol):
    entry = BY_NAME[name]
    command = program(name) + arguments(entry, False, jobs.directory / "result")
    result = jobs.run(3, *command, protocol=protocol, env=intel()).ok()
    expected = jobs.run(3, *command, protocol=protocol).ok()
    if name != "cg":  # its sums are rounded in another order
        assert by_rank(result.out) == by_rank(expected.out)


@pytest.mark.intel
@pytest.mark.parametrize("name", ["cg", "heat", "master_worker", "transpose"])
@pytest.mark.gate("master_worker")
def test_kills_on_intel_mpi(jobs, program, name):
    command = program(name) + arguments(BY_NAME[name], True, jobs.directory / "result")
    calm = jobs.calm(3, *command, env=intel())
    faults = ["--fault", "rank=1,messages=900", "--fault", "rank=0,messages=500"]
    result = jobs.run(3, *command, env=intel(), options=[*MANY, *faults]).ok()
    assert result.restarts == 2, result.describe()
    assert by_rank(result.out) == by_rank(calm.out)


def written(job):
    return [event["event"] for event in job.events].count("image_written")


@pytest.mark.slow
@pytest.mark.intel
@pytest.mark.parametrize("protocol", [slow("pessimistic"), "blocking", slow("auto"), slow("hierarchical")])
@pytest.mark.parametrize("name", ["cg", slow("master_worker")])
def test_images_on_intel_mpi(jobs, program, rng, kills, name, protocol, tmp_path):
    """In memory, and in files: a rank is also killed together with its sleeping images."""
    command = [*program(name), *{"cg": ("512", "1500"), "master_worker": ("60000", "3000")}[name]]
    calm = jobs.calm(3, *command, env=intel())
    groups = ["--group-size", "2"] if protocol == "hierarchical" else []
    options = [*MANY, *groups, *every("40ms"), "--checkpoint-dir", tmp_path / "images"]
    job = jobs.start(3, *command, env=intel(), options=options, protocol=protocol)
    for blow in range(kills or 4):
        known = written(job)
        if not job.until(lambda: written(job) >= known + 3, what="some files"):  # noqa: B023
            break
        time.sleep(rng.uniform(0, 0.05))
        victim = rng.randrange(3)
        if blow % 2 == 0:
            kill_with_snapshots(job, victim)
        else:
            job.kill([victim])
    result = job.wait().ok()
    assert by_rank(result.out) == by_rank(calm.out)
    came_about(began_from_images(result) and any(life["from_file"] for life in result.of("started")), result)


@pytest.mark.intel
def test_doctor_knows_intel_mpi(jobs, program):
    result = jobs.resurgo("doctor", harness.IMPI / "bin/IMB-MPI1", env=harness.environment(**INTEL)).ok()
    assert "Intel" in result.text and str(harness.IMPI) in result.text


@pytest.mark.intel
def test_intel_mpi_without_any_libfabric(jobs):
    env = harness.environment(VIRTUAL_ENV=harness.IMPI, PATH="/usr/bin:/bin")
    result = jobs.resurgo("run", "-n", "2", harness.IMPI / "bin/IMB-MPI1", "PingPong", env=env)
    if result.code == 0:
        pytest.skip("this machine has a libfabric of its own")
    assert "libfabric" in result.errors and not result.out, result.describe()


def test_debians_programs_are_served(jobs, program):
    result = jobs.run(3, *program("hello_debian")).ok()
    assert "3 ranks, sum 3" in result.text


def test_the_library_path_of_the_user_counts(jobs, program):
    """No environment active, the library named by LD_LIBRARY_PATH."""
    env = harness.environment(VIRTUAL_ENV=None, PATH="/usr/bin:/bin", LD_LIBRARY_PATH=harness.MPICH / "lib")
    for name in ("hello", "hello_abi"):
        assert "2 ranks, sum 1" in jobs.run(2, *program(name), env=env).ok().text


DEBIAN = sorted(Path("/usr/lib").glob("*-linux-gnu/libmpich.so.12"))
# A Python module that is linked with that library, as far as anybody can see.
BESIDE = """
import ctypes, sys
mpi = ctypes.CDLL(sys.argv[1])
assert mpi.MPI_Init(None, None) == 0
print("initialised", flush=True)
mpi.MPI_Finalize()
"""


@pytest.mark.skipif(not DEBIAN, reason="needs Debian's libmpich12")
@pytest.mark.parametrize("size", [1, 2])
def test_a_library_that_does_without_us_is_noticed_and_named(jobs, size):
    command = (harness.PYTHON, "-c", BESIDE, DEBIAN[0])
    env = harness.environment(UCX_TLS="tcp,self")  # its shared memory would stay behind
    result = jobs.run(size, *command, env=env)
    assert result.code == 1 and "initialised" not in result.text, result.describe()
    said = [line for line in result.errors.splitlines() if "cannot be protected" in line]
    assert len(said) == 1 and "libmpich.so.12" in said[0] and "UCX" in said[0], result.describe()
    assert not result.of("failed")
    result = jobs.run(size, *command, protocol="none", env=env).ok()
    assert result.text == "initialised\n" * size
    (warning,) = result.of("pmi_trouble")
    assert "libmpich.so.12" in warning["text"] and "UCX" in warning["text"]
    # The same with our library.
    jobs.run(size, harness.PYTHON, "-c", BESIDE, harness.MPICH / "lib/libmpi.so.12").ok()


SOLVER = """
#include <Python.h>
#include <mpi.h>
static PyObject *solve(PyObject *self, PyObject *none)
{
    int rank, size, sum = 0;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 300; i++) {
        int own = rank * i % 7 + sum % 5, all;
        MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        sum += all;
    }
    MPI_Finalize();
    return PyLong_FromLong(sum);
}
static PyMethodDef methods[] = {{"solve", solve, METH_NOARGS, ""}, {NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "solver", "", -1, methods};
PyMODINIT_FUNC PyInit_solver(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def extension(tmp_path):
    """Makes `main.py`, the module `helper` that it imports, and the extension `fast.solver` that this imports."""
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        pytest.skip("needs Python's headers")

    def make(*link, helper="from fast.solver import solve\n"):
        made = tmp_path / "fast" / f"solver{sysconfig.get_config_var('EXT_SUFFIX')}"
        made.parent.mkdir(exist_ok=True)
        (tmp_path / "solver.c").write_text(SOLVER)
        (tmp_path / "main.py").write_text("from helper import solve\nprint(solve(), flush=True)\n")
        (tmp_path / "helper.py").write_text(helper)
        words = ["-shared", "-fPIC", "-o", made, tmp_path / "solver.c", f"-I{include}", f"-I{harness.MPICH}/include", *link]
        subprocess.run(["cc", *words], check=True)
        return tmp_path / "main.py", str(made)

    return make


RPATH = "-Wl,--disable-new-dtags,-rpath,"


@pytest.mark.skipif(not DEBIAN, reason="needs Debian's libmpich12")
def test_an_extension_module_is_led_to_our_library(jobs, extension):
    """It is linked with Debian's library, and a module in the script's directory imports it."""
    script, made = extension(DEBIAN[0])
    told = jobs.resurgo("doctor", harness.PYTHON, script).ok().text
    assert f"{made} asks for libmpich.so.12" in told and "serves instead" in told and "protected    yes" in told
    assert "importlib" in told and "Python files: 2" in told
    calm = jobs.run(2, harness.PYTHON, script).ok()
    result = jobs.run(2, harness.PYTHON, script, options=[*MANY, "--fault", "rank=1,messages=100"]).ok()
    assert result.restarts == 1 and by_rank(result.out) == by_rank(calm.out), result.describe()


@pytest.mark.skipif(not DEBIAN, reason="needs Debian's libmpich12")
@pytest.mark.parametrize("what", ["UCX", "Open MPI"])
def test_an_extension_module_that_cannot_be_protected_is_named(jobs, extension, tmp_path, what):
    """Before anything starts, if Python certainly loads it."""
    library = DEBIAN[0]
    if what == "Open MPI":  # as far as the loader knows
        library = tmp_path / "libmpi.so.40"
        stub = "".join(f"void MPI_{name}(void) {{}}\n" for name in ("Init", "Comm_rank", "Comm_size", "Allreduce", "Finalize"))
        (tmp_path / "stub.c").write_text(stub)
        words = ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", "-o", library, tmp_path / "stub.c"]
        subprocess.run(["cc", *words], check=True)
    script, made = extension(library, f"{RPATH}{library.parent}")
    command = [harness.PYTHON, "-m", "main"]
    said = {verb: jobs.resurgo(verb, *command, cwd=tmp_path) for verb in ("doctor", "run")}
    for result in said.values():
        assert result.code == 2 and not result.out, result.describe()
        assert what in result.errors and result.errors.startswith(f"resurgo: {made} asks for "), result.describe()
    assert said["doctor"].errors == said["run"].errors
    # If Python may load it, there is a note.
    extension(library, f"{RPATH}{library.parent}", helper="def solve():\n    import fast.solver\nsolve = lambda: 7\n")
    told = jobs.resurgo("doctor", harness.PYTHON, script).ok().text
    assert f"note         a module that may be loaded cannot be protected: {made} asks for" in told
    result = jobs.run(1, harness.PYTHON, script).ok()
    assert result.text == "7\n" and f"cannot be protected: {made}" in result.errors, result.describe()
