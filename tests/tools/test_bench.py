# SPDX-License-Identifier: Apache-2.0
"""`resurgo bench paper`: its messages when something is wrong or missing, and its figures, which must come out
whole."""

import csv
import itertools
import os
import re
import shutil
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

import cluster
import figures.common as common
import harness
import node_memory
import svg
from settings import REDUCTIONS

FIGURES = ["mpich-v-7", "mpich-v-8", "mpich-v-9", "mpich-v-9-server", "node-loss", "causal-6", "causal-7", "causal-8", "causal-10", "gao-3", "gao-4", "gao-5", "gao-6",
           "walters-table-1", "walters-1", "walters-2", "walters-3", "walters-4", "ft-mpi-3", "ft-mpi-table-1"]
KERNELS = ("cg", "lu", "bt", "ft")
REAL = harness.environment(RESURGO_DEPS=harness.DEPS)


def bench(jobs, *arguments, env=None, **more):
    return jobs.resurgo("bench", *arguments, env=env or REAL, **more)


def outcome(out, name):
    """The rows of a figure's CSV; checks that its table and picture are whole."""
    text = (out / f"{name}.md").read_text()
    for part in ("## What the paper saw", "## What is seen here", "## Why it differs", f"({name}.svg)"):
        assert part in text
    picture = xml.parse(out / f"{name}.svg").getroot()
    assert [group for group in picture.iter() if group.get("id", "").startswith("series-")], "no line is drawn"
    with open(out / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file)), text


def test_a_timeline_has_a_bar_for_each_life(jobs, program):
    jobs.run(4, *program("hello"), options=["--nodes", "2"]).ok()
    picture = jobs.directory / "nodes.svg"
    drawn = jobs.command([harness.PYTHON, harness.ROOT / "bench/timeline.py", jobs.jobs[-1].events_file, picture]).wait().ok()
    assert not drawn.errors
    bars = [group.get("id") for group in xml.parse(picture).getroot().iter() if group.get("id", "").startswith("rank-")]
    assert sorted(bar.split("-")[1] for bar in bars) == ["0", "1", "2", "3"], bars


def test_alone_it_lists_the_figures(jobs):
    result = bench(jobs).ok()
    assert [line.split()[0] for line in result.text.splitlines() if line.startswith("  ")] == FIGURES
    assert bench(jobs, "paper").ok().text == result.text


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["papers"], 'did you mean "resurgo bench paper"?'),
        (["paper", "mpich-v7"], "did you mean mpich-v-7?"),
        (["paper", "causal-10", "--protocols", "optimistic"], "no protocol 'optimistic'"),
        (["paper", "causal-10", "--ranks", "four"], "'four' is no list"),
        (["paper", "causal-10", "--ranks", "0"], "'0' is no list"),
        (["paper", "causal-10", "--faster"], "--faster"),
    ],
)
def test_a_wrong_command_line(jobs, arguments, said):
    result = bench(jobs, *arguments)
    assert result.code == 2, result.describe()
    assert said in result.errors and result.errors.count("\n") == 1, result.describe()


def test_no_python(jobs, tmp_path):
    result = bench(jobs, env=REAL | {"PATH": str(tmp_path)})
    assert result.code == 1 and "needs python3" in result.errors, result.describe()


@pytest.mark.parametrize("without", ["mpiexec", "make"])
def test_missing_tools(jobs, tmp_path, without):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    if without != "make":
        (tools / "make").symlink_to(shutil.which("make"))
    deps = "/nonexistent" if without == "mpiexec" else str(harness.DEPS)
    result = bench(jobs, "paper", "mpich-v-7", env=REAL | {"PATH": str(tools), "RESURGO_DEPS": deps})
    assert result.code == 1, result.describe()
    assert f"bench: {without}" in result.errors and result.errors.count("\n") == 1, result.describe()


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root has no file system that cannot be written to at hand")
def test_a_place_that_cannot_be_written_to(jobs):
    result = bench(jobs, "paper", "causal-10", "--quick", "--out", "/proc/here")
    assert result.code == 1 and "--out" in result.errors, result.describe()


@pytest.mark.slow
def test_a_figure_of_real_processes(jobs, tmp_path):
    result = bench(jobs, "paper", "mpich-v-8", "--quick", "--protocols", "none,blocking", "--ranks", "2", "--out", tmp_path / "out")
    rows, text = outcome(tmp_path / "out", "mpich-v-8")
    assert result.ok() and {"none", "blocking", "MPICH ofi/tcp"} <= {row["contender"] for row in rows}
    assert {row["kernel"] for row in rows} == {"cg", "lu", "ft"}, "bt does not run on 2"
    assert all(0 < float(row["seconds"]) < 60 for row in rows)
    assert "pessimistic" not in text.split("## What the paper saw")[0]


