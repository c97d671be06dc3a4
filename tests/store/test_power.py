# SPDX-License-Identifier: Apache-2.0
"""Power cuts: after each step that a server or a writer takes, a disk is made that has only what was brought to it. What
had been stored by then is there, and nothing half."""

import shutil

import pytest

from places import check, files, serving, store
from power import WAYS, Power

KINDS = ["dir", "server"]


class Stored:
    """Some generations in a place, of which the last ones stay, and each step on the way there."""

    def __init__(self, kind, directory, rng):
        self.kind, self.power, self.directory, self.rng = kind, Power(directory / "power"), directory, rng
        sets = [files(directory / str(number), rng, 1_200_000) for number in range(2)]
        self.sets = {number: sets[number % 2] for number in range(100)}
        self.place = self.power.root / "place"
        if kind == "dir":
            self.does(f"dir:{self.place}", **self.power.environment)
        else:
            with serving(self.place, **self.power.environment) as server:
                self.does(server.place, server)

    def does(self, place, server=None, **environment):
        for number in range(1, 5):
            if number == 4:
                self.power.says("goes", 3)
                store("gc", f"{place};keep=1", "job", **environment)
            store("put", place, "job", number, 0, self.sets[number], **environment)
            self.power.says("stored", number)
            if server and number == 2:
                server.kill()
                server.start()

    def there(self, place):
        listed = store("ls", "--json", place, "job", code=None)
        if listed.returncode == 1 and "no generation there that is whole" in listed.stderr:
            return []
        return check(place, "job", self.sets, self.directory)

    def check(self, disk, said, way):
        """The power fails now, and comes back."""
        stored = {int(number) for what, number in said if what == "stored"}
        gone = max((int(number) for what, number in said if what == "goes"), default=0)
        after = self.directory / "after"
        after.mkdir()
        disk.cut(after / "root", way, self.rng)
        place = after / "root/place"
        if self.kind == "dir":
            there = self.there(f"dir:{place}") if place.exists() else []
        else:
            keys = place / "keys"
            assert not stored or keys.read_bytes() == (self.place / "keys").read_bytes()
            with serving(place) as server:
                there = self.there(server.place)
        must = {number for number in stored if number >= gone}
        assert must <= set(there), (way, said, there)
        shutil.rmtree(after)


@pytest.mark.parametrize("kind", KINDS)
def test_the_power_fails(tmp_path, rng, kind):
    stored = Stored(kind, tmp_path, rng)
    moments = sum(1 for _ in stored.power.moments())
    drawn = set(rng.sample(range(moments), 16))
    known = 0
    for number, (disk, said) in enumerate(stored.power.moments()):
        if len(said) > known:
            stored.check(disk, said, "nothing")
        elif number in drawn:
            stored.check(disk, said, rng.choice(WAYS))
        known = len(said)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_power_fails_at_any_moment(tmp_path, rng, kind, way):
    stored = Stored(kind, tmp_path, rng)
    for disk, said in stored.power.moments():
        stored.check(disk, said, way)
