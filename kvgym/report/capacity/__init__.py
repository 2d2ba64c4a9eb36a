"""Reports and figures of a search for capacity, and of provisioning."""
