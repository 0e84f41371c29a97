"""Programs that run on several ranks."""
