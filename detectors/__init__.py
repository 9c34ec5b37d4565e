"""How trouble is noticed: readers, process supervision, measurements, leases."""
