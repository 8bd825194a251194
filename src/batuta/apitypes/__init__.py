"""Types that server and client exchange as JSON: standard-library dataclasses, quick to import."""
