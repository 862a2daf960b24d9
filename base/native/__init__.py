"""Native containers under the kernels: arrays that grow, a hash table, points where work yields.

Entered by cimport only, from kernels of any floor.
"""
