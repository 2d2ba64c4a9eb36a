"""Small systems and requests, schedules to compare with, and what plays them."""
