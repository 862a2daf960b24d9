"""Who the processes are, and how they find and hear each other."""
