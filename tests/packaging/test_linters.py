# SPDX-License-Identifier: Apache-2.0
"""Scripts, and the recipes in `packaging/` and `examples/jobs`, read by the tools that they are for: shellcheck, hadolint,
EasyBuild, and the schemas of Kubernetes. No registry has Spack or Apptainer: what these read is read here."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import harness

PACKAGING = harness.ROOT / "packaging"
VERSION = re.search(r'^version = "(.*)"', (harness.ROOT / "Cargo.toml").read_text(), re.M)[1]
MODULECMD = next(iter(Path("/usr/lib").glob("*/modulecmd.tcl")), None)
RECIPE = next(PACKAGING.glob("easybuild/*.eb"))


def tool(environment, name):
    """A program of one of the set-up's environments."""
    place = harness.DEPS / environment / "bin" / name
    if not place.exists():
        pytest.skip(f"there is no {name}: scripts/setup.sh {'packaging' if environment == 'packaging' else 'all'} brings it")
    return place


def read(*command, **more):
    """The exit status of a tool, and all that it says."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": harness.patience(60), **more}
    done = subprocess.run(list(map(str, command)), **more)
    return done.returncode, done.stdout


def scripts():
    """Every script for a shell, by its first line."""
    for folder in (".ci", "scripts", "packaging", "examples", "bench"):
        for path in sorted((harness.ROOT / folder).rglob("*")):
            if path.is_file() and re.match(rb"#!\S*[/ ](ba)?sh\b", path.read_bytes()[:40]):
                yield path


def test_shellcheck_reads_every_script(tmp_path):
    shellcheck, found = tool("linters", "shellcheck"), list(scripts())
    assert {"run", "setup.sh", "install.sh", "deb.sh", "slurm.sh"} <= {path.name for path in found}
    assert read(shellcheck, *found) == (0, "")
    planted = tmp_path / "planted.sh"
    planted.write_text("#!/bin/sh\nrm -rf $1/\n")
    assert "SC2086" in read(shellcheck, planted)[1]


def test_hadolint_reads_the_recipe_of_a_container():
    hadolint, text = tool("linters", "hadolint"), (PACKAGING / "Containerfile").read_text()
    assert read(hadolint, "-", input=text) == (0, "")
    for planted, rule in ((text.replace("--no-install-recommends ", ""), "DL3015"), (text.replace("USER 1000", "USER root"), "DL3002")):
        assert planted != text and rule in read(hadolint, "-", input=planted)[1]


SECTIONS = {"setup", "files", "arguments", "startscript", "runscript", "post", "environment", "labels", "test", "help"}


def sections(text):
    """The head of a definition for Apptainer, and its sections."""
    head, *parts = re.split(r"^%", text, flags=re.M)
    head = dict(line.split(": ") for line in head.splitlines() if line and not line.startswith("#"))
    named = [part.split("\n", 1) for part in parts]
    assert {name for name, _ in named} <= SECTIONS and len({name for name, _ in named}) == len(named), named
    return head, dict(named)


def test_a_definition_for_apptainer():
    """Its parts have names that Apptainer knows, and what it runs is read by shellcheck."""
    head, parts = sections((PACKAGING / "resurgo.def").read_text())
    container = (PACKAGING / "Containerfile").read_text()
    assert head == {"Bootstrap": "docker", "From": re.search("^FROM (.*)", container, re.M)[1]}
    assert parts.keys() == {"files", "post", "environment", "runscript"}
    # It installs what the other container has, and from the same wheel.
    wanted = [re.search(r"install -y (.*?)( \\)?$", text, re.M)[1] for text in (container, parts["post"])]
    assert wanted[0] == wanted[1]
    assert parts["files"].split()[0].removeprefix("dist/") == re.search("COPY resurgo-(.*?) ", container)[1]
    shellcheck = tool("linters", "shellcheck")
    for name in ("post", "environment", "runscript"):
        assert read(shellcheck, "--shell=sh", "-", input=parts[name]) == (0, ""), name
    with pytest.raises(AssertionError):
        sections("Bootstrap: docker\n%psot\n    true\n")


class Directives(dict):
    """The names that a Spack package may use without defining them."""

    def __init__(self, namespace):
        super().__init__(namespace)
        self.calls = []
        for name in ("license", "version", "depends_on", "requires"):
            self[name] = lambda *words, name=name, **more: self.calls.append((name, words, more))


def spack_package(text, installed):
    """Runs the file of a Spack package, its phases and its environment in place of Spack, with what its interface has."""
    modules = {name: types.ModuleType(name) for name in ("spack", "spack.package", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems")}
    makefile = modules["spack_repo.builtin.build_systems.makefile"] = types.ModuleType("makefile")
    makefile.MakefilePackage = type("MakefilePackage", (), {})
    ran, decorated = [], []
    names = Directives({
        "make": lambda *words: ran.append(["make", *words]),
        "Executable": lambda path: lambda *words: ran.append([str(path), *words]),
        "run_after": lambda phase: lambda method: decorated.append((phase, method)) or method,
        "on_package_attributes": lambda **wanted: lambda method: method,
    })
    vars(modules["spack.package"]).update(names)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        space = {"__name__": "spack_repo.resurgo.packages.resurgo.package"}
        exec(compile(text, "package.py", "exec"), space)
    package = space["Resurgo"]()
    assert isinstance(package, makefile.MakefilePackage)

    class Prefix(str):
        def __getattr__(self, name):
            return Prefix(os.path.join(self, name))

    package.prefix = Prefix(installed)
    package.build(None, package.prefix)
    package.install(None, package.prefix)
    for phase, method in decorated:
        assert phase == "install"
        method(package)
    env, paths = types.SimpleNamespace(), {}
    env.prepend_path = lambda name, place: paths.setdefault(name, place)
    package.setup_run_environment(env)
    return package, names.calls, ran, paths


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An installation."""
    top = tmp_path_factory.mktemp("installed")
    subprocess.run([harness.ROOT / "scripts/install.sh", "install"], env={**os.environ, "PREFIX": str(top)}, check=True, capture_output=True)
    return top


