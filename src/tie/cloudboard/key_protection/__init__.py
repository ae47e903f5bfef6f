"""The process that holds the node's private request keys and parses no request.

It opens one `enc` once, for a job that cloudboardd announced, and returns the KEM secret sealed to that job's helper.
In a deployment this is another confidential VM.
"""
