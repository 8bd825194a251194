"""The command line: one file for each verb or group of verbs; `verbs` has the table."""
