"""How an episode is planned: the paper's schedule and dual update, and certified plans."""
