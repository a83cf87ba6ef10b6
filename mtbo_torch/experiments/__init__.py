"""The paper's experiments: the panels as data, the runner, storage."""
