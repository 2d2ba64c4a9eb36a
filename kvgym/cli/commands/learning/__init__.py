"""Commands that train, tune and score policies."""
