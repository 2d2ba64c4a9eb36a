"""Commands for real servers: measure one, replay its log, imitate one, and calibrate hardware."""
