# SPDX-License-Identifier: Apache-2.0
"""The Python wheel: in a fresh environment, and on a distribution with an older C library."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import harness

PIP = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
# pip reads no configuration of this machine.
ENV = {**{name: value for name, value in os.environ.items() if not name.startswith("PIP_")}, "PIP_CONFIG_FILE": os.devnull}
HEAT = (256, 256, 4000)


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **{"env": ENV, "timeout": 120, **more})
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return Path(run(sys.executable, harness.ROOT / "scripts/wheel.py", "--to", tmp_path_factory.mktemp("dist")).strip())


def test_in_a_fresh_environment(jobs, program, wheel, tmp_path):
    """One command installs all that `make install` does; a rank is killed; and nothing is left of it in the end."""
    environment = tmp_path / "with a space"
    run(sys.executable, "-m", "venv", environment)
    python, resurgo = environment / "bin/python", environment / "bin/resurgo"
    files = lambda: {path for path in environment.rglob("*") if "__pycache__" not in path.parts}
    before = files()
    run(python, *PIP, "install", "--no-index", "--no-deps", wheel)
    assert (environment / "include/resurgo/mpi-ext.h").is_file()
    assert (environment / "share/resurgo/examples/cg.c").is_file()

    calm = jobs.command([resurgo, "run", "-n", "4", *program("heat"), *HEAT]).wait().ok()
    killed = jobs.command([resurgo, "run", "-n", "4", "--fault", "rank=2,messages=2000", *program("heat"), *HEAT]).wait().ok()
    assert killed.text == calm.text and "rank 2 killed by SIGKILL" in killed.errors, killed.describe()
    script = "from mpi4py import MPI; from resurgo import ft; print(ft.__file__, ft.is_revoked(MPI.COMM_WORLD))"
    python_of_mpi = jobs.command([resurgo, "run", "--ft", "-n", "2", harness.PYTHON, "-c", script]).wait().ok()
    assert python_of_mpi.text == f"{environment}/lib/resurgo/python/resurgo/ft.py False\n" * 2
    # Its package is where `import` looks, and finds the program without PATH.
    script = f"import resurgo, sys; print(resurgo.__file__, flush=True); sys.exit(resurgo.run({[*program('heat'), *map(str, HEAT)]}, n=4).wait())"
    job = jobs.command([python, "-c", script], env=harness.environment(PATH="/usr/bin:/bin")).wait().ok()
    where, text = job.text.split("\n", 1)
    assert Path(where).is_relative_to(environment / "lib") and Path(where).parent.parent.name == "site-packages" and text == calm.text

    run(python, *PIP, "uninstall", "--yes", "resurgo")
    assert {path for path in files() - before if not path.is_dir()} == set()


def test_the_same_input_gives_the_same_bytes(wheel, tmp_path):
    again = Path(run(sys.executable, harness.ROOT / "scripts/wheel.py", "--to", tmp_path).strip())
    assert again.name == wheel.name and again.read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        record = archive.read(next(name for name in archive.namelist() if name.endswith("/RECORD"))).decode()
        assert {line.split(",")[0] for line in record.splitlines()} == set(archive.namelist())


def test_it_has_man_pages_and_completion(wheel):
    listed = run(harness.RESURGO, "--help")
    verbs = set(re.findall(r"^  resurgo ([a-z-]+)", listed, re.M))
    with zipfile.ZipFile(wheel) as archive:
        top = next(name.split("/")[0] for name in archive.namelist() if ".data/" in name)
        pages = {name.rsplit("/", 1)[1] for name in archive.namelist() if name.startswith(f"{top}/data/share/man/man1/")}
        assert pages == {"resurgo.1"} | {f"resurgo-{verb}.1" for verb in verbs}
        for shell, name in [
            ("bash", "bash-completion/completions/resurgo"),
            ("zsh", "zsh/site-functions/_resurgo"),
            ("fish", "fish/vendor_completions.d/resurgo.fish"),
        ]:
            text = archive.read(f"{top}/data/share/{name}").decode()
            assert text == run(harness.RESURGO, "completion", shell) != ""
            if shutil.which(shell):
                run(shell, "-n", "/dev/stdin", input=text)


def test_licences_and_the_list_of_packages_come_with_it(tmp_path):
    (tmp_path / "notices").write_text("The licence of another.\n")
    (tmp_path / "list").write_text("{}")
    words = ["--notices", tmp_path / "notices", "--sbom", tmp_path / "list", "--to", tmp_path]
    wheel = Path(run(sys.executable, harness.ROOT / "scripts/wheel.py", *words).strip())
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        assert archive.read(f"{info}/licenses/THIRD-PARTY") == b"The licence of another.\n"
        assert archive.read(f"{info}/licenses/LICENSE") == (harness.ROOT / "LICENSE").read_bytes()
        assert archive.read(f"{info}/sboms/resurgo.cdx.json") == b"{}"
        head = archive.read(f"{info}/METADATA").decode().split("\n\n")[0].splitlines()
    assert {"License-File: LICENSE", "License-File: THIRD-PARTY", "License-Expression: Apache-2.0"} <= set(head)


@pytest.fixture(scope="module")
def installers(tmp_path_factory):
    """pipx and uv, from an index of packages."""
    place = tmp_path_factory.mktemp("installers")
    run(sys.executable, "-m", "venv", place)
    command = [place / "bin/python", "-m", "pip", "install", "--quiet", "--retries", "0", "-r", harness.ROOT / "scripts/requirements-installers.txt"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"uv and pipx cannot be had: {done.stderr.strip().splitlines()[-1]}")
    return place / "bin"


@pytest.mark.soak
@pytest.mark.parametrize("installer", ["uv", "pipx"])
def test_installers_take_it(jobs, program, installers, wheel, tmp_path, installer):
    """`uv tool install` and `pipx install` put the program where users have theirs; `pipx run` needs no installation."""
    bin = tmp_path / "bin"
    env = {**ENV, "PIP_NO_INDEX": "1", "HOME": str(tmp_path), "PIPX_HOME": str(tmp_path / "tools"), "PIPX_BIN_DIR": str(bin)}
    env |= {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(bin), "UV_CACHE_DIR": str(tmp_path / "cache")}
    if installer == "uv":
        run(installers / "uv", "tool", "install", "--offline", "--no-config", "--python", sys.executable, wheel, env=env)
    else:
        version = run(installers / "pipx", "run", "--spec", wheel, "resurgo", "--version", env=env)
        assert version.splitlines()[0] == run(harness.RESURGO, "--version").splitlines()[0]
        run(installers / "pipx", "install", wheel, env=env)
    result = jobs.command([bin / "resurgo", "run", "-n", "2", "--fault", "rank=1,messages=100", *program("heat"), 64, 64, 500]).wait().ok()
    assert "rank 1 killed by SIGKILL" in result.errors
    command = [installers / "uv", "tool", "uninstall", "resurgo"] if installer == "uv" else [installers / "pipx", "uninstall", "resurgo"]
    run(*command, env=env)
    assert list(bin.iterdir()) == []


def test_what_is_not_built_is_one_error(tmp_path):
    done = subprocess.run([harness.ROOT / "scripts/wheel.py", "--build", tmp_path, "--to", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"install: {tmp_path}/bin/resurgo is missing: make builds it\n", done
    assert list(tmp_path.iterdir()) == []


def has_all_that_is_told_of_it(wheel, top):
    """What `make wheel` has made: no symbols, and all packages that are linked into the program have a licence, a place in
    the list, and one in the program."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(top)
    words = ["--package", "resurgo-cli", "--edges", "normal,no-proc-macro", "--target", "x86_64-unknown-linux-gnu", "--prefix", "none"]
    tree = run("cargo", "tree", "--locked", *words, cwd=harness.ROOT, env=os.environ)
    # Ours have a path behind the version.
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line and "(/" not in line}
    assert len(linked) > 100
    [listed] = top.glob("*.dist-info/sboms/resurgo.cdx.json")
    components = {(part["name"], "v" + part["version"]) for part in json.loads(listed.read_text())["components"]}
    assert not linked - components, linked - components
    [notices] = top.glob("*.dist-info/licenses/THIRD-PARTY")
    text = notices.read_text()
    assert not [name for name, _ in linked if name not in text]
    [program] = top.glob("*.data/scripts/resurgo")
    for path in [program, *top.glob("*.data/data/lib/resurgo/*.so")]:
        sections = run("readelf", "-S", "-W", path)
        assert ".symtab" not in sections and ".debug_info" not in sections, path
    assert ".dep-v0" in run("readelf", "-S", "-W", program)


