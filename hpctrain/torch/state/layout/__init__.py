"""Which bytes of which tensor lie in which block of which file, and which rank moves them."""
