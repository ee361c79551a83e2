#!/usr/bin/env python3
"""plot_links.py FILE > SVG: the rows of `strait bench transfer --path link --rate LIST --save FILE` as lines.

GB/s of raw bytes by the rate of the link, and what iperf3 carries.
"""

import json
import math
import sys

LEFT, TOP, WIDTH, HEIGHT = 60, 40, 560, 300
COLORS = {"iperf3": "#7a7a7a", "raw": "#30638e", "tiered": "#d1495b", "auto": "#2a9d5c", "top16": "#8e6c30"}
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def lines_of(document):
    """[(Gbit/s, GB/s)] by coding."""
    lines = {}
    for row in document["rows"]:
        if row["path"] == "link":
            name = row["case"] if row["case"] != "strait" else row["coding"]
            lines.setdefault(name, []).append((row["gigabits"], row["GBps"]["p50"]))
    return {name: sorted(points) for name, points in lines.items()}


def main():
    with open(sys.argv[1]) as file:
        document = json.load(file)
    lines = lines_of(document)
    if len({rate for points in lines.values() for rate, _ in points}) < 2:
        sys.exit("plot_links.py: the file has rows of fewer than two rates of --path link")
    size = round(max(row["bytes"] for row in document["rows"] if row["path"] == "link") / 2**20)
    rates, speeds = ([min(values), max(values)] for values in zip(*sum(lines.values(), [])))

    def x(rate):
        return LEFT + WIDTH * math.log(rate / rates[0]) / math.log(rates[1] / rates[0])

    def y(speed):
        return TOP + HEIGHT * (1 - math.log(speed / speeds[0]) / math.log(speeds[1] / speeds[0]))

    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{TOP + HEIGHT + 50}" '
        'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{LEFT}" y="20" font-size="15">{size} MiB of KV cache over a link: GB/s of pages, by Gbit/s</text>'
    )
    for tick in TICKS:
        if rates[0] <= tick <= rates[1]:
            print(f'<line x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{TOP + HEIGHT}" stroke="#e4e4e4"/>')
            print(f'<text x="{x(tick):.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{tick:g}</text>')
        if speeds[0] <= tick <= speeds[1]:
            print(f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{LEFT + WIDTH}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>')
            print(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for number, (name, points) in enumerate(lines.items()):
        path = " ".join(f"{x(rate):.1f},{y(speed):.1f}" for rate, speed in points)
        dash = ' stroke-dasharray="5 4"' if name == "iperf3" else ""
        print(f'<polyline points="{path}" fill="none" stroke="{COLORS[name]}" stroke-width="2"{dash}/>')
        at = TOP + 16 + 20 * number
        print(f'<line x1="{LEFT + WIDTH + 15}" y1="{at}" x2="{LEFT + WIDTH + 40}" y2="{at}" stroke="{COLORS[name]}" '
              f'stroke-width="2"{dash}/>\n<text x="{LEFT + WIDTH + 46}" y="{at + 4}">{name}</text>')  # fmt: skip
    print("</svg>")


main()
