"""Which runs a figure or table needs, and the records of finished runs."""