@pytest.mark.slow
def test_faults_with_and_without_local_copies(jobs, tmp_path):
    result = bench(jobs, "paper", "mpich-v-9", "--quick", "--protocols", "chandy-lamport", "--out", tmp_path, timeout=300)
    rows, text = outcome(tmp_path, "mpich-v-9")
    assert result.ok() and "with local copies Chandy-Lamport makes progress" in text
    for variant in (common.LOCAL, common.STORE):
        seconds = {row["faults_per_minute"]: row["seconds"] for row in rows if row["contender"] == variant.name}
        assert float(seconds["0"]) > 0 and "120" in seconds, rows


@pytest.mark.slow
def test_a_simulated_figure(jobs, tmp_path):
    bench(jobs, "paper", "causal-10", "--quick", "--ranks", "4,16", "--out", tmp_path, timeout=300).ok()
    rows, text = outcome(tmp_path, "causal-10")
    assert "**simulated, with costs as given below; also measured on this machine**" in text
    simulated, measured = ([row for row in rows if row["where"] == where] for where in ("simulated", "measured"))
    size = {(row["kernel"], row["event_loggers"], row["ranks"]): int(row["bytes"]) for row in simulated}
    for kernel in KERNELS:
        assert size[kernel, "0", "16"] > 5 * size[kernel, "1", "16"], kernel
    times = {(row["kernel"], row["event_loggers"], row["ranks"]): float(row["together_ms"]) for row in measured}
    assert set(times) == set(itertools.product(KERNELS, "01", ("4", "16")))
    assert all(0 < time < 30_000 for time in times.values()), times


def test_a_simulated_figure_alone(jobs, tmp_path):
    bench(jobs, "paper", "causal-10", "--quick", "--protocols", "none", "--out", tmp_path).ok()
    rows, text = outcome(tmp_path, "causal-10")
    assert {row["where"] for row in rows} == {"simulated"}
    assert "**simulated, with costs as given below**" in text


def test_nodes_that_can_be_lost_are_counted(jobs, tmp_path):
    result = bench(jobs, "paper", "walters-table-1", "--quick", "--out", tmp_path).ok()
    rows, text = outcome(tmp_path, "walters-table-1")
    assert "After table 1 of Walters" in text and "**no**" not in text.split("## Why")[0], result.describe()
    theirs = [row for row in rows if row["paper"]]
    assert len(theirs) == 5 * 12, "5 numbers of nodes, 4 of replicas, 3 chances"
    assert [(row["nodes"], row["copies"], row["wanted"], row["most"], row["paper"]) for row in theirs if row["most"] != row["paper"]] == [
        ("16", "2", "0.9", "3", "2"), ("64", "3", "0.999", "5", "4")]
    assert all(float(row["chance"]) >= float(row["wanted"]) for row in theirs)


@pytest.mark.slow
def test_checkpoints_on_local_disks(jobs, tmp_path):
    bench(jobs, "paper", "walters-1", "--quick", "--out", tmp_path, timeout=300).ok()
    rows, _ = outcome(tmp_path, "walters-1")
    waves = [row for row in rows if row["every_s"]]
    assert waves and all(int(row["waves"]) > 0 and float(row["writing_ms"]) > 0 and float(row["image_bytes"]) > 8 << 20 for row in waves), rows


@pytest.mark.slow
@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
@pytest.mark.parametrize("name, ways", [
    ("walters-2", {"checkpoint server", "shared storage"}),
    ("walters-3", {"1 replica", "checkpoint server"}),
    ("walters-4", {"1 replica", "checkpoint server", "shared storage"}),
])
def test_replicas_beside_central_storage(jobs, tmp_path, name, ways):
    bench(jobs, "paper", name, "--quick", "--out", tmp_path, timeout=600).ok()
    rows, text = outcome(tmp_path, name)
    measured = {row["way"]: row for row in rows if row["where"] == "measured"}
    assert ways | {"no images"} <= set(measured)
    assert all(int(measured[way]["waves"]) > 0 and int(measured[way]["image_bytes"]) > 8 << 20 for way in ways), measured
    assert all(float(row["seconds"]) > 0 for row in measured.values())
    if name == "walters-4":
        modelled = {(row["way"], row["nodes"]): float(row["counts_after_s"]) for row in rows if row["where"] == "modelled"}
        assert modelled["checkpoint server", "256"] > modelled["4 replicas", "256"] > modelled["1 replica", "256"]
        assert "1 replica: checkpoint server from 3 nodes on, shared storage from 8 nodes on" in text


