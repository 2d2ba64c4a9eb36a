"""What several tests share: runs, requests, policies with faults, and small works for other processes."""
