"""Differentiable rules on raw arrays, a file a family. They know no tensor and no tape."""
