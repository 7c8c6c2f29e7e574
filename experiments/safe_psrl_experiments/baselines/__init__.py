"""The systems that the paper compares with, one file each, on the library's planning. See each file for its provenance."""
