"""Look at packs: verify, extract, and show them as a gallery."""