@pytest.mark.slow
@pytest.mark.skipif(not cluster.is_possible(), reason="network namespaces cannot be made here (as root, with ip and tc)")
def test_a_rank_and_its_images_are_lost_beside_a_server(jobs, tmp_path):
    bench(jobs, "paper", "mpich-v-9-server", "--quick", "--out", tmp_path, timeout=300).ok()
    rows, text = outcome(tmp_path, "mpich-v-9-server")
    calm, faulty = rows[:2], rows[2:]
    assert {row["contender"] for row in calm} == {"chandy-lamport, store and local copies", "chandy-lamport, store only"}
    assert all(float(row["seconds"]) > 0 and row["kills_that_struck"] == "0" for row in calm), rows
    assert all(row["faults_per_minute"] == "24" and int(row["kills_that_struck"]) > 0 for row in faulty), rows
    assert "link of 100mbit each" in text


@pytest.mark.slow
def test_a_node_is_lost_under_logs_and_waves(jobs, tmp_path):
    bench(jobs, "paper", "node-loss", "--quick", "--protocols", "blocking,pessimistic", "--out", tmp_path, timeout=300).ok()
    rows, text = outcome(tmp_path, "node-loss")
    kinds = {row["contender"]: row["goes_on_from"] for row in rows}
    assert kinds == {"blocking": "waves", "pessimistic, node": "logs", "pessimistic": "neither"}, rows
    assert all(0 < float(row["moment_seconds"]) < float(row["seconds_undisturbed"]) and float(row["seconds"]) > 0 for row in rows), rows
    assert "logging loses less time than a return of all" in text


@pytest.mark.slow
def test_programs_that_deal_with_failures_beside_others(jobs, tmp_path):
    bench(jobs, "paper", "ft-mpi-3", "ft-mpi-table-1", "--quick", "--protocols", "none", "--out", tmp_path, timeout=300).ok()
    rows, text = outcome(tmp_path, "ft-mpi-3")
    assert {"MPICH", "--ft", "none"} <= {row["contender"] for row in rows} and all(float(row["half_round_trip_us"]) > 0 for row in rows)
    assert "| ranks; µs of MPI_Allreduce |" in text and "\n| 2 | 8 " in text
    rows, text = outcome(tmp_path, "ft-mpi-table-1")
    assert {"--ft", "none"} <= {row["contender"] for row in rows} and {row["block"] for row in rows} == {"16", "80", "240"}
    assert "| ranks; ms from the death of one |" in text and "\n| 3 |" in text and "\n| 4 |" in text


@pytest.mark.slow
def test_piggybacks_are_simulated_and_measured(jobs, tmp_path):
    bench(jobs, "paper", "causal-7", "causal-8", "--quick", "--ranks", "4", "--out", tmp_path, timeout=300).ok()
    methods = set(itertools.product(KERNELS, REDUCTIONS, "01"))
    for name in ("causal-7", "causal-8"):
        rows, _ = outcome(tmp_path, name)
        for where in ("simulated", "measured"):
            these = [row for row in rows if row["where"] == where]
            assert {(row["kernel"], row["reduction"], row["event_loggers"]) for row in these} == methods, where
        for row in these:  # measured
            if name == "causal-7":
                assert 0 < int(row["piggyback_bytes"]) < 2 * int(row["payload_bytes"]), row
                assert 0 <= int(row["empty_messages"]) < int(row["messages"]) and int(row["most_kept"]) > 0, row
            else:
                assert float(row["making_us"]) > 0 and float(row["taking_in_us"]) > 0, row
                assert 0 < float(row["percent_of_run"]) < 100, row


@pytest.mark.slow
def test_delays_of_groups_are_measured_and_simulated(jobs, tmp_path):
    bench(jobs, "paper", "gao-6", "--quick", "--protocols", "blocking,group", "--out", tmp_path, timeout=300).ok()
    rows, text = outcome(tmp_path, "gao-6")
    assert "(measured)" in text
    delays = {row["checkpoint_group"]: float(row["mean_delay_ms"]) for row in rows if row["where"] == "simulated"}
    assert delays["4"] < 0.6 * delays["32"], delays


def test_ranks_that_no_kernel_runs_on(jobs, tmp_path):
    result = bench(jobs, "paper", "mpich-v-8", "--quick", "--ranks", "17", "--out", tmp_path)
    assert result.code == 1 and "1 to 16" in result.text, result.describe()


