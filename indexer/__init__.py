"""Who holds which block."""
