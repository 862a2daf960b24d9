"""Who is busy with what."""
