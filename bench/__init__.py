"""How good and how fast it is."""