def test_what_the_binary_does_not_offer_is_left_out(monkeypatch):
    monkeypatch.setattr(common, "offered", lambda: ({"none", "causal", "pessimistic"}, {"--tolerate"}))
    result = common.Result(())
    taken = common.Setting(protocols=["none", "causal", "blocking"]).variants(result)
    assert [variant.name for variant in taken] == ["none"]
    stored = common.Setting().variants(common.Result(()), lambda variant: variant.images, common.STORED)
    assert not {variant.name for variant in stored} & {common.LOCAL.name, common.STORE.name}
    assert "`--protocol blocking`" in result.left_out
    assert any("--reduction" in what for what in result.left_out), "causal is there, its reductions are not"


def drawn(path, by_matplotlib=False):
    """For each line in a picture: its number of points, and its look."""
    lines = [group for group in xml.parse(path).getroot().iter() if group.get("id", "").startswith("series-")]
    points = lambda line: line.findall(".//{*}use") if by_matplotlib else [*line.findall("{*}circle"), *line.findall("{*}path")]
    look = lambda line: line.find("{*}path").get("style") if by_matplotlib else str(sorted(line.find("{*}polyline").items())[1:])
    return [(len(points(line)), look(line)) for line in lines]


@pytest.mark.parametrize("how", ["svg", "plot"])
def test_pictures_have_every_point_and_no_two_lines_alike(tmp_path, how):
    """Drawn by our own code, and by matplotlib where that is installed."""
    many = {f"number {i}": [(x, x + i, x, x + 2 * i + 1) for x in (1, 2, 16)] for i in range(25)}
    panels = [
        svg.Panel("a < b", "ranks", "ms", {"number 1": [(1, 0.5), (2, 20), (16, 400)], "number 2": [(2, 3)]}, True),
        svg.Panel("flat", "x", "y", {"number 1": [("a", 0)]}),
        svg.Panel("many", "x", "y", many, marks=[(2, "here")]),
    ]
    draw = svg.draw if how == "svg" else pytest.importorskip("plot").draw
    draw(tmp_path / "picture.svg", "title & more", panels, svg.styles(many))
    lines = drawn(tmp_path / "picture.svg", how == "plot")
    assert [points for points, _ in lines] == [3, 1, 1, *[3] * 25], lines
    looks = [look for _, look in lines[3:]]
    assert len(set(looks)) == len(looks), looks
    assert len({(style.colour, style.dash) for style in svg.styles(range(40)).values()}) == 40


def test_a_broken_matplotlib_does_not_lose_a_picture(tmp_path, monkeypatch):
    (tmp_path / "matplotlib.py").write_text("raise AttributeError('_ARRAY_API not found')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name == "plot" or name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    svg.write(tmp_path / "picture.svg", "title", [svg.Panel("a", "x", "y", {"one": [(1, 2)]})])
    assert [points for points, _ in drawn(tmp_path / "picture.svg")] == [1]


def test_counters_are_where_the_benchmarks_look_for_them():
    layout = (harness.ROOT / "crates/wire/src/node_memory.rs").read_text()
    assert f"pub const VERSION: u32 = {node_memory.VERSION};" in layout
    assert f"pub const CONTROL_STRIDE: usize = {node_memory.CONTROL_STRIDE};" in layout
    for name, offset in node_memory.FIELDS.items():
        assert re.search(rf"\b{name.upper()}: u64 = {offset};", layout), name


def brightness(colour):
    """As WCAG has it, from 0 to 1."""
    digits = {"white": "fff", "black": "000"}.get(colour, colour.lstrip("#"))
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("picture", sorted((harness.ROOT / "docs/guide/images").glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_of_the_documentation_are_legible_on_dark_pages(picture):
    """Every colour has another one there; the page is dark, and what is on it stands out as it does on a white page."""
    text = picture.read_text()
    assert text == svg.for_dark_pages(text)  # bench/svg.py has been there, and changes nothing a second time
    style = re.search(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}</style>", text, re.S)[1]
    rest = text.replace(style, "")
    used = set(re.findall(r'\b(fill|stroke)="(#\w+|white|black)"', rest)) | set(re.findall(r"\b(fill|stroke): (#\w+)", rest))
    rules = re.findall(r'^\[(?:style\*=")?(fill|stroke)(?:=|: )"?(#?\w+)"\]\{\1:(#\w{6})(?:!important)?\}$', style, re.M)
    dark = {(what, colour): then for what, colour, then in rules}
    assert set(dark) == used
    page = next(dark["fill", colour] for colour in ("white", "#ffffff") if ("fill", colour) in dark)
    assert brightness(page) < 0.02 and contrast(re.match(r"svg\{fill:(#\w{6})\}", style)[1], page) > 10
    for (_, colour), then in dark.items():
        if (stands_out := contrast(colour, "#fff")) > 2.5:
            assert contrast(then, page) > 2.5, (colour, then)
        elif stands_out < 1.5:  # the page, and lines behind the others
            assert contrast(then, page) < 1.5, (colour, then)
