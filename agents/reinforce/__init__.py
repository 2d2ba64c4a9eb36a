"""REINFORCE with groups of environments on equal requests, for one decision per request; needs NumPy alone."""
