"""Records of sealed journals, and ways to tamper with them."""
