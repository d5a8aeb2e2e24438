"""What answers the turns of a rollout: tools, games, users. In workers that can be killed."""
