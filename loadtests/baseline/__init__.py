"""The same decision as other people would serve it, from a first version on."""
