def write(root, conclusion, cells, overrides): return None
def say(conclusion, paths): print(conclusion.sentence)
def say_runs(records, by): print(len(records))
