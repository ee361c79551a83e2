#!/usr/bin/env python3
"""plot_collectives.py RATE=FILE ... > SVG: NCCL's time by ours for each operation, by the rate of a link in Gbit/s.

FILE: what `strait bench collective --save FILE` wrote while that was the rate between its hosts; bars say the
median, lines in them the least and the most of its repeats.
"""

import json
import sys

LEFT, TOP, HEIGHT, BAR, GAP = 60, 44, 260, 22, 26
COLORS = ("#30638e", "#2a9d5c", "#d1495b", "#8e6c30", "#7a5195", "#7a7a7a")
MOST = 1.8


def main():
    rates = []
    for argument in sys.argv[1:]:
        rate, _, path = argument.partition("=")
        with open(path) as file:
            rates.append(
                (
                    float(rate),
                    {row["operation"]: row for row in json.load(file)["rows"]},
                )
            )
    if not rates:
        sys.exit(__doc__)
    rates.sort()
    operations = list(rates[0][1])
    group = BAR * len(operations) + GAP
    width = LEFT + group * len(rates) + 150

    def y(value):
        return TOP + HEIGHT * (1 - min(value, MOST) / MOST)

    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 56}" '
        'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{LEFT}" y="20" font-size="15">'
        "Collectives between two hosts: NCCL's time by that with Strait, untouched</text>"
    )
    right = LEFT + group * len(rates)
    for tick in (0, 0.5, 1, 1.5):
        stroke = "#555" if tick == 1 else "#e4e4e4"
        print(f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}" stroke="{stroke}"/>')
        print(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for number, (rate, rows) in enumerate(rates):
        for place, operation in enumerate(operations):
            row, at = rows[operation], LEFT + GAP / 2 + number * group + place * BAR
            print(f'<rect x="{at:.1f}" y="{y(row["x"]):.1f}" width="{BAR - 4}" height="{y(0) - y(row["x"]):.1f}" '
                  f'fill="{COLORS[place]}"/>\n<line x1="{at + BAR / 2 - 2:.1f}" y1="{y(row["x_min"]):.1f}" '
                  f'x2="{at + BAR / 2 - 2:.1f}" y2="{y(row["x_max"]):.1f}" stroke="#222"/>')  # fmt: skip
        middle = LEFT + number * group + group / 2
        print(f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{rate:g} Gbit/s</text>')
    for place, operation in enumerate(operations):
        at = TOP + 16 + 20 * place
        print(f'<rect x="{width - 140}" y="{at - 8}" width="12" height="12" fill="{COLORS[place]}"/>\n'
              f'<text x="{width - 122}" y="{at + 3}">{operation}</text>')  # fmt: skip
    print("</svg>")


if __name__ == "__main__":
    main()
