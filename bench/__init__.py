"""How good and how fast it is: commands at the root, what they share in rooms below."""
