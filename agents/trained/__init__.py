"""Files of trained agents: headers, and models that act without PyTorch."""
