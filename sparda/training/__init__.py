"""Training a Forecast: data, the frozen model's view of it, the loop, and what is written."""
