"""Problem definitions: specifications, their checks, their text form, and the problems that come with the product."""
