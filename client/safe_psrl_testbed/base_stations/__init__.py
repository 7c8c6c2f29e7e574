"""Many cells and devices in numpy: cheap, for load. Devices move and are handed over; those in a cell share its capacity."""
