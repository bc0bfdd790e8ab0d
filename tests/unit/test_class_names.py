"""One public class name, one thing: a reader who greps for a name finds its definition."""

import ast
from collections import Counter
from pathlib import Path

import tilewright

PACKAGE = Path(tilewright.__file__).parent
#: in how many modules -> the names that so many still define; take out what was renamed, add nothing. `Dim` is public
#: twice (`tw.Dim`, and of chips); `Split`, `Tile` and `TopK` are operators of `ops` as well.
KNOWN = {
    2: (
        "Across ByteProduct ByteProducts Call Chain Clock Copies Core Dim Found GroupWriter Indices Kernel "
        "Launch Launched Machine Measured Node Pieces Place Reader Region Registers Result Selection Shape "
        "Share Split Stage State Target Tensor TileCosts Tiles Told TopK Warps Window"
    ),
    3: ("Builder Expressions Instruction Operand Placed Places Product Rows Sum Team"),
    4: ("Access Axis Block Emitted Form Layout Part Recorded Sizes Step Writer"),
    5: ("Memory Tile Value"),
    6: ("Plan"),
    7: ("Emitter"),
}


def test_no_public_class_name_stands_for_two_things():
    found = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    known = {name: count for count, names in KNOWN.items() for name in names.split()}
    several = {name: count for name, count in found.items() if count > 1}
    new = sorted(name for name, count in several.items() if count > known.get(name, 1))
    assert not new, f"classes of one name in several modules, rename one of each: {', '.join(new)}"
    fewer = sorted(name for name, count in known.items() if found[name] < count)
    assert not fewer, f"lower or take out of KNOWN, they are in fewer modules now: {', '.join(fewer)}"
