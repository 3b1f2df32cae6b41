"""Program inside the pod, and the wire format it shares with the client."""
