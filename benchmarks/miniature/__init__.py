"""The paper in miniature: targets and drafters trained from nothing, evaluated on tasks with exact answers."""
