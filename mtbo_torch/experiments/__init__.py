"""The paper's experiments: panels, runner and storage."""
