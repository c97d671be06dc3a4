# SPDX-License-Identifier: Apache-2.0
"""What `packaging/` has: a Debian package, and recipes that name what an installation has."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import harness

PACKAGING = harness.ROOT / "packaging"
VERSION = re.search(r'^version = "(.*)"', (harness.ROOT / "Cargo.toml").read_text(), re.M)[1]
# Environment Modules, or Lmod: Debian has one of them at a time.
MODULECMD = next(iter([*Path("/usr/lib").glob("*/modulecmd.tcl"), *Path("/usr/share/lmod").glob("*/libexec/lmod")]), None)
# What lintian also says, and why it may.
ALLOWED = [
    "hardening-no-fortify-functions",  # of programs in C
    "spelling-error-in-binary",  # bytes that look like words
    "package-contains-documentation-outside-usr-share-doc",  # the README of the examples is beside them
]


@pytest.fixture(scope="module")
def package():
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs Debian's dpkg-deb")
    place = harness.ROOT / "dist" / f"resurgo_{VERSION}_amd64.deb"
    subprocess.run([PACKAGING / "deb.sh"], check=True, capture_output=True, timeout=120)
    return place


@pytest.fixture(scope="module")
def top(package, tmp_path_factory):
    """What the Debian package has, unpacked."""
    top = tmp_path_factory.mktemp("package")
    subprocess.run(["dpkg-deb", "-x", package, top], check=True, timeout=60)
    return top / "usr"


def test_what_a_debian_package_has_runs(jobs, program, top):
    resurgo = top / "bin/resurgo"
    result = jobs.command([resurgo, "run", "-n", "2", "--fault", "rank=1,messages=100", *program("heat"), 64, 64, 500]).wait().ok()
    assert "rank 1 killed by SIGKILL" in result.errors
    assert (top / "share/doc/resurgo/copyright").is_file() and not list(top.rglob("*.pyc"))


def test_a_debian_package_has_no_symbols_but_pages_and_completion(top):
    programs = [top / "bin/resurgo", top / "lib/resurgo/resurgo-sim", *(top / "lib/resurgo").glob("*.so")]
    assert len(programs) == 5
    for path in programs:
        sections = subprocess.run(["readelf", "-S", "-W", path], capture_output=True, text=True, check=True, timeout=30).stdout
        assert ".text" in sections and ".symtab" not in sections and ".debug_info" not in sections, path
    listed = subprocess.run([top / "bin/resurgo", "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    pages = {"resurgo.1"} | {f"resurgo-{verb}.1" for verb in re.findall(r"^  resurgo ([a-z-]+)", listed, re.M)}
    assert {page.name.removesuffix(".gz") for page in (top / "share/man/man1").iterdir()} == pages
    for shell, name in [
        ("bash", "bash-completion/completions/resurgo"),
        ("zsh", "zsh/site-functions/_resurgo"),
        ("fish", "fish/vendor_completions.d/resurgo.fish"),
    ]:
        told = subprocess.run([top / "bin/resurgo", "completion", shell], capture_output=True, text=True, check=True, timeout=30).stdout
        assert (top / "share" / name).read_text() == told != ""


@pytest.mark.skipif(not shutil.which("lintian"), reason="there is no lintian: scripts/setup.sh packaging brings it, on Debian")
def test_lintian_reads_the_debian_package(package):
    words = ["--display-info", "--fail-on", "error,warning,info", "--suppress-tags", ",".join(ALLOWED)]
    root = ["--allow-root"] if os.geteuid() == 0 else []
    done = subprocess.run(["lintian", *root, *words, package], capture_output=True, text=True, timeout=harness.patience(120))
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_recipes_name_what_there_is(top):
    recipe = next(PACKAGING.glob("easybuild/*.eb"))
    values = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(recipe.read_text()).body if isinstance(node, ast.Assign)}
    assert values["version"] == VERSION and recipe.name.startswith(f"Resurgo-{VERSION}-")
    missing = [path for kind in ("files", "dirs") for path in values["sanity_check_paths"][kind] if not (top / path).exists()]
    assert not missing
    rust = re.search(r'rust-version = "(.*)"', (harness.ROOT / "Cargo.toml").read_text())[1]
    assert f"('Rust', '{rust}.0')" in recipe.read_text()


@pytest.mark.skipif(not MODULECMD, reason="there is no modulecmd.tcl: scripts/setup.sh packaging brings it, on Debian")
def test_the_module_finds_the_program(top, tmp_path):
    modules = tmp_path / "modules/resurgo"
    modules.mkdir(parents=True)
    text = (PACKAGING / "modulefile").read_text()
    (modules / VERSION).write_text(text.replace("set prefix /opt/resurgo", f"set prefix {top}"))
    env = {**os.environ, "MODULEPATH": str(modules.parent)}
    done = subprocess.run([MODULECMD, "sh", "load", "resurgo"], env=env, capture_output=True, text=True, timeout=30)
    script = done.stdout + "\nresurgo --version"
    version = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=30).stdout
    assert version.startswith(f"resurgo {VERSION}"), done
    script = done.stdout + "\npython3 -c 'import resurgo; print(resurgo.__file__)'"
    package = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=30).stdout
    assert package == f"{top}/lib/resurgo/python/resurgo/__init__.py\n", done