def test_a_package_for_spack(installed):
    """What it runs is there, and so are the places that it names."""
    repository = PACKAGING / "spack/spack_repo/resurgo"
    text = (repository / "packages/resurgo/package.py").read_text()
    assert re.fullmatch(r"repo:\n  namespace: (\w+)\n  api: v2\.0\n", (repository / "repo.yaml").read_text())[1] == repository.name
    package, calls, ran, paths = spack_package(text, installed)
    assert package.url.endswith(f"/resurgo-{VERSION}.tar.gz") and ("version", (VERSION,), {}) in calls
    rust = re.search(r'rust-version = "(.*)"', (harness.ROOT / "Cargo.toml").read_text())[1]
    assert ("depends_on", (f"rust@{rust}:",), {"type": "build"}) in calls and ("license", ("Apache-2.0",), {}) in calls
    targets = set(re.findall(r"^([a-z]+):", (harness.ROOT / "Makefile").read_text(), re.M))
    assert [words[1] for words in ran if words[0] == "make"] == ["build", "install"] and {"build", "install"} <= targets
    assert read(*next(words for words in ran if words[0] != "make"))[1].startswith(f"resurgo {VERSION}")
    assert set(paths) == {"PYTHONPATH", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"} and all(map(os.path.isdir, paths.values())), paths
    with pytest.raises(NameError):
        spack_package(text.replace("depends_on", "depend_on", 1), installed)


@pytest.fixture
def easybuild(tmp_path):
    """Runs EasyBuild in directories of its own."""
    eb = tool("packaging", "eb")
    if not MODULECMD:
        pytest.skip("there is no modulecmd.tcl, which EasyBuild asks: scripts/setup.sh packaging brings it, on Debian")
    # EasyBuild wants it below MODULESHOME.
    (tmp_path / "libexec").mkdir()
    (tmp_path / "libexec/modulecmd.tcl").symlink_to(MODULECMD)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EASYBUILD_", "LMOD_", "MODULE"))}
    env = {**kept, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "MODULESHOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    env |= {"PATH": f"{eb.parent}:{env['PATH']}", "EASYBUILD_PREFIX": str(tmp_path / "eb"), "EASYBUILD_MODULE_SYNTAX": "Tcl"}
    env |= {"EASYBUILD_MODULES_TOOL": "EnvironmentModules", "EASYBUILD_ALLOW_MODULES_TOOL_MISMATCH": "1"}
    if os.geteuid() == 0:
        env["EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES"] = "1"

    def run(*words, **more):
        return read(eb, *words, env={**env, **more}, cwd=tmp_path, timeout=harness.patience(300))

    return run


def test_easybuild_reads_its_recipe(easybuild, tmp_path):
    code, said = easybuild("--check-style", RECIPE)
    assert code == 0 and "All style checks PASSed" in said, said
    # Its own recipes have all that ours asks for, but Rust, of which the comment says how to get it.
    text = RECIPE.read_text()
    code, said = easybuild("--dry-run", "--robot", RECIPE)
    missing = set(re.findall(r"(\w+)/[\w.]+-GCCcore", said.partition("Missing dependencies:")[2]))
    assert missing <= {"Rust"} and (code == 0) == (not missing), said
    [comment] = re.findall(r"^#   eb (.*)", text, re.M)
    code, said = easybuild("--dry-run", *comment.replace("--robot", "").split())
    rust = re.search(r"\('Rust', '(.*)'\)", text)[1]
    assert code == 0 and f"(module: Rust/{rust}-GCCcore-" in said, said
    for right, wrong in (("installopts", "installopt"), ("name = 'Resurgo'\n", ""), ("('Python', '3", "('Pyhton', '3")):
        planted = tmp_path / RECIPE.name
        planted.write_text(text.replace(right, wrong))
        code, said = easybuild("--dry-run", "--robot", planted)
        missing = set(re.findall(r"(\w+)/[\w.]+-GCCcore", said.partition("Missing dependencies:")[2]))
        assert code != 0 and missing != {"Rust"}, said


def test_easybuild_installs_by_its_recipe(easybuild, tmp_path):
    """Without a compiler of its own, and with a cargo that has built all."""
    sources = tmp_path / "sources"
    sources.mkdir()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=harness.ROOT, check=True, capture_output=True).stdout
    pack = ["tar", "--null", "-T", "-", "--ignore-failed-read", "--transform", f"s,^,resurgo-{VERSION}/,", "-czf"]
    subprocess.run([*pack, sources / f"resurgo-{VERSION}.tar.gz"], cwd=harness.ROOT, input=files, check=True, capture_output=True)
    text = RECIPE.read_text()
    text = re.sub(r"^toolchain = .*", "toolchain = SYSTEM", text, flags=re.M)
    text = re.sub(r"^(build)?dependencies = \[.*?^\]", "", text, flags=re.M | re.S)
    (tmp_path / f"Resurgo-{VERSION}.eb").write_text(text)
    release, build = tmp_path / "target/release", harness.RESURGO.parents[1]
    release.mkdir(parents=True)
    for name in ("fi", "ft", "pmpi"):
        (release / f"libresurgo_{name}.so").symlink_to(build / f"lib/resurgo/libresurgo-{name}.so")
    (release / "resurgo").symlink_to(harness.RESURGO)
    (release / "resurgo-sim").symlink_to(build / "lib/resurgo/resurgo-sim")
    rust = re.search(r"\('Rust', '(.*)'\)", RECIPE.read_text())[1]
    cargo = tmp_path / "cargo"
    cargo.write_text(f"#!/bin/sh\n[ \"$1\" != --version ] || echo cargo {rust}\n")
    cargo.chmod(0o755)
    path = f"{tmp_path}:{harness.DEPS / 'packaging/bin'}:{os.environ['PATH']}"
    code, said = easybuild(f"--sourcepath={sources}", f"Resurgo-{VERSION}.eb", PATH=path, CARGO_TARGET_DIR=str(tmp_path / "target"))
    assert code == 0 and f"[SUCCESS] Resurgo/{VERSION}" in said, said
    check = 'eval "$("$0" sh load Resurgo)" && resurgo --version && python3 -c "import resurgo; print(resurgo.__file__)"'
    env = {**os.environ, "MODULEPATH": str(tmp_path / "eb/modules/all")}
    code, said = read("sh", "-c", check, MODULECMD, env=env)
    assert code == 0 and said.startswith(f"resurgo {VERSION}") and f"/software/Resurgo/{VERSION}/lib/resurgo/python/" in said, said


def test_the_manifest_is_one_of_kubernetes(tmp_path):
    validate, manifest = tool("packaging", "kubernetes-validate"), harness.ROOT / "examples/jobs/kubernetes.yaml"
    code, said = read(validate, "--strict", manifest)
    assert code == 0 and said.count(" passed ") == 3, said
    planted = tmp_path / "planted.yaml"
    planted.write_text(manifest.read_text().replace("backoffLimit", "backofLimit", 1))
    code, said = read(validate, "--strict", planted)
    assert code != 0 and "'backofLimit' was unexpected" in said, said
