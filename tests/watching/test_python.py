# SPDX-License-Identifier: Apache-2.0
"""`import resurgo`: jobs that Python starts, follows, commands and draws; and the guide's own examples."""

import ast
import json
import os
import re
import select
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

import harness
from harness import RESURGO, patience

PACKAGE = harness.ROOT / "python"
HEAT = ("400", "400", "4000")
# What each script begins with. The job's program takes its time until the script calls go().
BEGIN = """
import os, pathlib, signal, subprocess, sys
import resurgo

def go():
    pathlib.Path(os.environ["AWAITED"]).touch()

def fails(what, *words, **named):
    try:
        what(*words, **named)
    except resurgo.Error as error:
        return error
    raise AssertionError("no error")

HEAT = sys.argv[1:]
"""


@pytest.fixture
def script(jobs, program, tmp_path):
    """Starts a Python program as a user would write it; `HEAT` in it is a command, of which standard output is in `out`."""
    modules = tmp_path / "modules"
    modules.mkdir()

    def start(text, hurried=False, python=harness.PYTHON):
        path = ":".join(map(str, [modules, PACKAGE]))
        env = harness.environment(RESURGO=RESURGO, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
        env = env if hurried else jobs.unhurried(env)
        return jobs.command([python, "-c", BEGIN + text, *program("heat"), *HEAT], env=env, cwd=tmp_path)

    def run(text, **more):
        return start(text, **more).wait(lets_go=False).ok()

    run.start, run.modules = start, modules
    return run


def calm(jobs, program, n):
    return jobs.calm(n, *program("heat"), *HEAT).text


def test_a_rank_is_killed_while_events_come(jobs, program, script, tmp_path):
    result = script("""
pids, struck, seen = {}, False, []
job = resurgo.run(HEAT, n=4, options=["--checkpoint-every", "100ms"], stdout=open("out", "w"))
for event in job.events():
    seen.append(event)
    if event["event"] == "started":
        pids[event["rank"]] = event["pid"]
    if event["event"] == "wave_complete" and not struck:
        os.kill(pids[2], signal.SIGKILL)
        struck = True
    if event["event"] == "caught_up":
        go()
kinds = [(event["event"], event["life"]) for event in seen if event.get("rank") == 2 and "life" in event]
assert kinds == [("started", 1), ("failed", 1), ("started", 2), ("caught_up", 2), ("finished", 2)], seen
assert job.wait() == job.exit_status == 0 and seen == list(job.events())
assert job.statistics()["restarts"] == 1 and job.statistics() == seen[-1]
""")
    assert "rank 2 killed by SIGKILL" in result.errors
    assert (tmp_path / "out").read_text() == calm(jobs, program, 4)


def test_mistakes_are_errors_with_the_line_of_the_command(script):
    result = script("""
error = fails(resurgo.run, HEAT, n=2, options=["--checkpoint-evry", "1s"])
assert str(error).startswith("unknown option --checkpoint-evry") and "\\n" not in str(error) and error.status == 2, error
assert "there is no protocol" in str(fails(resurgo.run, HEAT, protocol="best"))
error = fails(resurgo.run, "./nothing", n=2)
assert str(error).endswith("/nothing: no such file") and error.status == 127, error
assert fails(resurgo.run, "./nothing", stderr=subprocess.DEVNULL).status == 127
assert "there is no suspended job 1;" in str(fails(resurgo.resume, 1))
assert fails(resurgo.run, []).status is None
job = resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL)
assert "has not ended" in str(fails(job.statistics)) and job.exit_status is None
assert "checkpoint-dir" in str(fails(job.suspend)), fails(job.suspend)
assert fails(job.kill_rank, 7).status
go()
assert job.wait() == 0 and str(fails(job.checkpoint)) == f"job {job.number} has ended"
try:
    resurgo.run("true", cwd="nowhere")
except FileNotFoundError:
    os.environ["RESURGO"] = "/nowhere/resurgo"
assert "$RESURGO names /nowhere/resurgo" in str(fails(resurgo.jobs))
del os.environ["RESURGO"]
os.environ["PATH"] = "/nowhere"
assert "neither beside this package nor in PATH" in str(fails(resurgo.jobs))
""")
    assert "no such file" not in result.errors and "unknown option" not in result.errors, result.errors


def test_suspended_and_resumed(jobs, program, script, tmp_path):
    script("""
job = resurgo.run(HEAT, n=2, options=["--checkpoint-dir", "images"], stdout=open("out", "w"))
job.checkpoint()
[seen] = [other for other in resurgo.jobs() if other["job"] == job.number]
assert seen["state"] == "running" and seen["images"] == 1, seen
job.suspend()
assert job.exit_status == 75 and "suspended" in repr(job) and job.statistics()["waves"] == 2
[seen] = [other for other in resurgo.jobs() if other["job"] == job.number]
assert seen["state"] == "suspended"
again = resurgo.resume(job, options=["-q"], stdout=open("out", "a"))
assert again.number != job.number
for event in again.events():
    if event["event"] == "resumed":
        again.suspend()
    if event["event"] == "suspended":
        directory = event["directory"]
last = resurgo.resume(directory, stdout=open("out", "a"))
go()
assert last.wait() == 0 and not os.listdir("images")
""")
    assert (tmp_path / "out").read_text() == calm(jobs, program, 2)


def test_the_end_of_a_job(script):
    """By a call, by an exception, by itself, and not by a timeout."""
    script("""
job = resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL)
try:
    job.wait(0)
except TimeoutError:
    assert job.exit_status is None
assert job.end() in (130, 143) and job.end() == job.wait() == job.exit_status and job.wait(0)
try:
    with resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL) as job:
        raise KeyError
except KeyError:
    assert job.exit_status in (130, 143)
go()
with resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL) as job:
    pass
assert job.exit_status == 0
with resurgo.run(["sh", "-c", "cat; exit 3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
    job.stdin.write(b"word")
    job.stdin.close()
    assert job.stdout.read() == b"word"
assert job.exit_status == 3
""")


def test_the_job_goes_on_when_python_ends(jobs, program, script, tmp_path):
    """And no temporary file of Python's stays."""
    job = script.start("""
job = resurgo.run(HEAT, n=2, stdout=open("out", "w"))
print(job.number)
""")
    assert job.process.wait(patience(30)) == 0, job.result(0).describe()
    assert job.processes() and not list(jobs.temporary.glob("resurgo-*/events"))
    for file in job.awaited:
        open(file, "w").close()
    handle = os.pidfd_open(int(job.out.read_text()))
    try:
        assert select.select([handle], [], [], patience(60))[0]
    finally:
        os.close(handle)
    assert (tmp_path / "out").read_text() == calm(jobs, program, 2)


def test_a_table(script):
    """With a module in the place of pandas, which need not be there."""
    text = """
job = resurgo.run("true", n=2)
job.wait()
{}
"""
    hidden = 'sys.modules["pandas"] = None\nassert str(fails(job.table)) == "a table needs pandas: pip install pandas"'
    script(text.format(hidden))
    (script.modules / "pandas.py").write_text("def DataFrame(rows):\n    return rows\n")
    script(text.format("assert job.table() == list(job.events()) and list(job.table()[0])[:2] == ['time', 'event']"))


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A Python with pandas, IPython and its kernel, from an index of packages."""
    place = tmp_path_factory.mktemp("notebook")
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=300)
    command = [place / "bin/python", "-m", "pip", "install", "--quiet", "--retries", "0", "-r", harness.ROOT / "scripts/requirements-notebook.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"pandas and IPython cannot be had: {done.stderr.strip().splitlines()[-1]}")
    return place / "bin/python"


@pytest.mark.soak
def test_a_table_and_a_cell_with_the_real_ones(script, notebook):
    """Events become a DataFrame, and a cell that ends with a job gets its timeline."""
    result = script("""
import pandas
os.environ["IPYTHONDIR"] = os.getcwd()
from IPython.core.interactiveshell import InteractiveShell

job = resurgo.run(HEAT[:-1] + ["400"], n=2, protocol="pessimistic", options=["-q", "--fault", "rank=1,messages=200"], stdout=subprocess.DEVNULL)
assert job.wait() == 0
table = job.table()
assert isinstance(table, pandas.DataFrame) and list(table.columns[:2]) == ["time", "event"] and len(table) == len(list(job.events()))
assert pandas.api.types.is_float_dtype(table.time) and table.time.is_monotonic_increasing
lives = table[table.event == "started"].groupby("rank").life.max()
assert lives.to_dict() == {0: 1, 1: 2}
assert table[table.event == "job_ended"].restarts.tolist() == [1]

shell = InteractiveShell.instance(history_length=0, colors="NoColor")
shell.user_ns["job"] = job
cell = shell.run_cell("job", store_history=False)
assert cell.success and cell.result is job
formats, _ = shell.display_formatter.format(job)
shell.run_line_magic("reset", "-f")
assert formats["text/html"] == job._repr_html_() and "<svg" in formats["text/html"]
""", hurried=True, python=notebook)
    assert "Error" not in result.text + result.errors, result.describe()


KERNEL = """
import json, re
from jupyter_client.manager import start_new_kernel

for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
    os.environ[name] = os.path.join(os.getcwd(), name)
manager, client = start_new_kernel()
shown, results = [], []  # displays: kind of message, name, picture; what cells end with

def hear():
    message = client.get_iopub_msg(timeout=PATIENCE)
    kind, content = message["header"]["msg_type"], message["content"]
    assert kind != "error", content
    if kind in ("display_data", "update_display_data"):
        shown.append((kind, content["transient"]["display_id"], content["data"]["text/html"]))
    if kind == "execute_result":
        results.append(content["data"])
    return kind, content, message["parent_header"].get("msg_id")

def cell(code):
    number, printed = client.execute(code), ""
    while True:
        kind, content, parent = hear()
        if parent == number and kind == "stream" and content["name"] == "stdout":
            printed += content["text"]
        if parent == number and kind == "status" and content["execution_state"] == "idle":
            return printed

def shows(words):
    while words not in shown[-1][2]:
        hear()

def keep(name):
    pathlib.Path(name + ".json").write_text(json.dumps([shown, json.loads(cell("print(json.dumps(list(job.events())))"))]))
    shown.clear()

cell(f"import json, resurgo, subprocess; HEAT = {HEAT!r}; OUT = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)")
# The next cells command the job of the first one.
cell("job = resurgo.run(HEAT, n=3, **OUT); job.show(0.05, wait=False)")
cell("job.checkpoint()")
shows(", 1 wave")
cell("job.kill_rank(1)")
cell("next(event for event in job.events() if event['event'] == 'caught_up')")
shows(": running after ")
shows(" 1 failure, ")
go()
cell("assert job.wait() == 0")
shows(": ended with status 0 after ")
cell("job")
cell("job.timeline()")
assert [result["text/html"] for result in results[-2:]] == [shown[-1][2]] * 2
keep("commanded")
# And a cell that waits.
cell("job = resurgo.run(HEAT, n=2, protocol='pessimistic', options=['--fault', 'rank=1,messages=200'], **OUT); job.show(0.01)")
keep("waited")
client.stop_channels()
manager.shutdown_kernel()
"""


@pytest.mark.soak
def test_the_timeline_in_a_real_kernel(script, notebook, tmp_path):
    """As a notebook shows it, while a rank is killed, and as it stays."""
    script(KERNEL.replace("PATIENCE", str(patience(60))), python=notebook)
    for name in ("commanded", "waited"):
        shown, events = json.loads((tmp_path / f"{name}.json").read_text())
        assert [kind for kind, _, _ in shown] == ["display_data"] + ["update_display_data"] * (len(shown) - 1) and len({place for _, place, _ in shown}) == 1
        titles, words = parsed(shown[-1][2])
        kinds = [event["event"] for event in events]
        lives = sorted((event["rank"], event["life"]) for event in events if event["event"] == "started")
        drawn = [re.match(r"rank (\d+), life (\d+)", title) for title in titles]
        assert sorted((int(life[1]), int(life[2])) for life in drawn if life) == lives and len(lives) > kinds.count("finished")
        [failed] = [event for event in events if event["event"] == "failed"]
        assert f"rank 1 at {failed['time']:.2f} s: {failed['cause']}" in titles
        [caught] = [event for event in events if event["event"] == "caught_up"]
        assert any(title.endswith(f"; repeated {caught['deliveries']:,} deliveries until {caught['time']:.2f} s") for title in titles), titles
        assert [f"wave {event['wave']} at {event['time']:.2f} s" for event in events if event["event"] == "wave_complete"] == [title for title in titles if title.startswith("wave ")]
        images = [f"rank {event['rank']}, image {event['image']} at {event['time']:.2f} s" for event in events if event["event"] == "checkpointed"]
        assert sorted(images) == sorted(title for title in titles if ", image " in title)
        counts = ["1 failure", *(["1 wave"] if "wave_complete" in kinds else []), *([f"{len(images)} images"] if images else [])]
        assert words[0].endswith(f"s, {', '.join(counts)}"), (words[0], counts)
        assert any("running" in parsed(picture)[1][0] for _, _, picture in shown)


def test_show_prints_lines(script):
    result = script("""
resurgo.run(HEAT[:-1] + ["400"], n=2, protocol="pessimistic", options=["-q", "--fault", "rank=1,messages=200"], stdout=subprocess.DEVNULL).show()
""", hurried=True)
    lines = [line.split(" s  ", 1)[1] for line in result.text.splitlines()]
    assert lines == [
        "2 ranks begin, protocol pessimistic",
        "rank 1 failed: killed by SIGKILL",
        "rank 1 begins its life 2, from the beginning",
        "rank 1 has caught up",
        "the job has ended with status 0",
    ]


IPYTHON = """
class Shell:
    kernel = None
def get_ipython():
    return Shell()
"""
DISPLAY = """
shown = []
def display(what, display_id):
    shown.append(("new", display_id, what._repr_html_()))
def update_display(what, display_id):
    shown.append(("again", display_id, what._repr_html_()))
"""


def test_show_in_a_notebook(script):
    """With modules in the place of IPython: it shows once, and later updates that."""
    (script.modules / "IPython").mkdir()
    (script.modules / "IPython/__init__.py").write_text(IPYTHON)
    (script.modules / "IPython/display.py").write_text(DISPLAY)
    result = script("""
import threading, time
import IPython.display
job = resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL)
shows = threading.Thread(target=job.show, args=[0.01])
shows.start()
shown = IPython.display.shown
while len(shown) < 3:
    shows.join(0.01)
