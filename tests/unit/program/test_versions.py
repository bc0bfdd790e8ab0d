"""Which versions of a program are kept, what goes first, who makes one."""

import threading

from tilewright.program.versions import Demand, Limits, Versions


def test_the_one_used_longest_ago_goes():
    kept = Versions(Limits(2))
    assert [kept.keep(n, str(n)) for n in (1, 2)] == [[], []] and kept.used(1) == "1" and kept.used(7) is None
    assert kept.keep(3, "3") == [(2, "2")] and list(kept) == [1, 3] and kept.again(2) and not kept.again(3)
    assert kept.keep(1, "one") == [] and list(kept) == [3, 1]


def test_some_are_kept_in_any_case_and_more_as_long_as_they_are_small():
    kept = Versions(Limits(1, 3, 100), nbytes=lambda v: v)
    assert kept.keep("a", 1000) == [] and not kept.full() and kept.full(1)
    assert kept.keep("b", 40) == [("a", 1000)] and not kept.full(1)
    assert kept.keep("c", 40) == [] and kept.full(1), "three of 40 bytes"
    kept.keep("c", 1), kept.keep("d", 1)
    assert list(kept) == ["b", "c", "d"] and kept.keep("e", 1) == [("b", 40)]


def test_open_versions_serve_keys_and_replace_each_other():
    asked = []

    def bind(version, key):
        asked.append((version, key))
        return (version, key) if key <= version else None

    gone = []
    kept = Versions(Limits(0), bind=bind, covers=lambda a, b: a > 2 * b, drop=gone.append, most=2, bound=3)
    assert kept.served(1) is None
    kept.widen(10)
    assert kept.served(5) == kept.served(5) == (10, 5) and asked == [(10, 5)]
    kept.widen(20)
    assert kept.served(5) == (10, 5), "what was bound stays"
    assert kept.served(6) == (20, 6) and kept.served(15) == (20, 15)
    assert kept.served(7) == (20, 7) and len(kept.bound) == 1, "no more are remembered than were asked for"
    kept.widen(30)
    assert gone == [10] and kept.open == [30, 20] and not kept.bound
    kept.widen(25)
    assert gone == [10, 20] and kept.open == [25, 30] and kept.served(5) == (25, 5), "the latest two"


def test_what_is_called_often_enough():
    demand = Demand(3, most=2)
    for key, since in zip("abaaa", (0, 0, 0, 1, 3), strict=True):
        demand.called(key)
        assert demand.since(key) == since
    assert demand.since("b") == demand.since("c") == 0
    demand.called("c"), demand.called("d")
    assert list(demand) == ["c", "d"]


def test_one_thread_makes_a_version_and_others_wait():
    kept = Versions(Limits(8), bind=lambda version, key: key if key in version else None)
    made, gate = [], threading.Barrier(8)

    def ask(number):
        gate.wait()
        wider = None if number % 2 else range(10, 20)
        key = 11 if number % 2 == 0 else 30
        assert kept.obtain(key, lambda: wider, lambda: made.append(key) or key) == key

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [30] and list(kept) == [30] and kept.open == [range(10, 20)]
    assert kept.obtain(40, lambda: None) is None
