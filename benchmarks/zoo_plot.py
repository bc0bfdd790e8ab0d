"""Ratios of many models as a picture: one point a model, sorted, on a logarithmic scale."""

from __future__ import annotations

import math

COLOURS = {"timm": "#1f6feb", "transformers": "#e08e2b", "torchvision": "#3fa05a", "diffusers": "#8250c4",
           "sklearn": "#b3574d"}  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP, LOW, HIGH = 900, 300, 46, 40, 0.1, 4.0


def _y(ratio: float) -> float:
    place = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return TOP + HEIGHT * (1 - place)


def plot(models: dict[str, dict], peer: str = "ONNX Runtime") -> str:
    """An SVG with a panel for each number of threads; hovering over a point names the model."""
    counts = sorted({t for m in models.values() for t in m["threads"]}, key=int)
    panel = HEIGHT + TOP + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + LEFT + 20}" height="{panel * max(len(counts), 1)}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for n, threads in enumerate(counts):
        out += [f'<g transform="translate(0 {n * panel})">', *_panel(models, threads, peer), "</g>"]
    return "\n".join([*out, "</svg>"]) + "\n"


def _panel(models: dict[str, dict], threads: str, peer: str) -> list[str]:
    ratios = {n: m["threads"][threads].get("ratio") for n, m in models.items() if threads in m["threads"]}
    order = sorted((n for n, r in ratios.items() if r), key=lambda n: ratios[n])
    plural = "s" if threads != "1" else ""
    out = [
        f'<text x="{LEFT}" y="14" font-weight="bold">{threads} thread{plural}: time relative to {peer}, '
        f"{len(order)} models, less is better</text>"
    ]
    for i, (family, colour) in enumerate(COLOURS.items()):
        x = LEFT + 110 * i
        out.append(f'<circle cx="{x + 4}" cy="26" r="4" fill="{colour}"/><text x="{x + 12}" y="30">{family}</text>')
    for mark in (0.1, 0.2, 0.5, 1.0, 1.2, 2.0, 4.0):
        dash = "" if mark == 1.0 else ' stroke-dasharray="2 4"'
        out.append(
            f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{_y(mark):.1f}" y2="{_y(mark):.1f}" stroke="#999"{dash}/>'
            f'<text x="{LEFT - 6}" y="{_y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for i, name in enumerate(order):
        x = LEFT + WIDTH * (i + 0.5) / len(order)
        colour = COLOURS.get(models[name]["family"], "#8a8f98")
        out.append(
            f'<circle cx="{x:.1f}" cy="{_y(ratios[name]):.1f}" r="3.2" fill="{colour}">'
            f"<title>{name}: {ratios[name]:.2f}</title></circle>"
        )
    return out
