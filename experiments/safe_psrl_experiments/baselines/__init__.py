"""The systems that the paper compares with, on the library's planning. Each file names its sources."""
