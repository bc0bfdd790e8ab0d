"""One public class name, one thing: a reader who greps for a name finds its definition."""

import re
from collections import Counter
from pathlib import Path

import tilewright

PACKAGE = Path(tilewright.__file__).parent
#: in how many modules -> the names that so many still define; take out what was renamed, add nothing. `Dim` is public
#: twice (`tw.Dim`, and of chips); `Split`, `Tile` and `TopK` are operators of `ops` as well.
KNOWN = {
    2: (
        "Access Builder Call Chain Dim Instruction Layout Machine Memory Operand Part Places Product Reader Registers "
        "Result Shape Split Stage State Sum Target Tensor Value Window"
    ),
    3: ("Axis Block Form Sizes Step Tile"),
}


def test_no_public_class_name_stands_for_two_things():
    found = Counter(
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.M)
    )
    known = {name: count for count, names in KNOWN.items() for name in names.split()}
    several = {name: count for name, count in found.items() if count > 1}
    new = sorted(name for name, count in several.items() if count > known.get(name, 1))
    assert not new, f"classes of one name in several modules, rename one of each: {', '.join(new)}"
    fewer = sorted(name for name, count in known.items() if found[name] < count)
    assert not fewer, f"lower or take out of KNOWN, they are in fewer modules now: {', '.join(fewer)}"
