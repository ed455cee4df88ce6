"""What both kinds of worker share: plans and their runner, events and actions, the shell's loop."""
