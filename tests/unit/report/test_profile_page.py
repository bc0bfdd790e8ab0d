"""The page of a profile: names that lie on nothing, numbers above the roofline, sentences in the plural."""

import random
import re

from tilewright.report.page_plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Circle, circle_names
from tilewright.report.profile_text import above_text
from tilewright.runtime.profile import ProfileEntry


def boxes(texts):
    """Left, right and middle of names, as wide as a narrow font draws them."""
    for text in texts:
        x, y, anchor, name = re.search(r"x='([\d.]+)' y='([\d.]+)' text-anchor='(\w+)'>(.*)<", text).groups()
        width, x, y = 6 * len(name), float(x), float(y) - 4
        yield (x - width, x, y) if anchor == "end" else (x, x + width, y)


def test_names_lie_on_no_circle_and_on_no_other_name():
    draw = random.Random(0)
    for _ in range(50):
        circles = [
            Circle(draw.uniform(LEFT, WIDTH - RIGHT), draw.uniform(TOP, HEIGHT - BOTTOM), draw.uniform(4, 20), "n" * n)
            for n in draw.choices(range(4, 26), k=12)
        ]
        found = list(boxes(circle_names(circles[:6], circles[6:])))
        for i, (left, right, y) in enumerate(found):
            assert left > LEFT and right < WIDTH - RIGHT
            for c in circles:
                away = max(left - c.x, c.x - right, 0.0), max(abs(y - c.y) - 5, 0.0)
                assert away[0] ** 2 + away[1] ** 2 > (c.r - 1) ** 2
            for a, b, v in found[:i]:
                assert right <= a or b <= left or abs(v - y) >= 11


def test_neighbours_have_names_where_there_is_room():
    """A circle close to the left of another has its name on the left, below or above."""
    made = list(circle_names([Circle(300, 200, 8, "first"), Circle(320, 200, 8, "second")]))
    assert len(made) == 2


def test_what_is_above_the_roofline_is_explained():
    kernels = [ProfileEntry(f"k{i}", (), "rows", "", 1e-6, 1e-6, 1e-6, 0.1, ideal=i * 1e-6) for i in range(3)]
    assert above_text(kernels[:2]) == ""
    said = above_text(kernels)
    assert (
        said.startswith("1 kernel above the roofline (k2: 200.0%)") and "nearer cache" in said and "--remeasure" in said
    )
