"""The tasks, one file each: prompt, answer extraction and scoring with their source."""
