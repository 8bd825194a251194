"""The goodput model of Pollux (OSDI'21): true step times, efficiency and progress of training jobs."""
