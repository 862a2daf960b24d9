"""A trace against mock engines in virtual time and the real KvRouter; policies side by side.

Entered by the commands `simulate`, `sweep` and `grid`.
"""
