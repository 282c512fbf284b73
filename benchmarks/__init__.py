"""How fast CARVY-FL is: ratios measured in one run, costs at scale, and other frameworks."""
