"""What is read and written: the catalog, the fleet, the decision, and what processes say to each
other.
"""
