"""More of the same traffic: models learned from a trace, and requests drawn from them.

Entered by the commands `synthesize`, `fidelity` and whoever needs traffic.
"""
