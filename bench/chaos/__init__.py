"""Workers of a real server are killed, stopped and cut off under load: is anything lost?"""
