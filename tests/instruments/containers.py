"""The containers under the kernels: see containers.pyx, which the first import builds."""

from pathlib import Path

from instruments.build import load_instrument

_kernel = load_instrument(Path(__file__).with_suffix(".pyx"))

enlarged_capacity = _kernel.enlarged
shrunk_capacity = _kernel.shrunk
longest_probes = _kernel.longest_probes
