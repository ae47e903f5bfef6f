"""cb_jobhelper: opens one request for one app, seals the app's answer, and dies with both.

It holds the data encryption key and never hands it on; it neither reads nor checks what the request says.
"""
