# SPDX-License-Identifier: Apache-2.0
"""The gate, run on tests that are planted in a copy."""

import os
import subprocess

import harness


def gate_of(directory, tests, lines="", others=(), **variables):
    """Runs the gate with these tests, or with other files of tests, and with this list of known failures."""
    own = harness.ROOT / "tests"
    (directory / "tests/lib").mkdir(parents=True)
    for name in ("gate.py", "conftest.py", "pytest.ini", *(f"lib/{path.name}" for path in (own / "lib").glob("*.py")), *others):
        text = (own / name).read_text()
        if name == "lib/harness.py":
            text = text.replace("Path(__file__).resolve().parents[2]", repr(own.parent).replace("PosixPath", "Path"))
        (directory / "tests" / name).parent.mkdir(exist_ok=True)
        (directory / "tests" / name).write_text(text)
    (directory / "tests" / "flaky.txt").write_text(lines)
    if tests:
        (directory / "tests" / "test_planted.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(harness.ROOT / "bench"), **{name: str(value) for name, value in variables.items()}}
    command = [harness.PYTHON, "tests/gate.py"]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
