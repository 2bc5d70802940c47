"""A field that is added to a pack: its values, made in parts, and the containers that hold them."""
