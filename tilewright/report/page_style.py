"""CSS and JavaScript of the HTML report pages."""

STYLE = """
:root { --ink: #1d2430; --soft: #66707f; --line: #d9dee6; --faint: #eef1f5; --paper: #ffffff; --card: #f7f8fa;
  --c0: #3367c8; --c1: #d07a1b; --c2: #1f8f63; --c3: #8456bd; --c4: #c23f3a; --c5: #0f8b9d;
  --c6: #b0527f; --c7: #7a7d12; --c8: #5b5fd6; --rest: #8a919c;
  --accent: #3367c8; --warn: #c23f3a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --soft: #98a2b3; --line: #363e4b; --faint: #262d38; --paper: #171b22; --card: #1e242d;
    --c0: #6c9cf2; --c1: #eda04c; --c2: #4cc394; --c3: #b48ce8; --c4: #ef7a73; --c5: #4fc3d4;
    --c6: #e08bb5; --c7: #b9bd4a; --c8: #9a9df5; --rest: #98a2b3;
    --accent: #6c9cf2; --warn: #ef7a73; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 60px; max-width: 1330px; background: var(--paper); color: var(--ink);
  font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 0; } section { margin-top: 34px; }
.sub { color: var(--soft); margin: 3px 0 12px; max-width: 92ch; }
.warning { border: 1px solid var(--warn); border-radius: 8px; padding: 8px 14px; color: var(--warn); font-weight: 600; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px;
  min-width: 132px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); }
svg { display: block; } .roofline { width: 100%; max-width: 1000px; height: auto; }
.minor { stroke: var(--faint); stroke-width: 1; } .major { stroke: var(--line); stroke-width: 1; }
text { font: 11px system-ui, "Segoe UI", Roboto, sans-serif; fill: var(--soft); } text.label { font-size: 12px; }
.ceiling { stroke: var(--ink); stroke-width: 2; } .slope { stroke: var(--soft); stroke-width: 1.4; }
text.name { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
circle { fill-opacity: .55; stroke: var(--paper); stroke-width: 1; }
.stem { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 2 2; }
.f-0 { fill: var(--c0); --c: var(--c0); } .f-1 { fill: var(--c1); --c: var(--c1); }
.f-2 { fill: var(--c2); --c: var(--c2); } .f-3 { fill: var(--c3); --c: var(--c3); }
.f-4 { fill: var(--c4); --c: var(--c4); } .f-5 { fill: var(--c5); --c: var(--c5); }
.f-6 { fill: var(--c6); --c: var(--c6); } .f-7 { fill: var(--c7); --c: var(--c7); }
.f-8 { fill: var(--c8); --c: var(--c8); } .f-rest { fill: var(--rest); --c: var(--rest); }
i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; background: var(--c); margin-right: 7px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 20px; color: var(--soft); margin: 8px 0; }
.hot circle { fill-opacity: .95; stroke: var(--ink); stroke-width: 1.5; } .hot .stem { stroke: var(--ink); }
.lanes { display: flex; gap: 8px; } .threads { position: relative; width: 62px; color: var(--soft);
  white-space: nowrap; }
.threads div { position: absolute; right: 0; line-height: 34px; } .scroll { overflow-x: auto; flex: 1; }
.lane { fill: var(--faint); } .wait { fill: url(#hatch); } .hatch { fill: var(--soft); opacity: .55; }
.timeline line { stroke: var(--line); } .timeline svg text { fill: #fff; } .timeline svg rect { stroke: var(--paper);
  stroke-width: .6; } .timeline svg.hot rect { stroke: var(--ink); stroke-width: 2.5; }
@media (prefers-color-scheme: dark) { .timeline svg text { fill: #10141a; } }
.fine { display: none; } .close .fine { display: inline; }
.shade1 { fill-opacity: .84; } .shade2 { fill-opacity: .7; }
.zoom { display: flex; gap: 6px; margin-bottom: 8px; }
button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 2px 10px; cursor: pointer; } button.on { border-color: var(--accent); color: var(--accent); }
.table { overflow-x: auto; font-variant-numeric: tabular-nums; }
.row { display: grid; gap: 10px; min-width: 1250px; padding: 4px 6px; align-items: center;
  grid-template-columns: minmax(190px, 1.5fr)
    44px 82px 78px 68px 62px 64px 88px 108px 66px 112px minmax(150px, 1.6fr); }
.row span { text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.row span:nth-child(1), .row span:nth-child(9), .row span:nth-child(n+11) { text-align: left; }
.head { color: var(--soft); border-bottom: 1px solid var(--line); } .head span { cursor: pointer; }
.head span:hover { color: var(--ink); }
summary { cursor: pointer; list-style: none; border-bottom: 1px solid var(--faint); }
summary::-webkit-details-marker { display: none; } summary:hover, details.hot summary { background: var(--card); }
.bar { background: linear-gradient(90deg, color-mix(in srgb, var(--accent) 26%, transparent) var(--bar), transparent 0);
  border-radius: 3px; padding: 1px 5px; } em { color: var(--warn); font-weight: 700; font-style: normal; }
.more { background: var(--card); border-bottom: 1px solid var(--line); padding: 8px 18px 12px; min-width: 1250px; }
dl { display: grid; grid-template-columns: 96px 1fr; gap: 3px 14px; margin: 0; } dt { color: var(--soft); }
dd { margin: 0; } pre { margin: 0; white-space: pre-wrap; font: 12px/1.5 ui-monospace, Menlo, Consolas, monospace; }
footer { margin-top: 34px; border-top: 1px solid var(--line); padding-top: 10px; color: var(--soft); font-size: 13px; }
footer p { margin: 2px 0; }
"""

