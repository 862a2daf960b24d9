"""How long a tree's writer keeps readers out: see stretches.pyx, which the first import builds."""

from pathlib import Path

from instruments.build import load_instrument

StretchWatch = load_instrument(Path(__file__).with_suffix(".pyx")).StretchWatch
