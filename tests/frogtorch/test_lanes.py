"""The scheduler of lanes: order, width, failure."""

import pytest

from frogtorch.effects import Together
from frogtorch.lanes import WAITING, Lanes


class Driver:
    """Effects are strings: "now" is done at once, "bad" fails, others wait until `go_on`."""

    def __init__(self, collective):
        self.waiting = {}
        self.cancelled = []
        self.ended = []
        self.lanes = Lanes(collective, self.perform, self.cancel, lambda *end: self.ended.append(end))

    def perform(self, lane, effect):
        if effect == "bad":
            raise ValueError("bad")
        if effect == "now":
            return "done now"
        self.waiting[effect] = lane
        lane.waits_for = effect
        return WAITING

    def cancel(self, lane):
        self.cancelled.append(lane.waits_for)

    def go_on(self, effect, value=None, error=None):
        self.lanes.go_on(self.waiting.pop(effect), value, error)


def test_results_come_in_the_order_of_lanes():
    def lane():
        first = yield "a"
        second = yield "now"
        return first, second

    def collective():
        return (yield Together([lane(), "b", "now", Together(["c"])]))

    driver = Driver(collective())
    driver.lanes.run()
    for effect in "cba":
        assert driver.ended == []
        driver.go_on(effect, effect.upper())
    assert driver.ended == [([("A", "done now"), "B", "done now", ["C"]], None)]


def test_width_admits_in_index_order():
    def collective():
        yield Together(["a", "b", "c", "d"], width=2)

    driver = Driver(collective())
    driver.lanes.run()
    assert list(driver.waiting) == ["a", "b"]
    driver.go_on("b")
    assert list(driver.waiting) == ["a", "c"]
    driver.go_on("c")
    assert list(driver.waiting) == ["a", "d"]
    driver.go_on("a")
    driver.go_on("d")
    assert driver.ended == [(None, None)]


def test_a_failure_closes_the_lanes_beside_it_and_is_thrown_into_their_parent():
    closed = []

    def lane(name):
        try:
            yield Together([name + "1", name + "2"])
        finally:
            closed.append(name)

    def collective():
        try:
            yield Together([lane("x"), "y", lane("z")])
        except OSError as error:
            return str(error)

    driver = Driver(collective())
    driver.lanes.run()
    driver.go_on("z2", error=OSError("lost"))
    assert driver.ended == [("lost", None)]
    assert sorted(driver.cancelled) == ["x1", "x2", "y", "z1"]
    assert sorted(closed) == ["x", "z"]


@pytest.mark.parametrize("effects", [["bad"], [Together(["a", "bad", "b"])]])
def test_an_effect_that_fails_at_once(effects):
    def collective():
        yield from effects

    driver = Driver(collective())
    driver.lanes.run()
    ((value, error),) = driver.ended
    assert value is None
    assert str(error) == "bad"


def test_stop_calls_off_everything_once():
    def collective():
        yield Together(["a", Together(["b"])])

    driver = Driver(collective())
    driver.lanes.run()
    error = TimeoutError("late")
    driver.lanes.stop(error)
    driver.lanes.stop(RuntimeError("later"))
    assert driver.ended == [(None, error)]
    assert sorted(driver.cancelled) == ["a", "b"]


def test_hundreds_of_lanes_in_lanes():
    def deep(level):
        if level:
            yield Together([deep(level - 1)])
        else:
            yield "now"

    def collective():
        return len((yield Together([deep(5) for _ in range(3000)])))

    driver = Driver(collective())
    driver.lanes.run()
    assert driver.ended == [(3000, None)]
