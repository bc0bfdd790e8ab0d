"""The cache of a model as versioned values: what a sequence of tokens has left behind in pages and, for models with
recurrent layers, in a snapshot.

Values that are whole are kept in one radix tree, a node a page, found again by their tokens. A sequence that runs holds
the nodes of its beginning and has pages of its own after them; a page that fills up becomes a node. Reuse of a prompt,
of a finished request or of one that was preempted is therefore one thing (`open`), and so are the end of a request, its
cancellation and its preemption (`close`): the tree keeps what was computed until its room is needed. Rolling a draft
back is `advance` by fewer tokens than were run: what lies behind is overwritten.

Nodes with less than a page of tokens are leaves that nobody holds: who goes on from one copies its page (copy on
write). Snapshots are never copied: a step begins from the one of a node and writes to the sequence's own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from ..batch import Runner

_LOOK = 64  # children of a node that are looked at for a common beginning, the newest first


class PrefixNode:
    """A page of the tree. holders: sequences whose beginning it is; pins: those that start from its snapshot."""

    __slots__ = ("children", "holders", "page", "parent", "pins", "snapshot", "tokens", "used")

    def __init__(self, tokens: tuple[int, ...], page: int, parent: PrefixNode | None) -> None:
        self.tokens, self.page, self.parent = tokens, page, parent
        self.children: dict[tuple[int, ...], PrefixNode] = {}
        self.snapshot = -1
        self.holders = self.pins = self.used = 0


@dataclass
class CacheValue:
    """What a running sequence has in the cache.

    nodes: of its beginning. table: its pages, those of the nodes first. length: positions that are computed and
    accepted. state: its own snapshot. origin: the node whose snapshot the next step begins from; None: from `state`.
    pending: snapshots that the step writes, by the length after which each is. branch: a length that is in the tree,
    but without the snapshot that would make it of use: where one is worth keeping. reused: tokens found by `open`.
    """

    nodes: list[PrefixNode] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    length: int = 0
    state: int = -1
    origin: PrefixNode | None = None
    pending: dict[int, int] = field(default_factory=dict)
    branch: int = 0
    reused: int = 0

    def initial(self) -> int:
        """The snapshot that the next step begins from."""
        if self.origin is not None:
            return self.origin.snapshot
        return self.state if self.length else -1


class Cache:
    """Pages and snapshots of a runner. Not for several threads."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        limits = runner.limits
        self.page_length, self.pages, self.hybrid = limits.page_length, limits.pages, limits.snapshots > 0
        self.free = list(range(limits.pages - 1, -1, -1))
        self.free_snapshots = list(range(limits.snapshots - 1, -1, -1))
        self.root = PrefixNode((), -1, None)
        self.root.holders = 1
        self.idle = 0  # nodes that nobody holds: their pages can be had
        self.clock = 0
        self._leaves: list[tuple[int, int, PrefixNode]] = []  # heap by last use; entries may be out of date
        self._serial = count()
        self._kept: dict[PrefixNode, None] = {}  # nodes with snapshots, by last use
        self.evicted = 0

    # --- room

    @property
    def available(self) -> int:
        """Pages that can be had."""
        return len(self.free) + self.idle

    def page(self) -> int | None:
        """A page, for which the leaf used longest ago goes where none is free."""
        while not self.free:
            if not self._leaves:
                return None
            used, _, node = heapq.heappop(self._leaves)
            if used == node.used and not (node.holders or node.children) and node.parent is not None:
                self._evict(node)
        return self.free.pop()

    def snapshot(self) -> int | None:
        """A snapshot, for which a node that nobody starts from loses its own where none is free."""
        if not self.free_snapshots:
            node = next((n for n in self._kept if not n.pins), None)
            if node is None:
                return None
            self._lose(node)
        return self.free_snapshots.pop()

    def _lose(self, node: PrefixNode) -> None:
        if node.snapshot >= 0:
            self.free_snapshots.append(node.snapshot)
            node.snapshot = -1
            del self._kept[node]

    def _evict(self, node: PrefixNode) -> None:
        parent = node.parent
        assert parent is not None
        self._lose(node)
        self.free.append(node.page)
        del parent.children[node.tokens]
        node.parent = None
        self.idle -= 1
        self.evicted += 1
        self._leaf(parent)

    def _leaf(self, node: PrefixNode) -> None:
        if not (node.holders or node.children):
            heapq.heappush(self._leaves, (node.used, next(self._serial), node))
            if len(self._leaves) > 64 + 4 * self.pages:  # mostly out of date
                alive = {n: (u, i, n) for u, i, n in self._leaves if n.used == u and n.parent and not n.holders}
                self._leaves = sorted(alive.values(), key=lambda e: e[:2])

    def _hold(self, node: PrefixNode, by: int = 1) -> None:
        self.idle -= node.holders == 0
        node.holders += by
        self.idle += node.holders == 0
        node.used = self.clock
        if node.snapshot >= 0:
            self._kept[node] = self._kept.pop(node)
        self._leaf(node)

    def _pin(self, value: CacheValue, node: PrefixNode | None) -> None:
        """The next step begins from the snapshot of this node."""
        if value.origin is not None:
            value.origin.pins -= 1
            self._hold(value.origin, -1)
        if node is not None:
            node.pins += 1
            self._hold(node)
        value.origin = node

    def clear(self) -> None:
        """Give up everything that no sequence holds."""
        while self._leaves:
            _, _, node = heapq.heappop(self._leaves)
            if not (node.holders or node.children) and node.parent is not None:
                self._evict(node)

    # --- the life of a value

    def match(self, tokens: Sequence[int], limit: int) -> tuple[list[PrefixNode], PrefixNode | None, int]:
        """Whole pages of the tree that begin these tokens, `limit` at most; a node of which the first `common` tokens
        come next, and `common`. For recurrent layers all of it ends where a snapshot is."""
        length, node = self.page_length, self.root
        path: list[PrefixNode] = []
        while (end := (len(path) + 1) * length) <= limit:
            child = node.children.get(tuple(tokens[end - length : end]))
            if child is None:
                break
            path.append(node := child)
        if not self.hybrid:
            best, most = None, 0
            rest = tuple(tokens[len(path) * length : min(limit, (len(path) + 1) * length)])
            for child in islice(reversed(node.children.values()), _LOOK):
                common = next((i for i, (a, b) in enumerate(zip(child.tokens, rest, strict=False)) if a != b), None)
                common = min(len(child.tokens), len(rest)) if common is None else common
                if common > most:
                    best, most = child, common
            return path, best, most
        while True:
            at = len(path) * length
            leaves = [
                c
                for c in islice(reversed((path[-1] if path else self.root).children.values()), _LOOK)
                if c.snapshot >= 0
                and at + len(c.tokens) <= limit
                and c.tokens == tuple(tokens[at : at + len(c.tokens)])
            ]
            if leaves:
                leaf = max(leaves, key=lambda c: len(c.tokens))
                return path, leaf, len(leaf.tokens)
            if not path or path[-1].snapshot >= 0:
                return path, None, 0
            path.pop()

    def open(self, tokens: Sequence[int], reuse: bool = True) -> CacheValue | None:
        """A value for a sequence that begins with these tokens, with as much of them as the tree has; the last one is
        left to be run. None: no snapshot for it."""
        self.clock += 1
        value = CacheValue()
        path, node, common = self.match(tokens, len(tokens) - 1) if reuse else ([], None, 0)
        for n in path:
            self._hold(n)
        value.nodes, value.table = path, [n.page for n in path]
        value.length = len(path) * self.page_length
        if node is not None:  # a part of a page: copied
            self._pin(value, node)
            page = self.page()
            if page is not None:
                self.runner.copy([(node.page, page)])
                value.table.append(page)
                value.length += common
            elif self.hybrid:  # what is left may have no snapshot at its end
                self._pin(value, None)
                self.close(value, False)
                return self.open(tokens, False)
            if not self.hybrid or page is None:
                self._pin(value, None)
        elif self.hybrid and path:
            self._pin(value, path[-1])
        if self.hybrid:
            state = self.snapshot()
            if state is None:
                self.close(value, False)
                return None
            value.state = state
            if reuse:
                value.branch = self._in_tree(tokens, len(tokens) - 1)
        value.reused = value.length
        return value

    def _in_tree(self, tokens: Sequence[int], limit: int) -> int:
        node, at = self.root, 0
        while at + self.page_length <= limit:
            child = node.children.get(tuple(tokens[at : at + self.page_length]))
            if child is None:
                break
            node, at = child, at + self.page_length
        return at

    def reserve(self, value: CacheValue, length: int) -> bool:
        """Pages for so many positions. False: there are not enough; those got until then stay with the value."""
        while len(value.table) * self.page_length < length:
            page = self.page()
            if page is None:
                return False
            value.table.append(page)
        return True

    def keep_each(self, value: CacheValue, count: int) -> int:
        """Snapshots after each of the next `count` tokens, so that any of them can be the last one accepted. How many
        tokens there are snapshots for."""
        if not self.hybrid:
            return count
        for i in range(count):
            if i and not self.free_snapshots and 2 * len(self._kept) <= self.runner.limits.snapshots:
                return i  # half of them are for prompts that may come again
            snapshot = value.state if i == 0 else self.snapshot()
            if snapshot is None:
                return i
            value.pending[value.length + i + 1] = snapshot
        return count

    def keep_chunk(self, value: CacheValue, count: int, boundaries: Sequence[int]) -> None:
        """The snapshot after the next `count` tokens, and those at lengths inside that the tree should have."""
        if not self.hybrid:
            return
        end = value.length + count
        for at in boundaries:
            if value.length < at <= end and at % self.page_length == 0:
                snapshot = self.snapshot()
                if snapshot is not None:
                    value.pending[at] = snapshot
        value.pending.setdefault(end, value.state)

    def advance(self, value: CacheValue, tokens: Sequence[int], length: int) -> None:
        """The step has run, and the sequence is `length` of these tokens now. Pages that are full become nodes."""
        last = value.pending.pop(length, -1)
        value.length = length
        self.clock += 1
        self._pin(value, None)
        while (end := (len(value.nodes) + 1) * self.page_length) <= length:
            at = len(value.nodes)
            parent = value.nodes[-1] if value.nodes else self.root
            key = tuple(tokens[end - self.page_length : end])
            node = parent.children.get(key)
            if node is None:
                node = self._add(parent, key, value.table[at])
            else:  # another sequence was sooner
                self.free.append(value.table[at])
                value.table[at] = node.page
            self._hold(node)
            value.nodes.append(node)
            self._attach(node, value.pending.pop(end, -1), value)
        for snapshot in value.pending.values():
            self._drop(snapshot, value)
        value.pending.clear()
        if last >= 0 and last != value.state:
            if length % self.page_length == 0 and value.nodes[-1].snapshot < 0:
                node = value.nodes[-1]  # the tree has it, and the next step begins from there
                self._attach(node, last, value)
                self._pin(value, node)
            else:
                self.free_snapshots.append(value.state)
                value.state = last

    def _add(self, parent: PrefixNode, key: tuple[int, ...], page: int) -> PrefixNode:
        node = parent.children[key] = PrefixNode(key, page, parent)
        node.used = self.clock
        self.idle += 1
        return node

    def _attach(self, node: PrefixNode, snapshot: int, value: CacheValue) -> None:
        if snapshot < 0 or snapshot == value.state:
            return
        if node.snapshot < 0:
            node.snapshot = snapshot
            self._kept[node] = None
        else:
            self.free_snapshots.append(snapshot)

    def _drop(self, snapshot: int, value: CacheValue) -> None:
        if snapshot >= 0 and snapshot != value.state:
            self.free_snapshots.append(snapshot)

    def close(self, value: CacheValue, tokens: Sequence[int] | bool = False) -> None:
        """The sequence is over, or gives up its room. tokens: what it has computed, which the tree keeps; False: a part
        of it may be wrong, and goes."""
        self.clock += 1
        for snapshot in value.pending.values():
            self._drop(snapshot, value)
        value.pending.clear()
        state = value.state if value.origin is None and value.length else -1
        if not isinstance(tokens, bool):
            at = len(value.nodes) * self.page_length
            parent = value.nodes[-1] if value.nodes else self.root
            key = tuple(tokens[at : value.length])
            if not key and state >= 0 and parent.snapshot < 0:
                parent.snapshot, value.state = state, -1
                self._kept[parent] = None
            elif key and self._worth(parent, key, state):
                node = self._add(parent, key, value.table.pop(len(value.nodes)))
                self._leaf(node)
                if state >= 0:
                    node.snapshot, value.state = state, -1
                    self._kept[node] = None
        self._pin(value, None)
        for node in reversed(value.nodes):
            self._hold(node, -1)
        self.free.extend(value.table[len(value.nodes) :])
        if value.state >= 0:
            self.free_snapshots.append(value.state)
        value.nodes, value.table, value.length, value.state = [], [], 0, -1

    def _worth(self, parent: PrefixNode, key: tuple[int, ...], state: int) -> bool:
        """Whether a leaf says more than those that are there; those that it makes needless go."""
        if self.hybrid:
            return state >= 0 and key not in parent.children
        for child in list(islice(reversed(parent.children.values()), _LOOK)):
            if child.tokens[: len(key)] == key:
                return False
            if key[: len(child.tokens)] == child.tokens and not child.holders:
                self._evict(child)
        return True

    # --- for tests

    def nodes(self) -> Iterator[PrefixNode]:
        todo = list(self.root.children.values())
        while todo:
            yield (node := todo.pop())
            todo.extend(node.children.values())

    def check(self, values: Sequence[CacheValue] = ()) -> None:
        """Every page and snapshot has one owner, and counts are right (AssertionError)."""
        nodes = list(self.nodes())
        own = [p for v in values for p in v.table[len(v.nodes) :]]
        pages = sorted([*self.free, *own, *(n.page for n in nodes)])
        assert pages == list(range(self.pages)), "pages are lost or have two owners"
        states = [v.state for v in values if v.state >= 0]
        pending = [s for v in values for s in v.pending.values() if s != v.state]
        snapshots = sorted([*self.free_snapshots, *states, *pending, *(n.snapshot for n in nodes if n.snapshot >= 0)])
        assert snapshots == list(range(self.runner.limits.snapshots)), "snapshots are lost or have two owners"
        assert self.idle == sum(n.holders == 0 for n in nodes)
        for n in nodes:
            pins = sum(v.origin is n for v in values)
            assert n.pins == pins and n.holders == pins + sum(n in v.nodes for v in values)
            assert not n.children or len(n.tokens) == self.page_length


__all__ = ["Cache", "PrefixNode", "CacheValue"]
