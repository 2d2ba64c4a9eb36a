"""Stand-ins for engines, and files that servers and profilers write."""