RING = """
from mpi4py import MPI
world = MPI.COMM_WORLD
value = world.rank
for step in range(3000):
    value = world.allreduce(value) % 1000003 + world.rank
print(world.rank, value)
"""
# In a mount namespace and a process namespace of its own: what it mounts and starts ends with it.
INSIDE = """
set -e
mount -t proc proc /proc
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
python3 -m venv /environment
/environment/bin/pip install --quiet --no-index --find-links /wheels 'resurgo[mpich]' mpi4py
. /environment/bin/activate
resurgo run -n 4 python /ring.py | sort
echo killed
resurgo run -n 4 --fault rank=2,messages=3000 python /ring.py | sort
echo images
resurgo run -n 4 --checkpoint-every 100ms --fault rank=1,messages=6000 python /ring.py | sort
"""


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("debootstrap"), reason="needs root and Debian's debootstrap")
def test_on_an_older_distribution(tmp_path):
    """Debian 11 has glibc 2.31. `make wheel` builds for 2.28 and later."""
    run("make", "wheel", cwd=harness.ROOT, env=os.environ, timeout=3600)
    [wheel] = (harness.ROOT / "dist").glob("resurgo-*-manylinux_2_28_x86_64.whl")
    has_all_that_is_told_of_it(wheel, tmp_path / "unpacked")
    top = tmp_path / "root"
    mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").splitlines()[0]
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bullseye", top, mirror, timeout=900)
    wheels = top / "wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    needed = (harness.ROOT / "scripts/requirements-mpich.txt").read_text().splitlines()
    libraries = [line for line in needed if line.startswith(("mpich==", "mpi4py=="))]
    command = [harness.PYTHON, *PIP, "download", "--no-deps", "--python-version", "3.9", "--only-binary", ":all:"]
    run(*command, "--dest", wheels, *libraries, env=os.environ, timeout=600)
    (top / "ring.py").write_text(RING)
    out = run("unshare", "--mount", "--pid", "--fork", "chroot", top, "/bin/sh", "-c", INSIDE, timeout=600)
    calm, killed, images = out.replace("images\n", "killed\n").split("killed\n")
    assert len(calm.splitlines()) == 4 and calm == killed == images, out