go()
shows.join()
assert [kind for kind, _, _ in shown] == ["new"] + ["again"] * (len(shown) - 1) and len({name for _, name, _ in shown}) == 1
assert "running" in shown[0][2] and "ended with status 0" in shown[-1][2] and shown[-1][2] == job._repr_html_()
# Without waiting: the next cell can command the job.
shown.clear()
os.environ["AWAITED"] += "-again"
job = resurgo.run(HEAT, n=2, stdout=subprocess.DEVNULL)
job.show(0.01, wait=False)
assert [kind for kind, _, _ in shown][:1] == ["new"] and job.exit_status is None
job.checkpoint()
go()
job.wait()
while "ended with status 0" not in shown[-1][2]:
    time.sleep(0.01)
assert "1 wave, " in shown[-1][2] or " images" in shown[-1][2], shown[-1][2]
assert len({name for _, name, _ in shown}) == 1
""")
    assert result.text == ""


def parsed(svg):
    """An SVG of known elements only: nothing that runs or is loaded."""
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert {element.tag for element in root.iter()} <= {space + name for name in ("svg", "g", "path", "rect", "text", "title")}
    attributes = [f"{name}={value}" for element in root.iter() for name, value in element.attrib.items()]
    assert not [words for words in attributes if re.search(r"href|url|^on", words)]
    return ["".join(element.itertext()) for element in root.iter(space + "title")], ["".join(element.itertext()) for element in root.iter(space + "text")]


def test_the_picture_of_a_job(script, tmp_path):
    script("""
