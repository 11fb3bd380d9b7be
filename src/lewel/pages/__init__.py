"""The HTML report and its pictures: alignment maps, curves, predictions."""
