"""Traffic that is made by a generator alone: families of it from parameters and a seed.

Entered by the evaluation. No trace is behind it: see the synthesizer for more of a trace's.
"""

from .generator import TRAFFIC_BLOCK_SIZE, generate_traffic
from .shapes import SHAPES, in_shape, shape_traffic
from .spec import Bursts, Chunks, Jobs, TrafficSpec
