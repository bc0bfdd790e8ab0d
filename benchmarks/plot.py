"""The ratios of a report of bench.py as a picture: `python plot.py results/cpu.json` writes results/cpu.svg."""

from __future__ import annotations

import json
import sys
from pathlib import Path

COLOURS = ("#8a8f98", "#e08e2b", "#b3574d", "#1f6feb", "#3fa05a", "#8250c4")
BAR, GAP, LEFT, WIDTH, MOST = 11, 12, 110, 420, 2.5


def plot(report: dict) -> str:
    """One bar a model and peer: its median time over the baseline's; a panel for each number of threads, as SVG."""
    threads = sorted({t for by_threads in report["results"].values() for t in by_threads}, key=int)
    peers, models = report["peers"], list(report["results"])
    height = 60 + len(models) * (BAR * len(peers) + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(threads) * (LEFT + WIDTH + 40)}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for n, count in enumerate(threads):
        x = n * (LEFT + WIDTH + 40) + LEFT
        plural = "s" if int(count) > 1 else ""
        title = f"{count} thread{plural}: time relative to {report.get('baseline', 'ort')}, less is better"
        out.append(f'<text x="{x}" y="16" font-weight="bold">{title}</text>')
        out += _legend(peers, x)
        out += _bars(report, count, x)
        one = x + WIDTH / MOST
        out.append(
            f'<line x1="{one:.1f}" x2="{one:.1f}" y1="42" y2="{height - GAP}" stroke="#333" stroke-dasharray="3"/>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend(peers: list[str], x: int) -> list[str]:
    out = []
    for i, peer in enumerate(peers):
        at, colour = x + i * 100, COLOURS[i % len(COLOURS)]
        out.append(
            f'<rect x="{at}" y="25" width="9" height="9" fill="{colour}"/><text x="{at + 13}" y="33">{peer}</text>'
        )
    return out


def _bars(report: dict, threads: str, x: int) -> list[str]:
    out, y = [], 46
    for model, by_threads in report["results"].items():
        results = by_threads.get(threads, {})
        base = results.get(report.get("baseline", "ort"), {}).get("median_ms")
        out.append(
            f'<text x="{x - 6}" y="{y + BAR * len(report["peers"]) / 2 + 4:.0f}" text-anchor="end">{model}</text>'
        )
        for i, peer in enumerate(report["peers"]):
            time = results.get(peer, {}).get("median_ms")
            if base and time:
                length, colour = WIDTH / MOST * min(time / base, MOST), COLOURS[i % len(COLOURS)]
                out.append(f'<rect x="{x}" y="{y}" width="{length:.1f}" height="{BAR - 1}" fill="{colour}"/>')
                out.append(f'<text x="{x + length + 3:.1f}" y="{y + BAR - 2}" font-size="9">{time / base:.2f}</text>')
            y += BAR
        y += GAP
    return out


if __name__ == "__main__":
    source = Path(sys.argv[1])
    source.with_suffix(".svg").write_text(plot(json.loads(source.read_text())))