#: of small tables, for pages that have some
PLAIN = """
table.plain { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 6px 0 12px; }
.plain th, .plain td { text-align: right; padding: 2px 12px; border-bottom: 1px solid var(--line); font-weight: 400; }
.plain th { color: var(--soft); } .plain th:first-child, .plain td:first-child { text-align: left; padding-left: 0; }
"""

SCRIPT = """
"use strict";
const all = s => [...document.querySelectorAll(s)];
for (const e of all("[data-k]")) {
  const same = all(`[data-k="${e.dataset.k}"]`);
  e.addEventListener("mouseenter", () => same.forEach(x => x.classList.add("hot")));
  e.addEventListener("mouseleave", () => same.forEach(x => x.classList.remove("hot")));
}
for (const e of all("g[data-k], svg[data-k]")) e.addEventListener("click", () => {
  const row = document.querySelector(`details[data-k="${e.dataset.k}"]`);
  row.open = true;
  row.scrollIntoView({block: "center", behavior: "smooth"});
});
for (const b of all("[data-zoom]")) b.addEventListener("click", () => {
  const drawing = document.querySelector(".timeline"), box = drawing.parentElement, zoom = +b.dataset.zoom;
  const middle = (box.scrollLeft + box.clientWidth / 2) / drawing.clientWidth;
  drawing.setAttribute("width", 100 * zoom + "%");
  drawing.classList.toggle("close", zoom >= 16);
  box.scrollLeft = middle * drawing.clientWidth - box.clientWidth / 2;
  all("[data-zoom]").forEach(x => x.classList.toggle("on", x === b));
});
for (const h of all("[data-sort]")) h.addEventListener("click", () => {
  const rows = all("details[data-k]"), i = +h.dataset.sort;
  const value = r => r.querySelectorAll("summary > span")[i].dataset.v;
  const numeric = rows.every(r => !Number.isNaN(+value(r)));
  const up = h.dataset.up = h.dataset.up === "1" ? "0" : "1";
  rows.sort((a, b) => numeric ? value(b) - value(a) : value(a).localeCompare(value(b)));
  if (up === "0") rows.reverse();
  rows.forEach(r => r.parentElement.append(r));
});
"""
