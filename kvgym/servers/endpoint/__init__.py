"""OpenAI-compatible servers: a client that measures one, and a small one that replays the simulator in real time.

``target`` describes a server, ``prompts`` writes prompts of given lengths, ``answers`` checks what servers send,
``client`` sends requests and measures the answers, ``log`` appends the measured rows to their files. ``online`` runs
the simulator on requests that are not known beforehand, ``mock`` serves its times and ``mock_metrics`` its metrics.
"""
