"""What any scheduler could have done with the requests of a run: optima in hindsight, and bounds on them."""