job = resurgo.run(HEAT[:-1] + ["1000"], n=3, protocol="pessimistic", options=["--checkpoint-at", "rank=all,messages=400", "--fault", "rank=2,messages=1000"], stdout=subprocess.DEVNULL)
first = job._repr_html_()
job.wait()
pathlib.Path("first.svg").write_text(first)
pathlib.Path("last.svg").write_text(job._repr_html_())
import json
pathlib.Path("events.json").write_text(json.dumps(list(job.events())))
figure = job.timeline()
figure.save("saved.svg")
assert figure._repr_html_() == str(figure) == job._repr_html_()
""", hurried=True)
    parsed((tmp_path / "first.svg").read_text())
    titles, words = parsed((tmp_path / "last.svg").read_text())
    lives = [title.split(":")[0] for title in titles if "life" in title]
    assert sorted(lives) == ["rank 0, life 1", "rank 1, life 1", "rank 2, life 1", "rank 2, life 2"], titles
    assert any(re.fullmatch(r"rank 2 at .* s: killed by SIGKILL", title) for title in titles), titles
    assert words[0].startswith("heat 400 400 1000: ended with status 0 after ") and "1 failure, " in words[0]
    assert ["rank 0", "rank 1", "rank 2"] == [word for word in words if word.startswith("rank ")]
    assert (tmp_path / "saved.svg").read_text() == (tmp_path / "last.svg").read_text()
    assert any(re.fullmatch(r"rank 2, life 2: .*, finished; repeated [\d,]+ deliveries until .* s", title) for title in titles), titles
    # Rank 2 may be killed before its image is taken.
    taken = [event for event in json.loads((tmp_path / "events.json").read_text()) if event["event"] == "checkpointed"]
    images = [f"rank {event['rank']}, image {event['image']} at {event['time']:.2f} s" for event in taken]
    assert images and sorted(images) == sorted(title for title in titles if ", image " in title), titles


@pytest.fixture(scope="module")
def timeline():
    sys.path.insert(0, str(PACKAGE))
    try:
        from resurgo import timeline
    finally:
        sys.path.remove(str(PACKAGE))
    return timeline


def started(rank, life, time, **more):
    return {"event": "started", "rank": rank, "life": life, "time": time, "image": 0, **more}


def test_pictures_of_other_courses(timeline):
    """A return to a wave, a lost node, and a command that is no XML."""
    nodes = [started(rank, 1, 0.1, node=name) for rank, name in enumerate(["n1", "n1", "n10"])]
    events = [
        {"event": "job_started", "ranks": 3, "protocol": "blocking", "time": 0.0},
        *nodes,
        {"event": "wave_complete", "wave": 1, "time": 1.0},
        {"event": "node_lost", "node": 0, "time": 2.0, "reason": "node n1 cannot be reached (it said nothing)"},
        *(started(rank, 2, 2.5, node="n10") for rank in range(3)),
        {"event": "returned", "wave": 1, "lost_seconds": 1.5, "time": 2.5},
    ]
    titles, words = parsed(timeline.draw(events, "app </svg><script>\x01\ud800 & \"'", "running", now=4.0))
    assert words[0] == "app </svg><script>?? & \"': running after 4.0 s, 1 wave"
    assert titles[:3] == [f"rank {rank}, life 1 on node n1: 0.10 s to 2.00 s, lost with its node" for rank in (0, 1)] + [
        "rank 2, life 1 on node n10: 0.10 s to 2.50 s, returns"
    ]
    assert titles[3] == "rank 0, life 2 on node n10: 2.50 s to 4.00 s, runs; repeats 1.50 s since wave 1" and "wave 1 at 1.00 s" in titles
    assert "node n1 cannot be reached (it said nothing)" in titles
    assert [timeline.words(event) for event in events if timeline.words(event)] == [
        "3 ranks begin, protocol blocking",
        "wave 1 of images is complete",
        "node n1 cannot be reached (it said nothing)",
        *(f"rank {rank} begins its life 2, from the beginning" for rank in range(3)),
        "ranks go on from wave 1",
    ]
    parsed(timeline.draw([], "app", "running"))


def test_a_picture_of_many_ranks(timeline):
    """It has the ranks that failed, and is of a size that can be shown."""
    events = [started(rank, 1, 0.1) for rank in range(4096)]
    events += [{"event": "failed", "rank": 4000, "life": 1, "cause": "killed", "time": 1.0}]
    events += [{"event": "wave_complete", "wave": i, "time": i / 100} for i in range(10000)]
    svg = timeline.draw(events, "app", "running")
    _, words = parsed(svg)
    assert "rank 4000" in words and "rank 62" in words and "rank 63" not in words and "64 of 4096 ranks are shown" in words
    assert len(svg) < 100_000


def test_events_that_lines_tell_of_have_these_fields(timeline):
    """The reference names each event with its fields."""
    reference = (harness.ROOT / "docs/reference/options.md").read_text()
    for kind, line in timeline.WORDS.items():
        described = re.search(rf"^- `{kind}`: (.*(?:\n  .*)*)", reference, re.M)
        for field in re.findall(r"{(\w+)}", line):
            assert described and f"`{field}`" in described[1], (kind, field)


def test_it_is_python_3_8():
    for file in sorted((PACKAGE / "resurgo").glob("*.py")):
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_the_guide(jobs, program, script, tmp_path):
    """Its blocks, one after the other, as one program. Before it waits, a program that takes its time may end."""
    guide = (harness.ROOT / "docs/guide/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S)
    os.symlink(program("heat")[0], tmp_path / "heat")
    lines = []
    for block in blocks:
        if "suspend" in block:
            lines.append(f"os.environ['AWAITED'] = {str(jobs.directory / 'suspended')!r}")
            block = block.replace("print(job.wait())", "go()\nprint(job.wait())")
        if "table" in block:
            block = f"if importlib.util.find_spec('pandas'):\n    {block}"
        lines.append(block)
    result = script("import importlib.util\n" + "\n".join(lines), hurried=True)
    assert "unknown option --checkpoint-evry" in result.text and "\n75\n" in result.text and result.text.endswith("\n0\n")
    assert "rank 2 failed: killed by SIGKILL" in result.text and "job_ended" in result.text
    parsed((tmp_path / "heat.svg").read_text())
    assert (tmp_path / "heat.out").read_text() == jobs.calm(4, *program("heat")).text


def test_what_the_guide_names_is_there():
    guide = (harness.ROOT / "docs/guide/python.md").read_text()
    sys.path.insert(0, str(PACKAGE))
    try:
        import resurgo
    finally:
        sys.path.remove(str(PACKAGE))
    for owner, name in set(re.findall(r"\b(job|resurgo)\.(\w+)", guide)):
        assert hasattr(resurgo.Job if owner == "job" else resurgo, name) or name == "ft", name
    assert set(resurgo.__all__) <= set(dir(resurgo)) and not hasattr(resurgo, "nothing")
