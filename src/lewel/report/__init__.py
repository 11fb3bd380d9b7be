"""What a reader looks at: pictures of alignment maps, curves, and one page that tells a run."""
