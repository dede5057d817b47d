"""The ranks of a plan: how they are started, find each other, are listened to, and leave."""
