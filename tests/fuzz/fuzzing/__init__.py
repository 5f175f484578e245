"""Random small configurations: what attach and the engine say, against eager torch from the rules alone."""
