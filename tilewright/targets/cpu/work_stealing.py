"""How threads share the work of one kernel: each begins with its own part, and helps others with theirs.

A kernel called with ``tid`` of ``n`` does the iterations from ``trip * tid / n`` to ``trip * (tid + 1) / n`` of its
parallel loops, so it can be called for any piece of them. Every thread's part has PIECES pieces; a count in the
thread's slot says how many of them are taken. The owner takes half of what is left (four calls in all, if nobody
helps), one who has finished takes single pieces of others. So a thread whose core is slower, or shared with somebody,
gets less to do, while all threads otherwise keep to the part whose operands their caches hold from the kernel before.

The counts go on from call to call: those of the k-th call of a program are k * PIECES to (k + 1) * PIECES. A count that
is not in there belongs to a thread that is done, or to one that has not come so far; nobody waits for either, and the
barriers between calls stay as they are. Thread t looks at t + 1, t + 2, t + 4, ...: of many threads it asks a few.

Which thread computes a result changes nothing in it.
"""

from __future__ import annotations

from ...program.program import Call

#: pieces of one thread's part, a power of two
PIECES = 8
#: where the count lies in the slot of a thread: in a line of its own
TAKEN = 64
#: calls with fewer bytes of operands and results are over before anybody could help
LEAST = 128 << 10


def in_pieces(call: Call) -> bool:
    """Whether threads help each other with a call."""
    return call.pieces and call.parallel and not call.small and sum(ref.nbytes for ref in call.args) >= LEAST


def call_in_pieces(number: int, order: int, kernel: str, pointers: str) -> list[str]:
    """The lines that run a kernel piece by piece: call `number` of the program, the `order`-th that is in pieces."""
    return [
        f"br label %take{number}",
        f"take{number}:",
        f"%got{number} = call i64 @tw_take(ptr %state, i64 %tid, i64 %n, i64 {order * PIECES})",
        f"%none{number} = icmp eq i64 %got{number}, -1",
        f"br i1 %none{number}, label %taken{number}, label %piece{number}",
        f"piece{number}:",
        f"%which{number} = lshr i64 %got{number}, 32",
        f"%of{number} = and i64 %got{number}, 4294967295",
        f"call void {kernel}({pointers}ptr %scratch, i64 %which{number}, i64 %of{number})",
        f"br label %take{number}",
        f"taken{number}:",
    ]


def pieces_llvm(slots: int, slot_bytes: int) -> str:
    """@tw_take and @tw_fresh for a state whose slots begin at byte `slots`, `slot_bytes` each."""
    return _TEXT.format(at=slots + TAKEN, slot=slot_bytes, pieces=PIECES, half=PIECES // 2, quarter=PIECES // 4)


_TEXT = """\
; Where the count of thread `t` lies.
define internal ptr @tw_taken(ptr %state, i64 %t) nounwind alwaysinline {{
  %slot = mul i64 %t, {slot}
  %offset = add i64 %slot, {at}
  %count = getelementptr i8, ptr %state, i64 %offset
  ret ptr %count
}}

; Nothing is taken yet: before a job is published.
define internal void @tw_fresh(ptr %state, i64 %n) nounwind {{
  br label %next
next:
  %t = phi i64 [ 0, %0 ], [ %t1, %next ]
  %count = call ptr @tw_taken(ptr %state, i64 %t)
  store atomic i64 0, ptr %count monotonic, align 8
  %t1 = add i64 %t, 1
  %more = icmp ult i64 %t1, %n
  br i1 %more, label %next, label %done
done:
  ret void
}}

; What thread `tid` of `n` is to do next of the call whose counts begin at `first`: piece << 32 | pieces, or -1.
define i64 @tw_take(ptr %state, i64 %tid, i64 %n, i64 %first) nounwind noinline {{
  %own = call ptr @tw_taken(ptr %state, i64 %tid)
  %alone = icmp eq i64 %n, 1
  br label %look
look:
  %now = load atomic i64, ptr %own monotonic, align 8
  %done = sub i64 %now, %first
  %over = icmp uge i64 %done, {pieces}
  br i1 %over, label %help, label %mine
mine:                                             ; half of what is left, at a multiple of its size
  %left = sub i64 {pieces}, %done
  %minus = sub i64 0, %done
  %bit = and i64 %done, %minus
  %at_start = icmp eq i64 %done, 0
  %aligned = select i1 %at_start, i64 {pieces}, i64 %bit
  %all = icmp eq i64 %left, {pieces}
  %most = icmp uge i64 %left, {half}
  %some = select i1 %most, i64 {quarter}, i64 1
  %half = select i1 %all, i64 {half}, i64 %some
  %want = call i64 @llvm.umin.i64(i64 %aligned, i64 %half)
  %size = select i1 %alone, i64 {pieces}, i64 %want
  %then = add i64 %now, %size
  %swap = cmpxchg ptr %own, i64 %now, i64 %then monotonic monotonic, align 8
  %swapped = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %swapped, label %got, label %look
got:
  %before = mul i64 %tid, {pieces}
  %at = add i64 %before, %done
  %piece = udiv i64 %at, %size
  %parts = mul i64 %n, {pieces}
  %of = udiv i64 %parts, %size
  %high = shl i64 %piece, 32
  %answer = or i64 %high, %of
  ret i64 %answer
help:
  br label %other
other:
  %step = phi i64 [ 1, %help ], [ %step2, %away ]
  %in = icmp ult i64 %step, %n
  br i1 %in, label %ask, label %nothing
ask:
  %sum = add i64 %tid, %step
  %v = urem i64 %sum, %n
  %count = call ptr @tw_taken(ptr %state, i64 %v)
  br label %see
see:
  %there = load atomic i64, ptr %count monotonic, align 8
  %gone = sub i64 %there, %first
  %none = icmp uge i64 %gone, {pieces}
  br i1 %none, label %away, label %one
one:
  %there1 = add i64 %there, 1
  %trade = cmpxchg ptr %count, i64 %there, i64 %there1 monotonic monotonic, align 8
  %traded = extractvalue {{ i64, i1 }} %trade, 1
  br i1 %traded, label %theirs, label %see
theirs:
  %their = mul i64 %v, {pieces}
  %which = add i64 %their, %gone
  %which_high = shl i64 %which, 32
  %in_all = mul i64 %n, {pieces}
  %theirs_answer = or i64 %which_high, %in_all
  ret i64 %theirs_answer
away:
  %step2 = shl i64 %step, 1
  br label %other
nothing:
  ret i64 -1
}}
"""
