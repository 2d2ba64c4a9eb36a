"""OpenAI-compatible servers: a client that measures one, and a small one that replays the simulator in real time.

``target`` describes a server, ``prompts`` writes prompts of given lengths, ``client`` sends requests and measures the
answers, ``log`` has the measured rows and their files. ``online`` runs the simulator on requests that are not known
beforehand, ``mock`` serves its times.
"""
